"""Real models."""


def run_models(world):
    pass
