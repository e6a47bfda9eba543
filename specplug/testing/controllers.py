"""Checks of controllers: limits, edges, recovery, and that the law of the output is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specplug.errors import SettingsError, did_you_mean
from specplug.protocols import Controller, TrimmingController
from specplug.testing.lawcheck import check_random_law
from specplug.testing.properties import explore_examples
from specplug.testing.report import ConformanceError, Outcome, Report
from specplug.testing.toys import ConstantProposer, CopyProposer
from specplug.testing.watch import PATTERN, ContractError
from specplug.types import LENGTH_DTYPE, Capabilities, IntArray, ProbArray, Request

ControllerFactory = Callable[[], Controller]

#: Steps of a stretch in which every draft is rejected, or accepted, in the check of recovery.
STRETCH = 300


class WatchedController:
    """Wraps a controller; every call is held against the protocol, and the controller satisfies it itself."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.trims = bool(getattr(controller, "trims", False))
        self._name = type(controller).__name__

    def begin(self, slot: int, request: Request) -> None:
        """Passed on to a controller that has it."""
        if hasattr(self.controller, "begin"):
            self.controller.begin(slot, request)

    def trim(self, slots: IntArray, survival: ProbArray, lengths: IntArray) -> None:
        """As the protocol says; raises :class:`ContractError` where a draft grows or an input changes."""
        assert isinstance(self.controller, TrimmingController)
        given, before = (slots.copy(), survival.copy()), lengths.copy()
        self.controller.trim(given[0], given[1], lengths)
        self._unchanged("trim", given, (slots, survival))
        for row, (length, offered) in enumerate(
            zip(lengths.tolist(), before.tolist(), strict=True)
        ):
            if not 0 <= length <= offered:
                raise ContractError(
                    f"{self._name}.trim, row {row} (slot {slots[row]}): length {length}, expected 0 to {offered}"
                )

    def compare(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        """As the protocol says."""
        assert isinstance(self.controller, TrimmingController)
        given = slots.copy(), tested.copy(), agreed.copy()
        self.controller.compare(*given)
        self._unchanged("compare", given, (slots, tested, agreed))

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """As the protocol says; raises :class:`ContractError` where the controller does not keep to it."""
        outer = np.full(len(slots) + 2, PATTERN, LENGTH_DTYPE)
        given = slots.copy(), limits.copy()
        inner = outer[1:-1]
        inner[:] = 0
        self.controller.plan(given[0], given[1], inner)
        if outer[0] != PATTERN or outer[-1] != PATTERN:
            raise ContractError(f"{self._name}.plan wrote outside of its buffer")
        self._unchanged("plan", given, (slots, limits))
        for row, (ceiling, limit) in enumerate(zip(inner.tolist(), limits.tolist(), strict=True)):
            if not 0 <= ceiling <= limit:
                raise ContractError(
                    f"{self._name}.plan, row {row} (slot {slots[row]}): ceiling {ceiling}, expected 0 to {limit}"
                )
        ceilings[:] = inner

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """As the protocol says."""
        given = slots.copy(), drafted.copy(), accepted.copy()
        self.controller.observe(*given)
        self._unchanged("observe", given, (slots, drafted, accepted))

    def _unchanged(
        self, method: str, now: Sequence[NDArray[Any]], before: Sequence[NDArray[Any]]
    ) -> None:
        for index, (a, b) in enumerate(zip(now, before, strict=True)):
            if not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                raise ContractError(
                    f"{self._name}.{method} changed its argument number {index + 1}"
                )


def check_controller(
    factory: ControllerFactory,
    *,
    max_examples: int = 50,
    enumerate_law: bool = True,
    only: Sequence[str] | None = None,
) -> Report:
    """Hold a controller against everything that the package demands of one.

    Args:
        factory: builds a fresh controller.
        max_examples: random examples per property.
        enumerate_law: False for a controller that looks at a clock: its paths cannot be replayed.
        only: names of the checks to run; None runs all.

    Returns:
        The report.

    Raises:
        ConformanceError: a check failed.
        SettingsError: ``only`` names a check that does not exist.
    """
    outcomes = []
    for name in CONTROLLER_CHECKS if only is None else only:
        if name not in CONTROLLER_CHECKS:
            raise SettingsError(
                f"there is no check {name!r}; {did_you_mean(name, CONTROLLER_CHECKS)}"
            )
        if name == "output_law" and not enumerate_law:
            outcomes.append(Outcome(name, "skipped", "enumerate_law=False"))
            continue
        try:
            CONTROLLER_CHECKS[name](factory, max_examples)
        except Exception as error:  # noqa: BLE001  whatever a third party's controller raises is the finding
            notes = "\n".join(getattr(error, "__notes__", ()))
            message = f"{type(error).__name__}: {error}\n{notes}".rstrip()
            outcomes.append(Outcome(name, "failed", message))
        else:
            outcomes.append(Outcome(name, "passed"))
    report = Report(getattr(factory, "__qualname__", repr(factory)), tuple(outcomes))
    if report.failures:
        raise ConformanceError(report)
    return report


def _array(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, LENGTH_DTYPE)


def _limits(factory: ControllerFactory, examples: int) -> None:
    """Ceilings stay within their limits, whatever was accepted; batches may be empty; inputs are left alone."""
    rows = st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 9), st.floats(0.0, 1.0)),
        max_size=4,
        unique_by=lambda row: row[0],
    )

    @explore_examples(examples)
    @given(steps=st.lists(rows, max_size=12))
    def within(steps: list[list[tuple[int, int, float]]]) -> None:
        controller = WatchedController(factory())
        for step in steps:
            slots, limits = _array([r[0] for r in step]), _array([r[1] for r in step])
            _one_step(controller, slots, limits, [r[2] for r in step])

    within()


def _one_step(
    controller: WatchedController, slots: IntArray, limits: IntArray, shares: Sequence[float]
) -> IntArray:
    """Lengths of one step in which all is offered with even odds and that share of every offer is right."""
    lengths = np.zeros(len(slots), LENGTH_DTYPE)
    controller.plan(slots, limits, lengths)
    if controller.trims:
        offered = lengths.copy()
        controller.trim(slots, np.tile(0.5 ** np.arange(1, 10), (len(slots), 1)), lengths)
        right = (offered * np.array(shares)).astype(LENGTH_DTYPE)
        agreed = np.minimum(right, lengths + 1)
        tested = np.minimum(agreed + 1, np.minimum(offered, lengths + 1))
        asked = np.flatnonzero(offered)
        if len(asked):
            controller.compare(slots[asked], tested[asked].astype(LENGTH_DTYPE), agreed[asked])
    drafted = np.flatnonzero(lengths)
    if len(drafted):
        accepted = np.minimum(lengths, (limits * np.array(shares)).astype(LENGTH_DTYPE))
        controller.observe(slots[drafted], lengths[drafted], accepted[drafted])
    return lengths


def _serve(controller: WatchedController, share: float, steps: int) -> Iterator[int]:
    """The draft lengths of one request of which that share of every draft is accepted."""
    for _ in range(steps):
        yield int(_one_step(controller, _array([0]), _array([8]), [share])[0])


def _recovery(factory: ControllerFactory, examples: int) -> None:
    """After a long stretch of rejected drafts, a stretch of accepted ones brings the draft length back."""
    controller = WatchedController(factory())
    before = max(_serve(controller, 1.0, STRETCH))
    for _ in _serve(controller, 0.0, STRETCH):
        pass
    after = max(_serve(controller, 1.0, STRETCH))
    if after < before / 2:
        raise ContractError(
            f"the ceiling was {before} while all drafts were accepted, and is no more than {after} in "
            f"{STRETCH} such steps after {STRETCH} steps of rejected drafts; a length that can only fall needs a probe"
        )


def _starvation(factory: ControllerFactory, examples: int) -> None:
    """A request whose drafts are all accepted is drafted for, whatever the others do."""
    controller = WatchedController(factory())
    seen = 0
    for _ in range(STRETCH):
        lengths = _one_step(controller, _array([0, 1, 2]), _array([8, 8, 8]), [1.0, 0.0, 0.0])
        seen = max(seen, int(lengths[0]))
    if not seen:
        raise ContractError(f"a request whose drafts are all accepted got none in {STRETCH} steps")


def _output_law(factory: ControllerFactory, examples: int) -> None:
    """With the controller's draft lengths, the exact law of the output is that of plain decoding."""

    @explore_examples(examples)
    @given(data=st.data(), toy=st.sampled_from([CopyProposer, ConstantProposer]))
    def kept(data: st.DataObject, toy: type[CopyProposer]) -> None:
        check_random_law(data, toy, Capabilities(), lambda: WatchedController(factory()))

    kept()


#: All checks of controllers, by name.
CONTROLLER_CHECKS: dict[str, Callable[[ControllerFactory, int], None]] = {
    "limits": _limits,
    "recovery": _recovery,
    "starvation": _starvation,
    "output_law": _output_law,
}
