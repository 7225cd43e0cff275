"""A loaded machine does not fail a property: what must be quick says so itself."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
