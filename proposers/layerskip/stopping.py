"""When to stop drafting, and when not to start.

Every rule here decides from the past and from the law that the next draft token will be drawn from, never from the
token, so each is safe for sampled drafts too; see :class:`specplug.layers.policy.StopRule`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specplug.errors import SkipPlanError
from specplug.layers.policy import Feedback

#: Cost of a draft pass, in plain steps, before one was measured.
FIRST_GUESS = 0.5
#: Measurements that the cost is the median of.
TIMINGS = 32


class Always:
    """As many drafts as the executor allows."""

    def begin(self) -> None:
        """Nothing to prepare."""

    def runs(self) -> bool:
        """Always."""
        return True

    def proposes(self, confidence: float) -> bool:
        """Always."""
        return True

    def observe(self, feedback: Feedback) -> None:
        """Nothing to learn."""


class Threshold:
    """Stops at the first position whose confidence lies under a threshold that follows the acceptance rate.

    Draft & Verify (Zhang et al. 2023, arXiv:2309.08168): the threshold rises by ``step`` where a draft was accepted
    less than the target rate, falls where more, smoothed. ``step`` 0 keeps it fixed.

    Raises:
        SkipPlanError: a value outside of 0 to 1.
    """

    def __init__(
        self,
        threshold: float = 0.6,
        target: float = 0.9,
        step: float = 0.02,
        smoothing: float = 0.5,
    ) -> None:
        for name, value in (
            ("threshold", threshold),
            ("target", target),
            ("step", step),
            ("smoothing", smoothing),
        ):
            if not 0.0 <= value <= 1.0:
                raise SkipPlanError(f"{name} must lie between 0 and 1, got {value}")
        self.threshold = threshold
        self._target = target
        self._step = step
        self._smoothing = smoothing
        self._rate = target

    def begin(self) -> None:
        """Nothing to prepare."""

    def runs(self) -> bool:
        """Always: confidence costs a pass."""
        return True

    def proposes(self, confidence: float) -> bool:
        """Where it is confident enough."""
        return confidence >= self.threshold

    def observe(self, feedback: Feedback) -> None:
        """Move the threshold."""
        if feedback.drafted == 0:
            # Without this a threshold that nothing reaches would stay there for ever.
            self.threshold = max(0.0, self.threshold - self._step)
            return
        rate = feedback.accepted / feedback.drafted
        self._rate = self._smoothing * self._rate + (1.0 - self._smoothing) * rate
        wanted = self.threshold + (self._step if self._rate < self._target else -self._step)
        self.threshold = min(1.0, max(0.0, wanted))


@dataclass(frozen=True)
class PayingOptions:
    """How :class:`Paying` learns and when it gives up.

    Attributes:
        bins: of confidence, each with its own acceptance rate.
        prior: tokens that each bin starts with as if it had seen them, at the rate of its confidence.
        forget: weight that one verification leaves to the past.
        trials: steps with drafts before it may switch itself off.
        first_pause: steps without a draft when it does, of those that had room for one; doubled every time, up to
            ``longest_pause``.
        longest_pause: see ``first_pause``.
    """

    bins: int = 16
    prior: float = 1.0
    forget: float = 0.995
    trials: int = 4
    first_pause: int = 64
    longest_pause: int = 4096


class Paying:
    """Drafts while one more token is expected to pay, and not at all where drafting costs more than it brings.

    Learns how often tokens of each confidence are accepted. With the chance ``s`` that all drafts so far hold and
    ``n`` of them, a step is expected to emit ``1 + sum of s`` tokens in ``1 + n * cost`` plain steps; one more is worth
    its time if it adds more tokens per time than that. A batch counts as one step, judged when the next one begins, and
    steps in which nothing could be drafted (no room, no wish) do not count.

    Args:
        draft_cost: of a draft pass, in plain steps; None measures it.
        verify_cost: of one more token in a verification, in plain steps.
        options: how it learns.

    Raises:
        SkipPlanError: a negative cost, or no bins.
    """

    def __init__(
        self,
        draft_cost: float | None = None,
        verify_cost: float = 0.03,
        options: PayingOptions | None = None,
    ) -> None:
        self.options = options or PayingOptions()
        self._measures = draft_cost is None
        self._timings: deque[tuple[float, float]] = deque(maxlen=TIMINGS)
        draft_cost = FIRST_GUESS if draft_cost is None else draft_cost
        if (
            draft_cost < 0.0
            or verify_cost < 0.0
            or self.options.bins < 1
            or self.options.prior <= 0.0
        ):
            raise SkipPlanError(
                f"costs must be at least 0 plain steps, bins at least 1 and prior above 0, got {draft_cost}, "
                f"{verify_cost}, {self.options.bins} and {self.options.prior}"
            )
        self.draft_cost = draft_cost
        self.verify_cost = verify_cost
        bins = self.options.bins
        self._seen = np.zeros(bins)
        self._kept = np.zeros(bins)
        # Together one position: what was seen soon outweighs it.
        self._used = np.full(bins, 1.0 / bins)
        self._pause = 0
        self._next_pause = self.options.first_pause
        self._trials = self.options.trials
        self._gain = 0.0
        self._asked = False
        self._rows, self._step_gain = 0, 0.0
        self.begin()

    def timed(self, draft_seconds: float, verify_seconds: float) -> None:
        """How long a draft pass and a verification took; ignored if the cost was given."""
        if not self._measures or min(draft_seconds, verify_seconds) <= 0.0:
            return
        self._timings.append((draft_seconds, verify_seconds))
        # The first passes of a process are slow for reasons of their own.
        if len(self._timings) > 1:
            recent = np.median(list(self._timings)[1:], axis=0)
            self.draft_cost = float(recent[0] / recent[1])

    @property
    def paused(self) -> int:
        """Steps, of those with room for a draft, in which nothing will be drafted."""
        return self._pause

    def begin(self) -> None:
        """Nothing is drafted yet; the last step is judged, once, however many rows it had."""
        if self._rows:
            self._judge(self._step_gain / self._rows)
        self._rows, self._step_gain, self._asked = 0, 0.0, False
        self._survival = 1.0
        self._tokens = 1.0
        self._time = 1.0

    def runs(self) -> bool:
        """Whether a draft of average confidence would pay for its pass and its verification."""
        self._asked = True
        if self._pause > 0:
            return False
        if self._trials > 0 and self._time == 1.0:
            return True
        return self._pays(self._survival * self._average(), self.draft_cost + self.verify_cost)

    def proposes(self, confidence: float) -> bool:
        """Whether a draft of this confidence, whose pass is paid already, pays for its verification."""
        self._time += self.draft_cost
        self._used *= self.options.forget
        self._used[self._bin(confidence)] += 1.0
        survival = self._survival * float(self._rates()[self._bin(confidence)])
        # A trial whose first token is not verified would teach nothing.
        tries = self._trials > 0 and self._tokens == 1.0
        if not tries and not self._pays(survival, self.verify_cost):
            return False
        self._survival = survival
        self._tokens += survival
        self._time += self.verify_cost
        return True

    def observe(self, feedback: Feedback) -> None:
        """Learn from what was verified."""
        if not self._asked:  # nothing could be drafted, which says nothing about drafts
            return
        self._rows += 1
        self._step_gain += feedback.gained - (self._time - 1.0)
        if self._pause > 0:
            return
        self._seen *= self.options.forget
        self._kept *= self.options.forget
        # What lies behind the first rejection was never judged.
        for place, value in enumerate(feedback.confidences[: feedback.accepted + 1]):
            self._seen[self._bin(value)] += 1.0
            self._kept[self._bin(value)] += place < feedback.accepted

    def _judge(self, gain: float) -> None:
        """Tokens gained less time spent in this round of drafts; a round that loses ends in a pause.

        Args:
            gain: of one step, mean over its requests, since a pass for all delays each of them.
        """
        if self._pause > 0:
            self._pause -= 1
            if self._pause == 0:
                self._trials, self._gain = self.options.trials, 0.0
            return
        self._gain = self.options.forget * self._gain + gain
        if self._trials > 0:
            self._trials -= 1
            return
        # No pass at all means that drafting does not look worth a try; only another trial can tell.
        if self._gain < 0.0 or self._time == 1.0:
            self._pause = self._next_pause
            self._next_pause = min(2 * self._next_pause, self.options.longest_pause)
        else:
            self._next_pause = self.options.first_pause

    def _pays(self, tokens: float, time: float) -> bool:
        return tokens * self._time > self._tokens * time

    def _bin(self, confidence: float) -> int:
        return min(self.options.bins - 1, max(0, int(confidence * self.options.bins)))

    def _rates(self) -> NDArray[np.float64]:
        """Acceptance rate of each bin, float64 ``[bins]``."""
        bins, prior = self.options.bins, self.options.prior
        return (prior * (np.arange(bins) + 0.5) / bins + self._kept) / (prior + self._seen)

    def _average(self) -> float:
        """Acceptance to be expected of a position whose confidence is not known yet."""
        return float((self._rates() * self._used).sum() / self._used.sum())
