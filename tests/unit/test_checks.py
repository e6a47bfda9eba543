"""What the doctor concludes from what it found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specplug import checks, doctor
from specplug.cli import main


def states(environment: dict[str, str] | None = None, **changes: Any) -> dict[str, list[str]]:
    """States by the name of the check, for facts that are fine but for ``changes``."""
    facts = {
        "kernels": {"folder": "f", "state": "filled", "files": 3},
        "proposers": [{"name": "specplug.x", "problem": ""}],
        "adapters": [],
        **changes,
    }
    found: dict[str, list[str]] = {}
    for check in checks.run_checks(facts, environment or {}):
        found.setdefault(check.name, []).append(check.state)
    return found


def adapter(**changes: Any) -> dict[str, Any]:
    return {
        "host": "engine",
        "version": "1.2.3+cpu",
        "tested": ["1.2"],
        "active": True,
        "reason": "",
        **changes,
    }


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = states()
    assert {state for values in found.values() for state in values} == {"ok"}
    assert {"installation", "kernels", "kernel cache", "threads"} <= set(found)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ok"),
        ({"version": "1.2"}, "ok"),
        ({"version": "1.20.1"}, "warning"),
        ({"version": "2.0"}, "warning"),
        ({"version": None, "active": False}, "ok"),
        ({"active": False, "reason": "lacks something"}, "problem"),
    ],
)
def test_an_engine(changes: dict[str, Any], state: str) -> None:
    assert states(adapters=[adapter(**changes)])["engine engine"] == [state]


@pytest.mark.parametrize(
    ("kernels", "name", "expected"),
    [
        ({"folder": None, "state": "numba cannot be used: x", "files": 0}, "kernels", "problem"),
        ({"folder": "f", "state": "not writable: y", "files": 0}, "kernel cache", "warning"),
        ({"folder": "f", "state": "empty: z", "files": 0}, "kernel cache", "warning"),
    ],
)
def test_kernels(kernels: dict[str, Any], name: str, expected: str) -> None:
    assert states(kernels=kernels)[name] == [expected]


def test_a_compiler_that_computes_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplug.kernels.streams.mix", lambda hashed, token: 0)
    assert states()["kernels"] == ["problem"]


def test_a_proposer_that_does_not_load() -> None:
    broken = [{"name": "specplug.lost", "problem": "no module"}]
    assert states(proposers=broken)["proposer"] == ["problem"]


@pytest.mark.parametrize(
    ("value", "state"), [("1", "ok"), ("4096", "warning"), ("0", "problem"), ("many", "problem")]
)
def test_threads(monkeypatch: pytest.MonkeyPatch, value: str, state: str) -> None:
    monkeypatch.setenv("SPECPLUG_THREADS", value)
    assert states({"SPECPLUG_THREADS": value})["threads"] == [state]


def test_a_misspelt_variable_is_found_and_the_right_one_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECPLUG_THREDS", "2")
    main(["doctor"])
    text = capsys.readouterr().out
    assert "WARNING  environment: nothing reads SPECPLUG_THREDS" in text
    assert "did you mean 'SPECPLUG_THREADS'" in text
    assert "SPECPLUG_THREDS=2" in text


def test_the_variables_of_adapters_are_known() -> None:
    known = checks.known_variables()
    assert {"SPECPLUG_CACHE", "SPECPLUG_THREADS", "SPECPLUG_VLLM_UNTESTED"} <= known


def test_the_page_and_the_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert code == (0 if doctor.healthy(facts) else 1)
    text = doctor.as_text(facts)
    for check in facts["checks"]:
        assert f"{check['name']}: {check['text']}" in text
    assert facts["memory"]["total"] > facts["memory"]["free"] > 0
    assert len(text.splitlines()) < 60, "one page"


def test_a_datastore_is_read_and_a_damaged_one_found(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"prompt_token_ids": [1, 2, 3], "token_ids": [4, 5, 6, 7, 8, 9]}\n')
    folder = tmp_path / "store"
    words = {"<unk>": 0, **{f"w{i}": i + 1 for i in range(20)}}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"version": "1.0", "model": model}))
    built = ["datastore", "build", str(folder), str(log), "--tokenizer", str(tokenizer)]
    assert main([*built, "--quiet"]) == 0
    capsys.readouterr()
    assert main(["doctor", "--datastore", str(folder)]) == 0
    assert "intact; 1 documents" in capsys.readouterr().out
    [file] = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 100]
    content = bytearray(file.read_bytes())
    content[-3] ^= 0xFF
    file.write_bytes(content)
    assert main(["doctor", "--datastore", str(folder), "--datastore", str(tmp_path / "no")]) == 1
    out = capsys.readouterr().out
    assert out.count("PROBLEM  datastore") == 2
