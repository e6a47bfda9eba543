"""``specplug tune`` from the command line to the flag, or to the advice not to."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug import registry
from specplug.cli import main
from specplug.tune.search import Setting

Tune = Callable[..., tuple[int, str, str, Any]]


def text(rng: np.random.Generator, length: int) -> str:
    return " ".join(f"w{i}" for i in rng.integers(0, 200, length))


def copying(count: int = 20) -> list[dict[str, str]]:
    """Responses that copy half of the prompt."""
    rng = np.random.default_rng(1)
    prompts = [text(rng, 60) for _ in range(count)]
    return [
        {"prompt": p, "response": f"{text(rng, 2)} {' '.join(p.split()[10:50])}"} for p in prompts
    ]


def noise(count: int = 20) -> list[dict[str, str]]:
    """Responses that have nothing to do with anything."""
    rng = np.random.default_rng(2)
    return [{"prompt": text(rng, 60), "response": text(rng, 40)} for _ in range(count)]


def cost_file(path: Path, relative: list[float]) -> Path:
    content = {"version": 1, "machine": "m", "tokens": [1, 16, 64], "plain_seconds": 0.02}
    path.write_text(json.dumps({**content, "relative": relative}))
    return path


@pytest.fixture
def tune(
    tokenizer_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> Tune:
    """``tune(*arguments)`` -> exit code, standard output, standard error, the JSON document."""
    monkeypatch.setattr("specplug.tune.search.WIDTHS", (4, 16))

    def call(*arguments: Any) -> tuple[int, str, str, Any]:
        path = tmp_path / "tune.json"
        given = ["tune", "--quiet", "--tokenizer", str(tokenizer_file), "--json", str(path)]
        code = main([*given, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err, json.loads(path.read_text()) if path.exists() else None

    return call


def test_traffic_that_copies_gets_flags_that_the_engines_take(tune: Tune, write_log: Any) -> None:
    code, out, _, found = tune(write_log(*copying()), "--proposer", "suffix")
    assert (code, found["advice"]) == (0, "do")
    assert found["speedup"] > 3
    serve, launch = out.splitlines()[-2:]
    words = shlex.split(serve)
    assert words[:3] == ["vllm", "serve", "MODEL"]
    body = json.loads(words[words.index("--speculative-config") + 1])
    assert body["method"] == "specplug.suffix"
    assert body["num_speculative_tokens"] == found["setting"]["width"] == 16
    registry.check(body["method"], body.get("specplug", {}))
    assert f"--speculative-num-draft-tokens {16 + 1}" in launch
    assert "--speculative-algorithm specplug.suffix" in launch


def test_a_given_option_is_kept(tune: Tune, write_log: Any) -> None:
    log = write_log(*copying(8))
    _, out, _, found = tune(log, "--proposer", "suffix", "--options", '{"store-mb": 2}')
    assert {t["options"]["store_mb"] for t in found["tried"]} == {2}
    assert '"store_mb": 2' in out


def test_traffic_that_repeats_nothing_gets_a_no(tune: Tune, write_log: Any) -> None:
    code, out, _, found = tune(write_log(*noise()), "--proposer", "suffix")
    assert (code, found["advice"]) == (0, "do not")
    assert out.splitlines()[-1].startswith("Do not: on requests that played no part in the choice")
    assert "--speculative" not in out


def test_what_repeats_in_the_first_part_only_is_no_promise(tune: Tune, write_log: Any) -> None:
    entries = [*copying(12), *noise(8)]
    code, _, _, found = tune(write_log(*entries), "--proposer", "suffix")
    best = max(found["tried"], key=lambda t: t["train_speedup"])
    assert best["train_speedup"] > 2
    assert (code, found["advice"]) == (0, "do not")


def test_a_cost_file_says_up_to_which_batch_it_pays(
    tune: Tune, write_log: Any, tmp_path: Path
) -> None:
    steep = cost_file(tmp_path / "cost.json", [1.0, 1.5, 6.0])
    _, out, _, found = tune(write_log(*copying()), "--proposer", "suffix", "--cost", steep)
    assert found["advice"] == "do"
    assert found["price"] == pytest.approx(0.5 / 15, rel=0.01)
    by_batch = {f["requests"]: f for f in found["forecasts"]}
    assert by_batch[1]["speedup"] > 2
    assert by_batch[1]["ms_per_token"] < by_batch[1]["plain_ms_per_token"]
    assert 1 <= found["pays_up_to"] < 256
    assert f"It pays up to {found['pays_up_to']} requests at a time" in out
    assert "tokens/s plain" in out


def test_a_server_that_is_busy_already_gets_a_no(
    tune: Tune, write_log: Any, tmp_path: Path
) -> None:
    """Compute-bound, and half of what is drafted is wrong: every draft token costs a whole one."""
    steep = cost_file(tmp_path / "cost.json", [1.0, 16.0, 64.0])
    arguments = ("--proposer", "suffix", "--cost", steep, "--concurrency", 64)
    code, _, _, found = tune(write_log(*noise()), *arguments)
    assert (code, found["advice"], found["concurrency"]) == (0, "do not", 64)


def test_two_runs_choose_the_same(tune: Tune, write_log: Any) -> None:
    log = write_log(*copying(), *noise())
    one, two = (tune(log)[3] for _ in range(2))
    assert one["setting"] == two["setting"]
    assert one["tried"] == two["tried"]
    assert one["speedup"] == two["speedup"]
    assert {t["proposer"] for t in one["tried"]} >= {"specplug.suffix"}
    # One drafts nothing, the others are about a datastore that nobody has named.
    assert not {"specplug.null", "specplug.rest", "specplug.hybrid"} & {
        t["proposer"] for t in one["tried"]
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--proposer", "sufix"), "did you mean 'suffix'"),
        (("--options", "{}"), "1 times --options, but 0 times --proposer"),
        (("--proposer", "suffix", "--options", '{"stor_mb": 1}'), "did you mean 'store_mb'"),
        (("--cost", "nowhere.json"), "nowhere.json: No such file"),
        (("--json", "nowhere/x.json"), "there is no folder nowhere"),
    ],
)
def test_wrong_usage_is_refused_before_the_search(
    tune: Tune, write_log: Any, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err, _ = tune(write_log(*noise(3)), *arguments)
    assert (code, out) == (1, "")
    assert message in err


def test_too_short_a_log_is_said_to_be_one(tune: Tune, write_log: Any) -> None:
    assert "no record in 0 lines" in tune(write_log(name="empty.jsonl"))[2]
    _, out, _, found = tune(write_log({"prompt": "w1", "response": "w2"}), "--proposer", "suffix")
    assert found["advice"] == "do not"
    assert "give a longer log" in out


def test_a_setting_with_one_thing_changed() -> None:
    setting = Setting("specplug.suffix", (("b", 1),), 16)
    assert setting.having("width", 4).width == 4
    assert setting.having("a", 2).options == (("a", 2), ("b", 1))


BAD = (
    ("no JSON at all", "not JSON"),
    ('{"prompt": "w1 w2"}', "response"),
    ('{"prompt_token_ids": [1, 9999], "token_ids": [3]}', "made by another tokenizer"),
    ('{"prompt": "w1", "response": "\\ud800 w2"}', "half of a surrogate pair"),
)


def test_bad_lines_are_left_out_and_counted(tune: Tune, write_log: Any) -> None:
    log = write_log(*copying(), *(line for line, _ in BAD))
    code, out, _, found = tune(log, "--proposer", "suffix")
    assert (code, found["advice"]) == (0, "do")
    assert f"{len(BAD)} malformed lines were left out; `specplug replay` shows them" in out


@pytest.mark.parametrize(("line", "message"), BAD)
def test_strict_names_the_first_bad_line(
    tune: Tune, write_log: Any, line: str, message: str
) -> None:
    log = write_log(*copying(4), line)
    code, out, err, found = tune(log, "--proposer", "suffix", "--strict")
    assert (code, out, found) == (1, "", None)
    assert "log.jsonl:5: " in err
    assert message in err


def test_a_full_disk_leaves_the_answer_on_the_screen(
    tune: Tune, write_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, out, err, found = tune(write_log(*copying()), "--proposer", "suffix")
    assert (code, found) == (1, None)
    assert "No space left on device" in err
    assert "--speculative-config" in out
