"""What one engine step was and how long it took, as seen from the worker."""

from __future__ import annotations

from collections import deque
from statistics import median
from time import perf_counter_ns
from typing import Any

from specplug.control.cost import StepFacts

#: Waits between two steps of which the middle one is what the engine's own loop takes; longer ones are idle time.
_WAITS = 33


class StepClock:
    """Times steps from the update of the batch to the sampled tokens, and adds what lies between two steps.

    The time from our drafts to the next step is the engine's scheduling, or waiting for requests. The two cannot be
    told apart in the worker, so the median of the last waits stands for the former.
    """

    def __init__(self) -> None:
        self._begun = 0
        self._left = 0
        self._host = 0
        self._waits: deque[int] = deque(maxlen=_WAITS)
        self._tokens = self._requests = self._prefill = 0

    def begin(self, scheduler_output: Any) -> None:
        """A step begins."""
        self._begun = now = perf_counter_ns()
        if self._left:
            self._waits.append(now - self._left)
            self._left = 0
        scheduled = getattr(scheduler_output, "num_scheduled_tokens", None) or {}
        self._requests, self._tokens = len(scheduled), sum(scheduled.values())
        drafts = getattr(scheduler_output, "scheduled_spec_decode_tokens", None) or {}
        drafted = sum(len(tokens) for tokens in drafts.values())
        self._prefill = max(0, self._tokens - self._requests - drafted)

    def sampled(self, in_prefill: int, context: int) -> StepFacts | None:
        """The step's tokens are known; None if there was nothing to time.

        Args:
            in_prefill: requests that got no token because their prompt is not finished.
            context: tokens of all requests of the step together.
        """
        begun, self._begun = self._begun, 0
        if not begun or not self._tokens:
            return None
        # numpy's median takes 30 us for so few numbers.
        between = int(median(self._waits)) if self._waits else 0
        seconds = (perf_counter_ns() - begun + self._host + between) / 1e9
        return StepFacts(
            seconds,
            self._tokens,
            self._requests,
            context,
            self._prefill,
            self._host / 1e9,
            self._prefill if in_prefill else 0,
        )

    def drafted(self, host: int) -> None:
        """Our part of the step is over; it took ``host`` nanoseconds, which the next step's time includes."""
        self._host = host
        self._left = perf_counter_ns()
