"""Lets vLLM's V2 model runner run on a CPU: put this folder first on PYTHONPATH.

V2 needs Triton, and on a CPU a backend of Triton called "cpu", which is not published. Its kernels run in Triton's own
interpreter instead, slowly; vLLM only asks whether the backend is there. The interpreter takes no masks of integers,
which compiled Triton does and some kernels of vLLM have (grammars, ngram), so they are cast.
"""

from __future__ import annotations

import os
import types
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    import triton.backends
    from triton.runtime.interpreter import InterpreterBuilder

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

    InterpreterBuilder.create_masked_load = _masked_load
    InterpreterBuilder.create_masked_store = _masked_store
except ImportError:
    pass
