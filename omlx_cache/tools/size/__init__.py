"""How much memory a model's KV takes, from its config.json alone."""
