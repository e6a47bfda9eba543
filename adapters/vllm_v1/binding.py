"""The wrapper around the V1 runner's ``_update_states``, the one place that sees requests come and go."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

_MARK = "_specplug"


class Listener(Protocol):
    """What the wrapper calls: our proposer."""

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """The runner's request states are up to date for this step. Must not raise."""


def bind(runner_class: Any, listener_type: type[Listener]) -> None:
    """Wrap ``runner_class._update_states`` once; runners whose drafter is not ours are left alone."""
    original = runner_class._update_states
    if not getattr(original, _MARK, False):
        runner_class._update_states = _wrap(original, listener_type)


def _wrap(original: Callable[..., Any], listener_type: type[Listener]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _update_states(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, scheduler_output, *args, **kwargs)
        drafter = getattr(self, "drafter", None)
        if isinstance(drafter, listener_type):
            drafter.after_update(self, scheduler_output)
        return result

    setattr(_update_states, _MARK, True)
    return _update_states
