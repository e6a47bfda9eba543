"""The conformance test as a test file, for those who want to write none: see :mod:`specplug.testing.plugin`."""

from __future__ import annotations

from collections.abc import Callable


def test_conformance(specplug_check: Callable[[], None]) -> None:
    """Every check, on every proposer that was named."""
    specplug_check()
