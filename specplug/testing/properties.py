"""Running hypothesis from inside a function call, without pytest and without its database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings


def explore_examples(examples: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Settings of every property of the kit: reproducible, shrinking, no deadline (kernels compile on first use)."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
