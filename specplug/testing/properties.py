"""Running hypothesis from inside a function call, without pytest and without its database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings


def explore_examples(
    examples: int, shrink: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Settings of every property of the kit: reproducible, no deadline (kernels compile on first use), one failure."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if shrink else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
