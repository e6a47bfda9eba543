"""Three tensor-parallel ranks of the real SGLang: rank 0 drafts, all verify the same and say what one rank says."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .compare import Tally, check_greedy
from .conftest import Start
from .engines import SGLANG
from .law import LawTest, compare_laws, sample
from .prompts import VARIED
from .test_distribution import LOWEST_P, PROMPT

NAMES = ["repeat-line", "repeat-story", "code-repeat", "chat-copy", "prose"]
GREEDY = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module")
def ranks(start: Start) -> Iterator[EngineProcess]:
    """SmolLM2 has nine heads and three of keys and values: three ranks is what divides them."""
    cores = sorted(os.sched_getaffinity(0))
    turns = [str(cores[rank % len(cores)]) for rank in range(3)]
    environment = {
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(turns),
        # A torch that was built for GPUs brings NCCL, and SGLang would take it; without it the ranks talk over gloo.
        "SGLANG_NCCL_SO_PATH": "no NCCL on a CPU",
    }
    options = {**SGLANG.methods["specplug.suffix"], "tp_size": 3}
    running = start("ranks", process={"env": environment}, **options)
    running.ready()
    yield running
    running.close()


def test_greedy_equals_one_rank(plain: Driver, ranks: EngineProcess, tally: Tally) -> None:
    prompts = [VARIED[name] for name in NAMES]
    params = [{**GREEDY, **({"frequency_penalty": 0.5} if i == 2 else {})} for i in range(5)]
    before = ranks.metrics()
    got = ranks.generate(prompts, params)
    assert (ranks.metrics() - before).accepted_tokens > 20
    expected = plain.generate(prompts, params)
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)
    own = ranks.metrics().own
    assert own["session"]["faults"] == own["adapter_faults"] == own["verify_faults"] == 0


@pytest.mark.long
def test_the_law_is_that_of_one_rank(plain: Driver, ranks: EngineProcess) -> None:
    """Each rank draws for itself; if they kept different tokens, their caches would part and the law with them."""
    case = LawTest({"temperature": 1.0, "max_tokens": 3, "ignore_eos": True}, samples=300)
    reference, _, _ = sample(plain, plain.tokenize(PROMPT), case, seed=1)
    drawn, _, gained = sample(ranks, plain.tokenize(PROMPT), case, seed=2)
    verdict = compare_laws(reference, drawn)
    assert gained.draft_tokens > gained.accepted_tokens > 30, gained
    assert verdict.worst_p > LOWEST_P, verdict
