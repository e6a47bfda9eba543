"""A scheduler of vLLM that reserves the slots into which draft passes will write, with those of the step itself.

vLLM does so for its own methods that draft with a model, and has no word for it in its configuration. Its own
``scheduler_cls`` takes this subclass; nothing else is different, and nothing is patched.
"""

from __future__ import annotations

import functools
from typing import Any

from specplug.adapters.common import host_logger

NAME = "LookaheadScheduler"
PATH = f"{__name__}.{NAME}"


def reserve(engine_args: Any) -> None:
    """Let the engine of these arguments reserve slots for drafts, unless it has a scheduler class of the user's."""
    given = getattr(engine_args, "scheduler_cls", None)
    if given in (None, PATH):
        engine_args.scheduler_cls = PATH
        return
    host_logger("vllm").info(
        "specplug.layerskip: scheduler_cls is %r, so no slots are reserved for drafts, which are shorter where the "
        "last block of a request ends",
        given,
    )


@functools.cache
def scheduler_class() -> type:
    """The subclass."""
    from vllm.v1.core.sched.scheduler import Scheduler

    class LookaheadScheduler(Scheduler):  # type: ignore[misc, unused-ignore]
        @property
        def num_lookahead_tokens(self) -> int:
            """A draft's passes write one slot each, from that of the newest token on."""
            return int(self.num_spec_tokens)

        @num_lookahead_tokens.setter
        def num_lookahead_tokens(self, value: int) -> None:
            """What vLLM's own methods need, of which this is none."""

    return LookaheadScheduler


def __getattr__(name: str) -> type:
    if name != NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return scheduler_class()
