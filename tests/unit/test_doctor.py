"""``specplug doctor`` and ``specplug proposers``: right facts, right exit codes, broken parts named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specplug import doctor
from specplug._host import HostReport, HostSymbol, SymbolReport
from specplug.cli import main


class Point:
    """An entry point that yields what it is told."""

    def __init__(self, name: str, made: Any) -> None:
        self.name = name
        self.value = f"somewhere:{name}"
        self._made = made

    def load(self) -> Any:
        return self._made


def reporting(**changes: Any) -> HostReport:
    values = {"host": "engine", "version": "1.0", "tested": ("1.0",), "active": True, **changes}
    return HostReport(**values)


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the registered adapters by functions that return the given reports."""

    def use(*points: Point) -> None:
        monkeypatch.setattr(doctor, "entry_points", lambda group: points)

    return use


def test_an_active_adapter_is_healthy(adapters: Any, capsys: pytest.CaptureFixture[str]) -> None:
    adapters(Point("engine", reporting))
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "engine" in text
    assert "active, version 1.0" in text
    assert "specplug.null" in text


def test_an_engine_that_is_not_installed_is_no_problem(adapters: Any) -> None:
    adapters(Point("engine", lambda: reporting(version=None, active=False)))
    assert main(["doctor"]) == 0


def test_an_inactive_adapter_is_a_problem_with_its_reason(
    adapters: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    symbol = HostSymbol("engine.inner", "Class.method", purpose="wrapped")
    adapters(
        Point(
            "engine",
            lambda: reporting(
                active=False,
                reason="engine 2.0 lacks something",
                symbols=(SymbolReport(symbol, "engine.inner has no Class.method"),),
                notes=("a note",),
            ),
        )
    )
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    for part in ("INACTIVE", "engine 2.0 lacks something", "has no Class.method", "note: a note"):
        assert part in text


def test_json_has_every_fact(adapters: Any, capsys: pytest.CaptureFixture[str]) -> None:
    adapters(Point("engine", reporting))
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["adapters"][0]["host"] == "engine"
    assert facts["threads"]["usable_cores"] >= 1
    assert set(facts["packages"]) == {"numpy", "numba", "torch", "vllm", "sglang"}
    assert {"folder", "state", "files", "bytes"} == set(facts["kernels"])


def test_a_broken_report_does_not_hide_the_others(adapters: Any) -> None:
    def broken() -> Any:
        raise RuntimeError("no luck")

    adapters(Point("a", broken), Point("b", lambda: 3), Point("c", reporting))
    found = doctor.examine()["adapters"]
    assert [a["active"] for a in found] == [False, False, True]
    assert "no luck" in found[0]["reason"]
    assert "no HostReport" in found[1]["reason"]
    assert main(["doctor"]) == 1


def test_the_doctor_can_be_asked_twice_in_one_process() -> None:
    """Importing a module ``report`` once hid the function of that name that the entry point meant."""
    first, second = doctor.examine()["adapters"], doctor.examine()["adapters"]
    assert first == second
    assert all("its report failed" not in a["reason"] for a in second)


def test_a_broken_proposer_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("lost", "no_such_module:Thing", "specplug.proposers")
    monkeypatch.setattr("specplug.registry.entry_points", lambda group: [broken])
    assert main(["proposers"]) == 1
    assert "no_such_module" in capsys.readouterr().out


def test_proposers_lists_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proposers", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert found["specplug.null"]["distribution"] == "specplug"
    assert found["specplug.suffix"]["options"]
    assert all(option["help"] for option in found["specplug.suffix"]["options"])
    assert {"exit_layer", "policy"} <= {o["name"] for o in found["specplug.layerskip"]["options"]}
    assert "vLLM's V1 model runner" in found["specplug.layerskip"]["where"]
    assert found["specplug.suffix"]["where"] == ""


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["doctor", "--unknown"]])
def test_wrong_usage_is_exit_code_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
