"""The wrapper around the method in which a runner takes in what the scheduler says: requests come and go there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

_MARK = "_specplug"


class Listener(Protocol):
    """What the wrapper calls: our proposer."""

    def after_update(self, runner: Any, scheduler_output: Any) -> None:
        """The runner's request states are up to date for this step. Must not raise."""


def bind(
    runner_class: Any,
    listener_type: type[Listener],
    method: str = "_update_states",
    holder: str = "drafter",
) -> None:
    """Wrap ``method`` of a runner once; runners whose attribute ``holder`` is not ours are left alone."""
    original = getattr(runner_class, method)
    if not getattr(original, _MARK, False):
        setattr(runner_class, method, _wrap(original, listener_type, holder))


def _wrap(
    original: Callable[..., Any], listener_type: type[Listener], holder: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, scheduler_output, *args, **kwargs)
        listener = getattr(self, holder, None)
        if isinstance(listener, listener_type):
            listener.after_update(self, scheduler_output)
        return result

    setattr(update, _MARK, True)
    return update
