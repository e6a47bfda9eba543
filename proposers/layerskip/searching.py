"""Which layers drafts leave out, found while an engine serves: a policy, and how long it may ask the model."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from specplug.layers.plan import Plan
from specplug.layers.policy import BatchExecutor, Feedback, LayerPolicy
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import ConfLayers, ConfLayersOptions
from specplug.proposers.layerskip.early_exit import Fixed
from specplug.proposers.layerskip.swift import Swift, SwiftOptions

#: Requests of a step that are looked at for one with enough text in its last block.
CANDIDATES = 4
#: From one call to the next, in seconds, no more than this is earned: what takes longer waited for something else.
LONGEST_STEP = 5.0
_NOTHING = Feedback((), 0)


def _swift(layers: int, ratio: float) -> LayerPolicy:
    # Never good enough: with many short texts some set has matched all of one by chance soon.
    return Swift(layers, SwiftOptions(ratio=ratio, good_enough=2.0))


def _clasp(layers: int, ratio: float) -> LayerPolicy:
    return Clasp(layers, min(layers - 1, max(1, round(ratio * layers))), interval=1)


def _conflayers(layers: int, ratio: float) -> LayerPolicy:
    return ConfLayers(layers, ConfLayersOptions(interval=1))


#: By the name that users write.
POLICIES: dict[str, Callable[[int, float], LayerPolicy]] = {
    "swift": _swift,
    "clasp": _clasp,
    "conflayers": _conflayers,
}


class Search:
    """A policy that asks an engine's model about requests that are being served, within a share of the time.

    Args:
        policy: any.
        share: what its questions may take, in parts of the time of the steps. The first may be asked at once, and is
            paid for afterwards.

    Attributes:
        looks: times that the policy was let ask.
        seconds: spent on it.
    """

    def __init__(self, policy: LayerPolicy, share: float) -> None:
        self.policy = policy
        self._share = share
        self._credit = 0.0
        self._turn = 0
        self._last = time.perf_counter()
        self.looks = 0
        self.seconds = 0.0

    @classmethod
    def fixed(cls, plan: Plan) -> Search:
        """Nothing to find."""
        return cls(Fixed(plan), 0.0)

    def plan(self) -> Plan | None:
        """For the next draft; None while the policy would run everything, which cannot pay."""
        plan = self.policy.plan()
        return plan if plan.skips else None

    def look(self, executor: BatchExecutor, request_ids: Collection[str]) -> None:
        """Once per step: let the policy ask about one of its requests, if there is time for it."""
        began = time.perf_counter()
        self._credit += self._share * min(began - self._last, LONGEST_STEP)
        self._last = began
        if self._share <= 0.0 or self._credit < 0.0:  # or nothing to find
            return
        names = sorted(request_ids)
        for _ in range(min(CANDIDATES, len(names))):
            self._turn += 1
            probe = executor.probe(names[self._turn % len(names)])
            if probe is not None:
                self.policy.observe(_NOTHING, probe)
                self.looks += 1
                break
        self._last = time.perf_counter()
        self.seconds += self._last - began
        # What is left of an idle time is not saved up.
        self._credit = -(self._last - began)
