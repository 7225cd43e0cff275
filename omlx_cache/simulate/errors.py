"""What is wrong with a trace, or with what was asked of it."""


class TraceError(ValueError):
    """A trace cannot be read: the text names the file, and the line where there is one."""


class SimulationError(ValueError):
    """What was asked for cannot be simulated."""
