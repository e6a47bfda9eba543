"""Lets vLLM's V2 model runner run on a CPU: put this folder first on PYTHONPATH.

V2 needs Triton, and on a CPU a backend of Triton called "cpu", which is not published. Its kernels run in Triton's own
interpreter instead, slowly; vLLM only asks whether the backend is there.
"""

from __future__ import annotations

import os
import types

os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    import triton.backends

    class _Driver:
        @staticmethod
        def is_active() -> bool:
            return False

    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=_Driver, compiler=None)
except ImportError:
    pass
