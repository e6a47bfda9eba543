"""What tests do inside SGLang's scheduler."""

from __future__ import annotations

from typing import Any


def flush(scheduler: Any) -> bool:
    """As ``/flush_cache`` does; False if something was still running."""
    return bool(scheduler.flush_cache())
