"""This package's version, for modules that need nothing else of it."""

from typing import Final

VERSION: Final = "0.1.0"
