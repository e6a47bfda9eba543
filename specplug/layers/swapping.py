"""Modules whose ``forward`` is another one for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def swapped(stubs: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Give each module another ``forward``, and take it back whatever happens, as it was set on the instance or not.

    Args:
        stubs: modules and what stands for their ``forward``.
    """
    changed: list[tuple[Any, Any]] = []
    try:
        for module, stub in stubs:
            changed.append((module, module.__dict__.get("forward")))
            module.forward = stub
        yield
    finally:
        for module, before in reversed(changed):
            if before is None:
                del module.forward
            else:
                module.forward = before
