"""A bad proposer costs its drafts, never an answer; and vLLM's sampling fault, shown and repaired.

The engine runs ``specplug.scripted``, which ``plugin/`` registers as a third party would. The last tests break it
for good, each worse than the one before.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, Counters, Driver, EngineProcessError

from .compare import Tally, check_greedy
from .engines import Engine, need
from .law import LawTest, compare_laws, follow_greedily, sample
from .logs import our_faults
from .prompts import VARIED

GREEDY = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
NAMES = ["repeat-line", "code-repeat", "chat-short", "prose"]
PROMPTS = [VARIED[name] for name in NAMES]


@pytest.fixture(scope="module")
def expected(plain: Driver) -> Batch:
    """What plain decoding says."""
    return plain.generate(PROMPTS, GREEDY)


def script(
    running: EngineProcess,
    table: dict[int, list[int]] | None = None,
    always: list[int] | None = None,
    fail: bool = False,
) -> None:
    running.call(
        "run",
        target="engine_test_proposers:script",
        table={str(token): draft for token, draft in (table or {}).items()},
        always=always or [],
        fail=fail,
    )


def alive_in_group(leader: int) -> list[int]:
    """The processes of a group; one that has ended and that nobody waited for does not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


def check(plain: Driver, tally: Tally, expected: Batch, got: Batch) -> None:
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)


def test_drafts_that_are_always_wrong(
    plain: Driver, scripted: EngineProcess, expected: Batch, tally: Tally
) -> None:
    vocabulary = scripted.info()["vocab_size"]
    used = {t for tokens in expected.tokens for t in tokens}
    wrong = next(t for t in range(1000, vocabulary) if t not in used)
    script(scripted, always=[wrong] * 3)
    before = scripted.metrics()
    check(plain, tally, expected, scripted.generate(PROMPTS, GREEDY))
    gained = scripted.metrics() - before
    assert gained.draft_tokens > 200
    assert gained.accepted_tokens == 0


def test_drafts_that_are_always_right(
    plain: Driver, scripted: EngineProcess, expected: Batch, tally: Tally
) -> None:
    tokens = expected.tokens[0]
    script(scripted, {tokens[i]: list(tokens[i + 1 : i + 4]) for i in range(len(tokens) - 1)})
    before = scripted.metrics()
    check(plain, tally, expected, scripted.generate(PROMPTS, GREEDY))
    assert (scripted.metrics() - before).accepted_tokens > 20


def test_ids_that_do_not_exist(
    plain: Driver, scripted: EngineProcess, expected: Batch, tally: Tally
) -> None:
    vocabulary = scripted.info()["vocab_size"]
    script(scripted, always=[vocabulary, -5, 2**31 - 1])
    check(plain, tally, expected, scripted.generate(PROMPTS, GREEDY))
    own = scripted.metrics().own
    assert own["session"]["clipped"] > 0
    assert own["session"]["faults"] == own["adapter_faults"] == 0


def test_sampling_of_the_host_is_wrong_and_ours_is_right(
    engine: Engine, plain: Driver, scripted: EngineProcess
) -> None:
    """vllm-project/vllm#55005: the temperature reaches the rejection sampler as uninitialised memory.

    Only the temperature here: an uninitialised top-k ends the engine with an index out of range.
    """
    need(engine, "host_sampling_fault")
    case = LawTest({"temperature": 1.0, "max_tokens": 4, "ignore_eos": True}, samples=500)
    prompt, table = follow_greedily(plain, "def main", width=2)
    script(scripted, table)
    reference, _, _ = sample(plain, prompt, case, seed=11)

    def draw(host: bool) -> tuple[float, Counters]:
        target = "engine_test_vllm:use_host_sampling"
        sound = scripted.call("run", target=target, host=host)["value"]
        assert sound == {"host": False, "repaired": True}
        drawn, _, counters = sample(scripted, prompt, case, seed=12)
        verdict = compare_laws(reference, drawn)
        print(f"host function {host}: {verdict}, {counters}")
        return verdict.worst_p, counters

    try:
        wrong, broken = draw(host=True)
    finally:
        right, repaired = draw(host=False)
    assert 0 < repaired.accepted_tokens < repaired.draft_tokens
    assert right > 1e-4
    assert wrong < 1e-4
    assert broken.draft_tokens > 0


def test_a_proposer_that_raises(
    plain: Driver, scripted: EngineProcess, expected: Batch, tally: Tally
) -> None:
    script(scripted, fail=True)
    before = scripted.metrics()
    check(plain, tally, expected, scripted.generate(PROMPTS, GREEDY))
    gained = scripted.metrics() - before
    assert gained.draft_tokens == 0
    assert gained.own["session"]["faults"] == 1
    # One traceback in the log, however often it would have failed.
    assert scripted.log_text.count("RuntimeError: this proposer was told to fail") == 1
    assert our_faults(scripted.log_text)
    # From then on nothing is drafted, even if the proposer would be right again.
    script(scripted, always=[5])
    check(plain, tally, expected, scripted.generate(PROMPTS, GREEDY))
    after = scripted.metrics() - before
    assert after.draft_tokens == 0
    assert after.own["session"]["faults"] == 1


def test_an_engine_that_dies_is_noticed_and_nothing_stays_behind(scripted: EngineProcess) -> None:
    begin = time.monotonic()
    with pytest.raises(EngineProcessError, match=r"engine 'scripted' died while answering 'run'"):
        scripted.call("run", target="engine_test_proposers:die")
    assert time.monotonic() - begin < 60
    assert alive_in_group(scripted.pid) == []
