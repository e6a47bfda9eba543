"""Lets vLLM's V2 model runner run on a CPU: put this folder first on PYTHONPATH.

V2 needs Triton, and on a CPU a backend of Triton called "cpu", which is not published. Its kernels run in Triton's own
interpreter instead, slowly; vLLM only asks whether the backend is there. The interpreter takes no masks of integers,
which compiled Triton does and some kernels of vLLM have (grammars, ngram), so they are cast.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import types
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    import triton.backends
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, _patch_lang

    class _Driver:
        @staticmethod
        def is_active() -> bool:
            return False

    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=_Driver, compiler=None)
    _load, _store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def _masked_load(self: Any, ptrs: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return _load(self, ptrs, mask, *others)

    def _masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return _store(self, ptrs, value, mask, *others)

    _bare = {id(lang): lang.arange for lang in (tl, tl.core)}

    def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Triton patches its language anew in every call of a function by a kernel, which has done so already.
        langs = self.__dict__.get("langs")
        if langs is None:
            every = {id(value): value for value in self.fn.__globals__.values()}
            langs = self.langs = [every[key] for key in _bare if key in every]
        if any(lang.arange is _bare[id(lang)] for lang in langs):
            _patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    InterpretedFunction.__call__ = _call
    InterpreterBuilder.create_masked_load = _masked_load
    InterpreterBuilder.create_masked_store = _masked_store
except ImportError:
    pass


class _Ahead(importlib.abc.MetaPathFinder):
    """Leaves asynchronous scheduling as the configuration has it, on a platform that always switches it off."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "vllm.platforms.cpu" else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            original = module.CpuPlatform.check_and_update_config.__func__

            def check_and_update_config(cls: Any, config: Any) -> None:
                wanted = config.scheduler_config.async_scheduling
                original(cls, config)
                config.scheduler_config.async_scheduling = wanted

            module.CpuPlatform.check_and_update_config = classmethod(check_and_update_config)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("SPECPLUG_TEST_AHEAD") == "1":
    sys.meta_path.insert(0, _Ahead())
