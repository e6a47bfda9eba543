"""``specplug replay`` from the command line to its table and its JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.cli import main
from specplug.replay import reading

Replay = Callable[..., tuple[int, str, str]]


def text(rng: np.random.Generator, length: int) -> str:
    return " ".join(f"w{i}" for i in rng.integers(0, 150, length))


def entries(seed: int, count: int = 6) -> list[dict[str, str]]:
    """Requests whose response copies half of the prompt and repeats what the earlier ones said."""
    rng = np.random.default_rng(seed)
    refrain = text(rng, 12)
    found = []
    for i in range(count):
        prompt = text(rng, 40)
        half = " ".join(prompt.split()[10:30])
        found.append(
            {"prompt": prompt, "response": f"{text(rng, 5)} {half} {refrain}", "kind": f"k{i % 2}"}
        )
    return found


@pytest.fixture
def replay(tokenizer_file: Path, capsys: pytest.CaptureFixture[str]) -> Replay:
    """``replay(*arguments)`` -> exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["replay", "--quiet", "--tokenizer", str(tokenizer_file), *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in ("host", "provenance")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


@pytest.fixture
def results(replay: Replay, tmp_path: Path) -> Callable[..., Any]:
    """``results(*arguments)`` -> the JSON document of a replay."""

    def call(*arguments: str | Path) -> Any:
        path = tmp_path / "result.json"
        code, _, err = replay(*arguments, "--json", path)
        assert code == 0, err
        return json.loads(path.read_text())

    return call


def test_the_table_has_a_line_per_log_and_a_mean(replay: Replay, write_log: Any) -> None:
    logs = [write_log(*entries(i), name=f"{name}.jsonl") for i, name in enumerate("ab")]
    code, out, err = replay(*logs, "--proposer", "suffix", "--proposer", "null")
    assert (code, err) == (0, "")
    for proposer in ("specplug.suffix", "specplug.null"):
        block = out[out.index(f"{proposer}: at most") :].split("\n\n")
        lines = block[1].splitlines()
        assert [line.split()[0] for line in lines] == ["workload", "a", "b", "geometric"]
        assert len({len(line) for line in lines[:3]}) == 1, "columns are not aligned"


def test_two_runs_differ_in_times_only(results: Callable[..., Any], write_log: Any) -> None:
    log = write_log(*entries(1))
    one, two = results(log), results(log)
    assert without_times(one) == without_times(two)
    assert one["proposers"][0]["workloads"]["log"]["accepted"] > 50
    facts = one["provenance"]
    assert {"command", "commit", "versions", "cpu", "seed", "load_average"} <= set(facts)


def test_the_state_of_a_run_is_the_same_whatever_the_chunks(
    results: Callable[..., Any], write_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(*entries(2, 30))
    whole = results(log)
    monkeypatch.setattr(reading, "CHUNK_TOKENS", 400)
    monkeypatch.setattr(reading, "ENCODE_RECORDS", 3)
    assert without_times(results(log)) == without_times(whole)


def test_the_cost_is_told_to_proposers_that_want_it(
    results: Callable[..., Any], write_log: Any
) -> None:
    found = results(
        *(
            write_log(*entries(3)),
            "--cost",
            "0.01,0.2",
            "--proposer",
            "suffix",
            "--proposer",
            "null",
        ),
        *("--proposer", "suffix", "--options", "{}", "--options", "{}"),
        *("--options", '{"verify-cost": 0.5}'),
    )
    rows = [
        (
            p["label"],
            p["cost"],
            p["options"].get("verify_cost"),
            sorted(p["workloads"]["log"]["speedup"]),
        )
        for p in found["proposers"]
    ]
    assert rows == [
        ("specplug.suffix", 0.01, 0.01, ["0.01"]),
        ("specplug.suffix", 0.2, 0.2, ["0.2"]),
        ("specplug.null", None, None, ["0.01", "0.2"]),
        ('specplug.suffix {"verify_cost": 0.5}', None, 0.5, ["0.01", "0.2"]),
    ]
    drafted = [p["workloads"]["log"]["drafted"] for p in found["proposers"]]
    assert drafted[0] > drafted[1] > drafted[2] == 0


def test_plain_decoding_is_what_null_gives(results: Callable[..., Any], write_log: Any) -> None:
    found = results(write_log(*entries(4)), "--proposer", "null")["proposers"][0]["workloads"][
        "log"
    ]
    assert found["mean_acceptance_length"] == 1.0
    assert found["speedup"] == {"0.01": 1.0, "0.03": 1.0, "0.1": 1.0}


def test_the_oracle_is_above_the_drafter(results: Callable[..., Any], write_log: Any) -> None:
    found = results(write_log(*entries(5)))
    ours = found["proposers"][0]["geometric_mean"]["mean_acceptance_length"]
    assert found["oracle"]["geometric_mean"]["mean_acceptance_length"] > ours > 1.5
    assert results(write_log(*entries(5)), "--no-oracle")["oracle"] is None


def test_interleaved_logs_share_a_state(results: Callable[..., Any], write_log: Any) -> None:
    """The two logs say the same in answer to nothing: apart, each first response is new; together, one is."""
    answer = text(np.random.default_rng(6), 60)
    logs = [
        write_log({"prompt": "w1", "response": answer}, name=f"{name}.jsonl") for name in ("a", "b")
    ]
    apart = results(*logs)["proposers"][0]["workloads"]
    together = results(*logs, "--order", "interleaved")["proposers"][0]["workloads"]
    assert apart["a"]["accepted"] == apart["b"]["accepted"] == together["a"]["accepted"]
    assert together["b"]["accepted"] > apart["b"]["accepted"] + 30


def test_tags_and_limits(results: Callable[..., Any], write_log: Any) -> None:
    found = results(write_log(*entries(7)), "--tag", "kind", "--limit", "3")
    workloads = found["proposers"][0]["workloads"]
    assert {name: w["requests"] for name, w in workloads.items()} == {"k0": 2, "k1": 1}


def test_the_session_counts_the_same(results: Callable[..., Any], write_log: Any) -> None:
    log = write_log(*entries(8))
    plain, through = results(log), results(log, "--through-session")
    assert through["settings"].pop("through_session") is True
    assert plain["settings"].pop("through_session") is False
    assert without_times(plain) == without_times(through)


def test_malformed_lines_are_shown(replay: Replay, write_log: Any) -> None:
    log = write_log(*entries(9), "nonsense", "{}")
    code, out, _ = replay(log)
    assert code == 0
    assert "2 malformed lines were left out, 6 read" in out
    assert "log.jsonl:7: not JSON" in out
    code, _, err = replay(log, "--strict")
    assert code == 1
    assert "log.jsonl:7: not JSON" in err


def test_long_requests_are_left_out_and_counted(replay: Replay, write_log: Any) -> None:
    log = write_log(*entries(10), {"text": "w1 " * 500})
    code, out, _ = replay(log, "--max-length", "400")
    assert code == 0
    assert "1 records of more than 400 tokens were left out" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--proposer", "sufix"), "did you mean 'suffix'"),
        (("--options", '{"stor_mb": 1}'), "did you mean 'store_mb'"),
        (("--options", "{}", "--options", "{}"), "2 times --options, but 1 times --proposer"),
        (("--json", "nowhere/result.json"), "there is no folder nowhere"),
    ],
)
def test_wrong_usage_is_refused_before_the_replay(
    replay: Replay, write_log: Any, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = replay(write_log(*entries(11)), *arguments)
    assert (code, out) == (1, "")
    assert message in err


def test_missing_and_empty_logs(replay: Replay, write_log: Any, tmp_path: Path) -> None:
    assert "no such file" in replay(tmp_path / "nowhere.jsonl")[2]
    assert "no record in 0 lines" in replay(write_log(name="empty.jsonl"))[2]


@pytest.mark.parametrize(
    "option", ["--options=[]", "--options={", "--cost=x", "--cost=-1", "--width=0"]
)
def test_unreadable_options(
    replay: Replay, write_log: Any, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        replay(write_log(*entries(12)), option)
    assert caught.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err


def test_a_failed_write_leaves_the_old_result(
    replay: Replay, write_log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = replay(write_log(*entries(13)), "--json", path)
    assert code == 1
    assert "No space left on device" in err
    assert "geometric mean" in out, "the table was there already"
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


BROKEN = """
from specplug.proposers.suffix import SuffixProposer
from specplug.types import Capabilities

class Corrupt(SuffixProposer):
    steps = 0
    def propose(self, slots, ceilings, out):
        super().propose(slots, ceilings, out)
        self.steps += 1
        if self.steps == 20:
            self.index.state.slots.links[5, 0] = 60

class Overlong(SuffixProposer):
    def propose(self, slots, ceilings, out):
        out.tokens[0, :] = 10**6
        out.lengths[0] = 3

class NeedsStates(SuffixProposer):
    def __init__(self, context, settings):
        super().__init__(context, settings)
        self.capabilities = Capabilities(target_states=True)
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with broken proposers."""
    name = f"broken_proposers_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_check_of_a_sound_proposer_passes(replay: Replay, write_log: Any) -> None:
    assert replay(write_log(*entries(14)), "--check")[0] == 0


@pytest.mark.parametrize(
    ("proposer", "message"), [("Corrupt", "links to"), ("Overlong", "outside the vocabulary")]
)
def test_a_check_finds_what_is_broken(
    replay: Replay, write_log: Any, broken: str, proposer: str, message: str
) -> None:
    log = write_log(*entries(15))
    code, _, err = replay(log, "--proposer", f"{broken}:{proposer}", "--check")
    assert code == 1
    assert message in err
    assert "response token" in err
    assert replay(log, "--proposer", f"{broken}:{proposer}")[0] == 0, "found without --check"


def test_a_proposer_that_needs_a_model_is_refused(
    replay: Replay, write_log: Any, broken: str
) -> None:
    code, _, err = replay(write_log(*entries(16)), "--proposer", f"{broken}:NeedsStates")
    assert code == 1
    assert "hidden states" in err
