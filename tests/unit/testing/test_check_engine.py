"""``specplug check-engine`` against toy servers on the loopback interface: equal, biased, broken."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from specplug.cli import main
from specplug.errors import SettingsError
from specplug.testing.server_client import END, Client, ServerError
from specplug.testing.server_comparison import Plan, compare_servers
from specplug.testing.server_prompts import PROMPTS, read_prompts
from specplug.testing.toy_server import LAW, Toy, serving

#: Total variation distance 0.1 from LAW.
BIASED = (0.2, 0.3, *LAW[2:])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Two prompts."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('"one"\n\n{"name": "second", "prompt": "two"}\n')
    return path


def check(tested: Toy, baseline: Toy, prompts: Path, *more: str) -> int:
    """Run the command on two servers that are up."""
    urls = ["--base-url", tested.url, "--baseline-url", f"{baseline.url}/v1/"]
    return main(["check-engine", *urls, "--prompts", str(prompts), "--samples", "400", *more])


def test_equal_servers(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tested, baseline = Toy(seed=1, stop_after=2), Toy(seed=2, stop_after=2)
    with serving(tested, baseline):
        assert check(tested, baseline, prompts, "--json", str(tmp_path / "out.json")) == 0
    shown = capsys.readouterr().out
    assert "SAME: no difference found in 8 rows" in shown
    assert "as token ids" in shown
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["verdict"] == "same"
    assert {(r["prompt"], r["mode"], r["samples"]) for r in found["rows"]} == {
        ("line 1", "greedy", 1),
        ("second", "greedy", 1),
        *((p, m, 400) for p in ("line 1", "second") for m in ("temperature-1.0", "top-p-0.9")),
        *(("all prompts", m, 800) for m in ("temperature-1.0", "top-p-0.9")),
    }
    assert all(r["p_value"] > 0.01 for r in found["rows"] if r["mode"] != "greedy")
    assert not any("seed" in body for body in tested.requests), "engines draft less with a seed"
    assert max(body.get("n", 1) for body in tested.requests) == 50


def test_a_biased_server_is_found(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tested, baseline = Toy(law=BIASED, seed=3), Toy(seed=4)
    with serving(tested, baseline):
        assert check(tested, baseline, prompts) == 1
    shown = capsys.readouterr().out
    assert "DIFFERENT in 6 of 8 rows" in shown
    assert "baseline 0." in shown


def test_the_result_does_not_depend_on_the_order_of_answers() -> None:
    """Requests overtake each other here; the set of answers is the same."""
    results = []
    for _ in range(2):
        tested, baseline = Toy(seed=5), Toy(seed=6)
        with serving(tested, baseline):
            clients = [Client(toy.url, "toy") for toy in (tested, baseline)]
            for client in clients:
                client.choose_model(None)
            plan = Plan({"a": "one"}, ("temperature-1.0",), samples=120)
            results.append(compare_servers(clients[0], clients[1], plan))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("tested", "unit"),
    [
        (Toy(ids=False), "tokens"),
        (Toy(ids=False, logprobs=False), "words"),
    ],
    ids=["no ids", "text only"],
)
def test_the_finest_unit_that_both_offer(
    tested: Toy, unit: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = Toy(seed=7)
    with serving(tested, baseline):
        assert check(tested, baseline, prompts) == 0
    assert f"as {unit}" in capsys.readouterr().out


def test_greedy_difference(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tested, baseline = Toy(greedy=(0, 1, 3)), Toy()
    with serving(tested, baseline):
        assert check(tested, baseline, prompts, "--mode", "greedy") == 1
    assert "token id 3: 3, baseline 2" in capsys.readouterr().out


@pytest.mark.parametrize(("gap", "code", "verdict"), [(5e-4, 0, "near-tie"), (0.5, 1, "different")])
def test_near_ties(
    gap: float, code: int, verdict: str, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = Toy(greedy=(0, 1, 3))
    baseline = Toy(top_logprobs={"token_id:3": -1.0, "token_id:2": -1.0 + gap})
    with serving(tested, baseline):
        assert check(tested, baseline, prompts, "--mode", "greedy") == code
    shown = capsys.readouterr().out
    assert shown.count(verdict) == 2
    assert f"{gap:.2g} apart" in shown


def test_greedy_answer_that_ends_early(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Ends(Toy):
        def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
            return super()._choice({**body, "max_tokens": min(body["max_tokens"], 5)})

    tested, baseline = Ends(), Toy()
    with serving(tested, baseline):
        assert check(tested, baseline, prompts, "--mode", "greedy") == 1
    assert "token id 6: 'nothing', baseline 2" in capsys.readouterr().out


def test_drafts_are_counted(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counter = 'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} '
    none = Toy(metrics=counter + "7", seed=8)
    some = Toy(metrics="# HELP x\n" + counter + "{}\n", seed=9)
    with serving(none, some):
        check(none, some, prompts, "--mode", "temperature-1.0")
        assert "made no draft" in (shown := capsys.readouterr().out)
        assert "WARNING: the baseline server counted" in shown
        check(some, none, prompts, "--mode", "temperature-1.0")
        assert "The tested server counted 16 drafts" in capsys.readouterr().out


def test_a_busy_server_is_asked_again(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplug.testing.server_client._PAUSES", (0.01, 0.02, 0.02))
    tested, baseline = Toy(seed=10), Toy(seed=11)
    with serving(tested, baseline):
        client = Client(tested.url, "tested")
        client.choose_model("toy")
        tested.busy = 2
        assert len(client.answers("a", {"max_tokens": 2, "temperature": 1}, "tokens", 3)) == 3
        tested.busy = 100
        with pytest.raises(ServerError, match="status 503"):
            client.answers("a", {"max_tokens": 2, "temperature": 1}, "tokens", 3)


def test_the_key_is_sent(prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", "sesame")
    tested, baseline = Toy(key="sesame", seed=12), Toy(key="sesame", seed=13)
    with serving(tested, baseline):
        assert check(tested, baseline, prompts, "--api-key-env", "TOY_KEY") == 0


def test_ending_is_part_of_the_answer() -> None:
    toy = Toy(stop_after=1)
    with serving(toy):
        client = Client(toy.url, "tested")
        client.choose_model(None)
        found = client.answers("a", {"max_tokens": 3, "temperature": 1}, "token ids", 40)
    assert {len(answer.items) for answer in found} == {2, 3}
    assert all((answer.items[-1] == END) == (len(answer.items) == 2) for answer in found)


BROKEN = {
    "server error": (Toy(status=500), "status 500: .*out of order"),
    "no answers": (Toy(raw=b'{"choices": []}'), "no text"),
    "not JSON": (Toy(raw=b"<html>"), "not with a JSON object: '<html>'"),
    "a list": (Toy(raw=b"[1]"), "not with a JSON object"),
    "empty answers": (
        Toy(raw=b'{"choices": [{"text": "", "finish_reason": "length"}]}'),
        "no text for a completion",
    ),
    "n not supported": (Toy(choices=1), "returned 1 answers where n=50 .*--batch 1"),
    "no models": (Toy(models=()), "has 0 models"),
    "several models": (Toy(models=("a", "b")), r"2 models \(a, b\); choose one with --model"),
    "key missing": (Toy(key="sesame"), "status 401; .*--api-key-env"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_servers(name: str, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, message = BROKEN[name]
    sound = Toy()
    with serving(broken, sound):
        for pair, who in (((broken, sound), "tested"), ((sound, broken), "baseline")):
            assert check(*pair, prompts) == 2
            assert_said(capsys, message, f"the {who} server")


def assert_said(capsys: pytest.CaptureFixture[str], message: str, who: str) -> None:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert who in shown.err
    assert re.search(message, shown.err), shown.err


def test_a_server_that_breaks_halfway(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Breaks(Toy):
        def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
            self.status = 200 if len(self.requests) < 8 else 500
            return super().complete(body)

    with serving(tested := Breaks(), baseline := Toy()):
        assert check(tested, baseline, prompts) == 2
    assert_said(capsys, "status 500", "the tested server")


def test_n_refused_with_a_sentence(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Refuses(Toy):
        def complete(self, body: dict[str, Any]) -> tuple[int, bytes]:
            if body.get("n", 1) > 1:
                return 400, b'{"error": "n must be 1"}'
            return super().complete(body)

    with serving(tested := Refuses(seed=14), baseline := Toy(seed=15)):
        assert check(tested, baseline, prompts) == 2
        assert_said(capsys, "n must be 1.*; use --batch 1", "the tested server")
        assert check(tested, baseline, prompts, "--batch", "1", "--mode", "temperature-1.0") == 0


def test_nobody_listens(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        closed = Toy(url=f"http://127.0.0.1:{probe.getsockname()[1]}")
        with serving(sound := Toy()):
            assert check(closed, sound, prompts) == 2
    assert_said(capsys, "cannot be reached: .*refused", "the tested server")


def test_a_server_that_hangs(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hanging = Toy(url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with serving(sound := Toy()):
            assert check(hanging, sound, prompts, "--timeout", "0.2") == 2
    assert_said(capsys, r"did not answer /v1/models within 0.2 s", "the tested server")


def test_wrong_model(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tested := Toy(), baseline := Toy()):
        assert check(tested, baseline, prompts, "--model", "tyo") == 2
    assert_said(capsys, "has no model 'tyo'; it has: toy", "the tested server")


@pytest.mark.parametrize("url", ["localhost:8000", "file:///etc/hosts", "http://", "http://h:port"])
def test_what_is_no_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check-engine", "--base-url", url, "--baseline-url", "http://127.0.0.1:1"]
    assert main(arguments) == 2
    assert f"tested: expected an address like http://127.0.0.1:8000, got {url!r}" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--api-key-env", "SPECPLUG_NO_SUCH_KEY"], "SPECPLUG_NO_SUCH_KEY is not set"),
        (["--json", os.path.join("no", "such", "folder.json")], "there is no folder"),
        (["--prompts", "no-such-file"], "cannot be read"),
    ],
)
def test_wrong_usage_is_said_first(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ["--base-url", "http://127.0.0.1:1", "--baseline-url", "http://127.0.0.1:1"]
    assert main(["check-engine", *urls, *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ["--samples", "0"],
        ["--alpha", "0.9"],
        ["--alpha", "nan"],
        ["--mode", "beam"],
        ["--timeout", "0"],
    ],
    ids=" ".join,
)
def test_wrong_arguments(more: list[str]) -> None:
    urls = ["--base-url", "http://127.0.0.1:1", "--baseline-url", "http://127.0.0.1:1"]
    with pytest.raises(SystemExit) as stopped:
        main(["check-engine", *urls, *more])
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no prompts"),
        ("{", "line 1: not JSON"),
        ("3", "line 1: expected a string or an object"),
        ('{"name": "a", "prompt": "x"}\n{"name": "a", "prompt": "y"}', "line 2: a second prompt"),
    ],
)
def test_wrong_prompts(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_prompts(path)


def test_prompts_as_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('"quoted" stays\n\nsecond\n')
    assert read_prompts(path) == {"line 1": '"quoted" stays', "line 3": "second"}


def test_our_own_prompts_are_few_and_short() -> None:
    assert len(PROMPTS) == 8
    assert max(map(len, PROMPTS.values())) < 200
