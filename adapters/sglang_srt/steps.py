"""How long decode steps take, for controllers that want to know."""

from __future__ import annotations

from typing import Any

from specplug.adapters.common import host_logger
from specplug.control.cost import StepFacts
from specplug.session import Session


class StepClock:
    """Times decode steps from the start of one to the start of the next.

    On an accelerator the host runs ahead, so that nothing shorter would say how long the device took. A step followed
    by a prefill is not timed: requests arrive then, and the time before may have been spent waiting for them.
    """

    def __init__(self) -> None:
        self.broken = False
        self._started = 0
        self._facts: StepFacts | None = None

    def begin(self, now: int, session: Session | None) -> None:
        """A decode step begins at ``now`` (nanoseconds); tell the controller of the one before."""
        facts, self._facts = self._facts, None
        timed = None if session is None else getattr(session.controller, "timed", None)
        if facts is not None and timed is not None and not self.broken:
            try:
                timed(facts._replace(seconds=(now - self._started) / 1e9))
            except Exception:  # noqa: BLE001  a controller that fails here learns nothing more; requests go on
                self.broken = True
                host_logger("sglang").exception("specplug: the controller could not take a time")
        self._started = now

    def shape(self, rows: int, width: int, context: int, host: int) -> None:
        """What this step verifies: padding is computed, so it counts. ``host`` nanoseconds were ours."""
        self._facts = StepFacts(0.0, rows * width, rows, context, host=host / 1e9)

    def interrupt(self) -> None:
        """The next decode step does not follow at once."""
        self._facts = None


def controller_facts(session: Session | None) -> dict[str, Any]:
    """What a controller reports of itself, or its name."""
    if session is None:
        return {}
    about = getattr(session.controller, "as_dict", None)
    return {"controller": type(session.controller).__name__} if about is None else about()
