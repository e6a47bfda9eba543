"""What drafting has gained so far, against the engine without specplug: for people, it decides nothing.

An engine that waits for drafts before every step can be slower even where nothing is drafted: it cannot prepare a step
while the one before runs (async scheduling). That loss is the same in every step, so no draft length changes it; but it
decides whether speculation is worth having at all. It is measured by comparing the engine without a method to one
with the controller ``fixed`` and length 0, as ``benchmarks/controller_vllm.py`` does; the option is ``async_loss_ms``.
"""

from __future__ import annotations

import logging

log = logging.getLogger("specplug")

#: Steps before a verdict, and the gain below which it is said.
ENOUGH, POOR = 5000, 0.98


class Ledger:
    """Sums over steps.

    Args:
        loss: seconds that a plain step of this engine takes longer than one of the engine without specplug.
    """

    def __init__(self, loss: float = 0.0) -> None:
        self.loss = loss
        self.steps = 0
        self._spent = self._plain = 0.0
        self._said = False

    def add(self, rows: int, emitted: int, seconds: float, plain: float) -> None:
        """A step of ``rows`` requests emitted so many tokens in ``seconds``; a plain one would take ``plain``."""
        self.steps += 1
        self._spent += seconds
        self._plain += emitted / rows * max(0.0, plain - self.loss)
        if not self._said and self.steps >= ENOUGH and self.gain < POOR:
            self._said = True
            log.warning(
                "specplug: over %d steps, speculation was %.2f times as fast as the engine without it would have been; "
                "for this traffic on this machine, leave it out",
                self.steps,
                self.gain,
            )

    @property
    def gain(self) -> float:
        """Speed to that of the engine without specplug, by the cost model; 1 before the first step."""
        return self._plain / self._spent if self._spent else 1.0
