"""The table for one GPU: what it shows where engines start slowly or not at all. Time is made up."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVING = 2.0


@pytest.fixture(scope="module")
def check() -> Iterator[Any]:
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location(
        "specplug_gpu_check", ROOT / "benchmarks" / "gpu_check.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    del sys.modules[spec.name]


class Metrics:
    """Counters of an engine that does nothing."""

    def __sub__(self, other: Metrics) -> Any:
        return SimpleNamespace(
            draft_tokens=1, accepted_tokens=1, drafted_steps=1, mal_per_drafted_step=1.0
        )


Run = Callable[..., tuple[int, str, float]]


@pytest.fixture
def run(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Run:
    """Run it; exit status, what it printed, and how long it took."""
    clock = [0.0]
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    origin = {"command": "", "commit": "", "versions": {}}
    monkeypatch.setattr(check, "provenance", lambda *_: origin)

    class Engine:
        def __init__(self, arm: Any) -> None:
            self.arm = arm

        def info(self) -> dict[str, Any]:
            return {"async_scheduling": self.arm.asynchronous}

        def metrics(self) -> Metrics:
            return Metrics()

        def generate(self, prompts: list[Any], params: Any) -> Any:
            clock[0] += SERVING
            results = [SimpleNamespace(only=SimpleNamespace(token_ids=[1])) for _ in prompts]
            return SimpleNamespace(
                seconds=SERVING, generated_tokens=10, engine_steps=5, results=results
            )

        def close(self) -> None:
            """Nothing."""

    def go(
        starting: float, refused: str | None = None, *more: str, first: float = 0.0
    ) -> tuple[int, str, float]:
        def start(arm: Any, chosen: Any) -> Engine:
            clock[0] += starting if clock[0] else max(first, starting)
            if refused is not None and refused in arm.label:
                raise ValueError("Value error, it does not start")
            return Engine(arm)

        monkeypatch.setattr(check, "start", start)
        given = ["gpu_check", "model", "--logs", str(tmp_path), *(more or ["--profile"])]
        monkeypatch.setattr(sys, "argv", given)
        clock[0] = 0.0
        code = check.main()
        return code, capsys.readouterr().out, clock[0]

    return go


def cells(out: str) -> dict[str, int]:
    """Lines of the table by arm."""
    found: dict[str, int] = {}
    for line in out.splitlines():
        if line.startswith(("copying", "chat")):
            label = line[19:57].strip()
            found[label] = found.get(label, 0) + 1
    return found


@pytest.mark.parametrize("starting", [5.0, 30.0, 45.0, 300.0])
def test_slow_starts_leave_no_empty_table(check: Any, run: Run, starting: float) -> None:
    code, out, took = run(starting)
    assert code == 0
    found = cells(out)
    assert set(found) == {arm.label for arm in check.arms()}
    assert min(found.values()) >= 2, "the first size, both texts"
    base = check.arms()[0].label
    assert f"to {base}" in out
    assert max(found.values()) == found[base], "a size that nothing is compared with"
    if starting < 10:
        assert set(found.values()) == {10}
    # Slower than that, starts and what every arm serves at least take ten minutes.
    if starting < 45:
        assert took <= 600 + 2 * SERVING


def test_a_first_start_that_compiles_leaves_time_for_large_batches(check: Any, run: Run) -> None:
    """The others were expected to take as long, so that one request at a time was all that anything was compared at."""
    _, out, took = run(25.0, None, first=80.0)
    assert min(cells(out).values()) >= 8
    assert took <= 600 + 2 * SERVING


def test_an_engine_that_dies_in_mid_flight_keeps_its_cells_and_the_others_go_on(
    check: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = check.serve

    def dies(engine: Any, arm: Any, base: Any, chosen: Any, deadline: float) -> None:
        if arm.name == "suffix V1":
            chosen = SimpleNamespace(**{**vars(chosen), "sizes": chosen.sizes[:2]})
        serve(engine, arm, base, chosen, deadline)
        if arm.name == "suffix V1":
            raise OSError("it died while answering")

    monkeypatch.setattr(check, "serve", dies)
    code, out, _ = run(5.0)
    assert code == 0
    found = cells(out)
    assert found.pop("suffix V1, async on") == found.pop("suffix V1, async off") == 4
    assert set(found.values()) == {10}
    assert out.count("ended after 4 cells: suffix V1") == 2
    assert out.count("it died while answering") == 2


def test_tokens_accepted_behind_the_end_of_an_answer_are_no_steps_less(check: Any) -> None:
    """Sixteen tokens of which sixteen were accepted were said to have come one per step."""
    for accepted, drafted_steps, steps in ((16, 2, 3), (12, 3, 4), (0, 0, 16)):
        gained = SimpleNamespace(accepted_tokens=accepted, drafted_steps=drafted_steps)
        assert check.steps_of(16, 1, gained) == steps


def test_every_arm_without_a_cell_says_why(check: Any, run: Run) -> None:
    code, out, _ = run(5.0, "async on")
    assert code == 0
    assert out.count("not run: ") == out.count("Value error, it does not start") == 6
    assert "to none, async off" in out


def test_a_table_without_a_cell_is_a_failure(run: Run) -> None:
    code, out, _ = run(5.0, "")
    assert code == 1
    assert out.count("not run: ") == 12
    assert run(5.0, "", "--profile", "--only", "nothing")[0] == 0


def test_a_profile_that_fails_leaves_the_arms(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: Any, **__: Any) -> None:
        raise AssertionError("a fault of the profile")

    modules = {
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)),
        "_v2_step": SimpleNamespace(HEAD="", line=str, measure=measure),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    code, out, _ = run(5.0, None, "--profile", "1")
    assert code == 0
    assert "profile ended: AssertionError: a fault of the profile" in out
    assert len(cells(out)) == 12
