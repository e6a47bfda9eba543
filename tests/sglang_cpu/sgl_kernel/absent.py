"""Placeholders for everything of ``sgl_kernel`` that a CPU run imports but never calls."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

PREFIX = "sgl_kernel."


class Absent:
    """Stands for a name that does not exist here; calling it says so."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Raise: a test reached an operation that the stand-in lacks."""
        raise NotImplementedError(
            f"{self.name} is not in the stand-in tests/sglang_cpu/sgl_kernel: write it there, with a test"
        )

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``sgl_kernel.x.y`` for any x and y that is not a file here."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(PREFIX):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)

        def missing(name: str) -> Absent:
            if name.startswith("__"):
                raise AttributeError(name)
            return Absent(f"{spec.name}.{name}")

        module.__getattr__ = missing  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


def serve_submodules() -> None:
    """Let imports of submodules that are no files here succeed."""
    # Last: the files of this folder are found first.
    sys.meta_path.append(_Submodules())
