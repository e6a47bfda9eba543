"""Tests against real serving engines; see ``conftest.py`` for what they need."""
