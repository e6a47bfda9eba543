"""The version, written down once: ``pyproject.toml`` reads it from here when the package is built.

A module instead of ``importlib.metadata``: reading metadata costs milliseconds in every process
of an engine, and is wrong when two copies are installed.
"""

__version__ = "0.1.0"
