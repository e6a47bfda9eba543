"""What the governors beside vLLM's scheduler share: slots by request, a guard, and which of them run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specplug.adapters.common import host_logger
from specplug.adapters.vllm_v1 import host_faults, setup
from specplug.adapters.vllm_v1.metrics import Published
from specplug.control import options
from specplug.sources import DraftSources
from specplug.stats import SessionStats
from specplug.types import Capabilities, Context, Request

if TYPE_CHECKING:
    from specplug.control.goodput import GoodputController

METHOD = "specplug.adaptive"

_running: weakref.WeakSet[Any] = weakref.WeakSet()


def controller(
    control: Mapping[str, Any],
    context: Context,
    scheduler: Any,
    actions: tuple[int, ...] | None = None,
) -> GoodputController:
    """The controller beside a scheduler; its decisions can be read by ``specplug doctor --live``."""
    # Not with this module, which the plugin loads before vLLM registers its kernels: numba must not be there by then.
    from specplug.control.goodput import GoodputController

    config = getattr(scheduler, "vllm_config", None)
    in_engine = config is not None
    if in_engine and setup.on_cpu():
        host_faults.repair_registration(host_logger("vllm"))
    made = options.build(
        control,
        context,
        Capabilities(),
        captured=setup.captured_sizes(config) if in_engine else (),
        device="" if not in_engine or setup.on_cpu() else setup.device_name(),
        name=METHOD if in_engine else "",
        informed=False,
        actions=actions,
    )
    assert isinstance(made, GoodputController)
    return made


def attach(governor: Any) -> None:
    """A governor starts to work."""
    _running.add(governor)


def running() -> list[Any]:
    """The governors alive in this process, which is the engine core's."""
    return list(_running)


def request_of(scheduler: Any, request_id: str) -> Request:
    """What is known of a request in vLLM's scheduler: its temperature, and its cache salt as its namespace."""
    known = getattr(scheduler, "requests", {}).get(request_id)
    temperature = getattr(getattr(known, "sampling_params", None), "temperature", None)
    salt = getattr(known, "cache_salt", None)
    return Request(request_id, 0, temperature=float(temperature or 0.0), namespace=str(salt or ""))


def context_of(scheduler: Any, request_ids: Iterable[str]) -> int:
    """Tokens of these requests in the key-value cache, together; of those that the scheduler still has."""
    known = getattr(scheduler, "requests", {})
    return sum(
        int(getattr(known[request_id], "num_computed_tokens", 0))
        for request_id in request_ids
        if request_id in known
    )


class Account:
    """What a governor counts, as :class:`specplug.session.Session` does, and its way to ``/metrics``.

    Attributes:
        stats, sources, controller, proposer: as those of a session; there is no proposer of ours.
    """

    def __init__(self, controller: GoodputController, context: Context) -> None:
        self.controller = controller
        self.stats = SessionStats()
        self.proposer = object()
        self.sources = DraftSources(self.proposer, context)
        # It reads from a session no more than what is here.
        session: Any = self
        self._session = session
        self._published = Published.from_environment("adaptive", 0, session)

    def drafted(self, offered: Sequence[int], lengths: Sequence[int]) -> None:
        """Lengths of the drafts of a step, before and after they were cut."""
        self.stats.count_drafts(offered, lengths)

    def publish(self, nanoseconds: int) -> None:
        """A step took so long of our time."""
        if self._published is not None:
            self._published.step(nanoseconds)
            self._published.update(self._session, 0, ended=False)


class Slots:
    """A slot for every request of the engine, up to a number."""

    def __init__(self, most: int) -> None:
        self._of: dict[str, int] = {}
        self._free = list(range(most))

    def of(self, request_id: str) -> int | None:
        """The slot of a request; None if it has none."""
        return self._of.get(request_id)

    def take(self, request_id: str) -> int | None:
        """A slot for a new request; None if all are taken."""
        if not self._free:
            return None
        self._of[request_id] = slot = self._free.pop()
        return slot

    def meet(self, request_id: str, begin: Callable[[int, str], None]) -> int | None:
        """The slot of a request; a new one gets one, with which ``begin`` is called. None if all are taken."""
        slot = self.of(request_id)
        if slot is None:
            slot = self.take(request_id)
            if slot is not None:
                begin(slot, request_id)
        return slot

    def release(self, request_ids: Iterable[str]) -> None:
        """Requests ended."""
        for request_id in request_ids:
            if request_id in self._of:
                self._free.append(self._of.pop(request_id))

    def __len__(self) -> int:
        return len(self._of)


class Guard:
    """Calls methods of a governor; after a fault nothing is called any more, and that is said once.

    Args:
        governor: what is guarded.
        instead: what happens from then on, for people.
    """

    def __init__(self, governor: Any, instead: str) -> None:
        self.governor = governor
        self.failed = False
        self._instead = instead
        self._log = host_logger("vllm")

    def __call__(self, method: str, *arguments: Any) -> Any:
        """The result, or None after a fault."""
        if self.failed:
            return None
        try:
            return getattr(self.governor, method)(*arguments)
        except Exception:  # noqa: BLE001  the scheduler must go on, whatever fails in here
            self.failed = True
            self._log.exception(
                "%s failed in %s(); answers are not affected, %s", METHOD, method, self._instead
            )
            return None
