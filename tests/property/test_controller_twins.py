"""The kernels of the controller are their twins, and with either the controller decides the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

from specplug.control import acceptance, plan
from specplug.control.acceptance import AcceptanceModel
from specplug.control.cost import CostModel, StepFacts
from specplug.control.goodput import GoodputController
from specplug.control.options import GoodputSettings
from specplug.kernels import forecast, serving, spending, step_time
from specplug.reference import forecast as slow_forecast
from specplug.reference import serving as slow_serving
from specplug.reference import spending as slow_spending
from specplug.reference import step_time as slow_step_time
from specplug.types import LENGTH_DTYPE, Context, Request

Floats = NDArray[np.float64]
seeds = st.integers(0, 1 << 32)


def drafts(coins: np.random.Generator, rows: int, width: int) -> Floats:
    """Survival as proposers write it, and sometimes nonsense."""
    survival: Floats = np.cumprod(coins.random((rows, width)) ** coins.choice([0.1, 1.0]), axis=1)
    for nonsense in (np.nan, np.inf, 0.0, -1.0):
        if coins.random() < 0.2:
            survival[coins.random((rows, width)) < 0.2] = nonsense
    return survival


@settings(max_examples=40)
@given(seed=seeds, informed=st.booleans(), told_apart=st.booleans())
def test_what_is_believed_is_what_the_twin_believes(
    seed: int, informed: bool, told_apart: bool
) -> None:
    coins = np.random.default_rng(seed)
    slots, width = int(coins.integers(1, 6)), int(coins.integers(1, 24))
    model = AcceptanceModel(slots, width, informed=informed)
    if told_apart:
        model.know_sources(3, coins.integers(0, 5, (slots, width)).astype(np.uint8))
    for slot in range(slots):
        model.begin(slot, Request("r", 1, namespace=str(coins.integers(3))))
    slow = (model._beliefs.copy(), model.chances.copy())
    fixed = (model._marks, model._sources)
    for _ in range(4):
        rows = int(coins.integers(1, slots + 1))
        chosen = coins.permutation(slots)[:rows].astype(LENGTH_DTYPE)
        offered = coins.integers(0, width + 1, rows).astype(LENGTH_DTYPE)
        claims = drafts(coins, rows, width)
        found = model.read(chosen, claims, offered)
        assert found == slow_forecast.read_chances(claims, chosen, offered, slow[1])
        assert (model.chances == slow[1]).all()
        survival = model.forecast(chosen, offered, found[1])
        expected = np.empty_like(survival)
        slow_forecast.forecast(slow[0], *fixed, chosen, offered, slow[1], expected)
        assert survival == pytest.approx(expected, rel=1e-9, abs=0)
        agreed = coins.integers(0, width + 1, rows).astype(LENGTH_DTYPE)
        tested = np.minimum(agreed + coins.integers(0, 2, rows), width).astype(LENGTH_DTYPE)
        tested[coins.random(rows) < 0.3] = 0
        model.learn(chosen, tested, agreed)
        slow_forecast.learn_outcomes(slow[0], *fixed, chosen, slow[1], tested, agreed)
        assert model._beliefs[:, :4] == pytest.approx(slow[0][:, :4], rel=1e-9, abs=1e-12)
    assert not model._beliefs[slots:, 3:].any(), "sums of a call are cleared"


@given(
    seed=seeds,
    latency=st.booleans(),
    slope=st.sampled_from([0.0, 1e-4, 0.01, 0.3]),
    stairs=st.sampled_from([1, 8]),
    margin=st.sampled_from([0.0, 0.01, 0.5]),
    ties=st.booleans(),
)
def test_a_plan_is_that_of_sorting_everything(
    seed: int, latency: bool, slope: float, stairs: int, margin: float, ties: bool
) -> None:
    coins = np.random.default_rng(seed)
    shape = int(coins.choice([0, 1, 3, 40, 256])), int(coins.choice([1, 4, 16]))
    survival = np.cumprod(coins.random(shape) ** coins.choice([0.01, 0.3, 3.0]), axis=1)
    if ties:
        survival = np.round(survival, 2)
    survival[np.arange(shape[1]) >= coins.integers(0, shape[1] + 1, shape[0])[:, None]] = 0.0
    most = int(coins.integers(0, survival.size + 10))
    costs = 1.0 + slope * np.ceil(np.arange(most + 1) / stairs) * stairs
    most_cost = float(coins.choice([np.inf, 1.05, 2.0]))
    gains = survival.copy()
    if latency:
        spending.latency_gains(survival, gains)
        expected = np.empty_like(gains)
        slow_spending.latency_gains(survival, expected)
        assert (gains == expected).all()
    found = []
    for module in (spending, slow_spending):
        lengths, order, ends = plan._room(gains)
        both = (lengths, order, ends)
        best = module.spend(gains, costs, margin, latency, most_cost, *both)
        ends[:] = 0
        beside = np.empty_like(lengths)
        found.append(
            (lengths, best, module.spend_at_rate(gains, costs, 1.3, beside, *both[1:]), beside)
        )
    for fast, slow in zip(*found, strict=True):
        np.testing.assert_array_equal(fast, slow)


@given(seed=seeds)
def test_the_arithmetic_of_step_times_is_that_of_the_twin(seed: int) -> None:
    coins = np.random.default_rng(seed)
    inner = 2.0 ** np.arange(1, 14)
    size = len(inner) + 5
    theta, root = coins.standard_normal(size), coins.standard_normal((size, size))
    a, b, x = root @ root.T, coins.standard_normal(size), np.zeros(size)
    x[-3:] = coins.random(3)
    slow = [a.copy(), b.copy(), x.copy()]
    tokens = float(coins.integers(1, 1 << 15))
    found = step_time.expect(tokens, inner, theta, a, x)
    assert found == pytest.approx(
        slow_step_time.expect(tokens, inner, theta, a.copy(), slow[2]), rel=1e-9, abs=1e-3
    )
    assert (x == slow[2]).all()
    step_time.absorb(a, b, x, 1.5, 0.3, 0.998)
    slow_step_time.absorb(*slow, 1.5, 0.3, 0.998)
    assert a == pytest.approx(slow[0], rel=1e-12)
    assert b == pytest.approx(slow[1], rel=1e-12)


@settings(max_examples=40)
@given(seed=seeds)
def test_a_step_of_the_simulated_server_is_that_of_the_twin(seed: int) -> None:
    coins = np.random.default_rng(seed)
    count, width, positions = int(coins.integers(1, 6)), int(coins.integers(1, 5)), 60
    running = np.zeros((serving.FIELDS, count + 1), np.int64)
    running[serving.SLOT] = coins.permutation(count + 1)
    running[serving.END] = coins.integers(1, positions + 1, count + 1)
    running[serving.POSITION] = coins.integers(0, running[serving.END])
    running[serving.PROMPT] = coins.integers(0, 9, count + 1)
    offered = coins.integers(0, width + 1, positions).astype(np.int32)
    right = np.minimum(coins.integers(0, width + 1, positions), offered).astype(np.int16)
    claims = coins.random((positions, width)).astype(np.float32)
    ceilings, cut = coins.integers(0, width + 1, (2, count)).astype(np.int32)
    found = []
    for module in (serving, slow_serving):
        table, slots, limits, lengths = running.copy(), *np.zeros((3, count), np.int32)
        survival, told, totals = (
            np.zeros((count, width)),
            np.zeros((6, count), np.int32),
            np.ones(6, int),
        )
        module.ask(table, count, width, slots, limits)
        most = np.minimum(ceilings, limits)
        module.offer(table, count, offered, claims, most, lengths, survival)
        np.minimum(lengths, cut, out=lengths)
        sums = module.settle(table, count, lengths)
        module.verify(table, count, right, told, totals)
        found.append((table, slots, limits, lengths, survival, sums, told, totals))
    for fast, slow in zip(*found, strict=True):
        np.testing.assert_array_equal(fast, slow)


def serve(
    seed: int, steps: int, lead: list[tuple[list[int], list[float]]] | None = None
) -> list[tuple[list[int], list[float]]]:
    """A server whose requests, prompts and step times are drawn: lengths of each step, and what the tokens promise.

    With ``lead``, of another run, its lengths are what the engine verifies, so that both see the same.
    """
    coins = np.random.default_rng(seed)
    rows, width = int(coins.choice([1, 8, 40])), int(coins.choice([4, 16]))
    trims = bool(coins.random() < 0.6)
    options = GoodputSettings(mode="latency" if coins.random() < 0.5 else "throughput")
    captured = range(1, 600, 8) if coins.random() < 0.3 else ()
    controller = GoodputController(
        Context(100, 8192, width, max_requests=rows),
        options,
        cost=CostModel(captured),
        trims=trims,
    )
    slope, quality, found = float(coins.choice([1e-5, 2e-4])), coins.random(rows), []
    for step in range(steps):
        slots = coins.permutation(rows)[: int(coins.integers(1, rows + 1))].astype(LENGTH_DTYPE)
        if coins.random() < 0.1:
            request = Request("r", 1, namespace=str(coins.integers(3)), temperature=coins.random())
            controller.begin(int(slots[0]), request)
        shape = (len(slots), width)
        chances = np.clip(quality[slots, None] + 0.3 * coins.standard_normal(shape), 0.01, 0.999)
        survival = np.cumprod(chances, axis=1)
        right = np.append(coins.random(shape) >= chances, np.ones((len(slots), 1), bool), axis=1)
        limits, ceilings = np.full(len(slots), width, LENGTH_DTYPE), np.zeros_like(slots)
        controller.plan(slots, limits, ceilings)
        offered = np.minimum(coins.integers(0, width + 1, len(slots)), ceilings).astype(
            LENGTH_DTYPE
        )
        lengths = (offered if trims else ceilings).copy()
        if trims:
            controller.trim(slots, survival, lengths)
        worth = controller.acceptance.forecast(slots, lengths, width).sum(axis=1)
        found.append((lengths.tolist(), worth.tolist()))
        if lead is not None:
            lengths = np.array(lead[step][0], LENGTH_DTYPE)
        hits = np.minimum(right.argmax(axis=1), lengths).astype(LENGTH_DTYPE)
        if trims:
            agreed = np.minimum(np.minimum(right.argmax(axis=1), offered), hits + 1)
            tested = np.minimum(agreed + 1, np.minimum(offered, hits + 1))
            controller.compare(slots, tested.astype(LENGTH_DTYPE), agreed.astype(LENGTH_DTYPE))
        controller.observe(slots, lengths, hits)
        tokens = len(slots) + int(lengths.sum())
        seconds = (0.01 + slope * tokens) * float(coins.lognormal(0, 0.05))
        after = int(coins.integers(1, 300)) if coins.random() < 0.1 else 0
        controller.timed(StepFacts(seconds, tokens, len(slots), 900 * rows, next_prefill=after))
    return found


@pytest.mark.parametrize("seed", range(16))
def test_with_the_twins_it_decides_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Later the rounding of the fits, in another order, may have grown enough to turn a tie.
    fast = serve(seed, 30)
    swap_in_the_twins(monkeypatch)
    slow = serve(seed, 30, fast)
    assert sum(sum(lengths) for lengths, _ in fast) > 0
    for (lengths, worth), (expected, promised) in zip(fast, slow, strict=True):
        if lengths != expected:  # by tokens whose worth vanishes in the rounding of the sum
            assert worth == pytest.approx(promised, abs=1e-9)


def swap_in_the_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Both:
        """The constants of a kernel module with the functions of its twin."""

        def __init__(self, kernel: ModuleType, twin: ModuleType) -> None:
            self.kernel, self.twin = kernel, twin

        def __getattr__(self, name: str) -> Any:
            return getattr(self.twin, name) if name.islower() else getattr(self.kernel, name)

    monkeypatch.setattr(acceptance, "kernel", Both(forecast, slow_forecast))
    monkeypatch.setattr(plan, "kernel", Both(spending, slow_spending))
    monkeypatch.setattr("specplug.kernels.step_time", slow_step_time)


def signatures() -> dict[str, int]:
    """For how many forms of its arguments each public kernel is compiled in this process."""
    return {
        name: len(kernel.signatures)
        for module in (forecast, spending, step_time)
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher) and name[0] != "_"
    }


def odd_forms() -> None:
    """What proposers of others may hand over: read-only, strided, of another type."""
    model = AcceptanceModel(2, 4)
    frozen = np.arange(2, dtype=np.int64)
    frozen.flags.writeable = False
    claims = np.full((2, 8), 0.5)[:, ::2]
    claims.flags.writeable = False
    model.read(frozen, claims, frozen)
    model.learn(frozen, frozen, frozen)
    plan.spend(claims, np.ones(9, np.float32), latency=True)
    plan.spend_at_rate(claims, np.ones(9, np.float32), 1.0)
    for sources in (np.zeros((4, 2), np.uint8).T, np.zeros((2, 8), np.uint8)[:, ::2]):
        with pytest.raises(ValueError, match="contiguous, writable uint8"):
            model.know_sources(2, sources)


@pytest.mark.compiled
def test_nothing_is_compiled_once_a_controller_is_built() -> None:
    """The first plan for latency waited for the compiler. In a process of its own, where nothing ran before."""
    code = (
        "import test_controller_twins as twins\n"
        "from specplug.types import Context\n"
        "twins.GoodputController(Context(9, 64, 4, 2))\n"
        "assert set(twins.signatures().values()) == {1}, twins.signatures()\n"
        "for seed in range(6): twins.serve(seed, 12)\n"
        "twins.odd_forms()\n"
        "assert set(twins.signatures().values()) == {1}, twins.signatures()\n"
    )
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_many_gains_at_the_floor_are_not_sorted_in_vain() -> None:
    """All chances at the floor fill one bucket; where no plan pays they are left as they are, as in the twin."""
    for rate in (1e-9, 1e-4, 0.5):
        survival = np.full((256, 16), 4e-4) * np.linspace(1.0, 0.9, 256)[:, None]
        costs = 1.0 + rate * np.arange(4097)
        found = plan.spend(survival, costs)
        lengths, order, ends = plan._room(survival)
        expected = slow_spending.spend(survival, costs, 0.0, False, np.inf, lengths, order, ends)
        assert (found.total, found.ratio) == (expected[0], expected[2])
        assert (found.lengths == lengths).all()
    assert found.total == 0


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    """Compiled code would read what lies behind them."""
    model = AcceptanceModel(3, 4)
    one, two = np.ones(1, LENGTH_DTYPE), np.ones(2, LENGTH_DTYPE)
    with pytest.raises(ValueError, match="got 1 for 2 slots"):
        model.read(two, np.ones((2, 4)), one)
    with pytest.raises(ValueError, match="2 slots and 1 rows"):
        model.read(two, np.ones((1, 4)), two)
    with pytest.raises(ValueError, match="at most 4"):
        model.forecast(one, one, 5)
    for tested, agreed in ((one, two), (two, one)):
        with pytest.raises(ValueError, match="got 1 for 2 slots"):
            model.learn(two, tested, agreed)
    with pytest.raises(ValueError, match="at least"):
        model.know_sources(2, np.zeros((1, 4), np.uint8))
    before = model._beliefs.copy()
    for slot in (-1, 3):
        with pytest.raises(IndexError, match=r"expected one of 0 \.\. 2"):
            model.begin(slot, Request("r", 1))
    assert (model._beliefs == before).all()
