"""The ground that the suite stands on: SGLang's own NGRAM runs here and says what plain decoding says.

On a CPU it does not sample from the target's law (``_verify_uses_greedy``); the test of the law finds that.
"""

from __future__ import annotations

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

NAMES = ["repeat-words", "repeat-line", "repeat-story", "code-repeat", "chat-copy", "prose"]
GREEDY = {"temperature": 0, "max_tokens": 48}


@pytest.fixture(scope="module")
def ngram(start: Start) -> Iterator[EngineProcess]:
    """Speculates with SGLang's own proposer and verifier."""
    running = start("ngram", **SGLANG.methods["ngram"])
    running.ready()
    yield running
    running.close()


def test_greedy_equals_plain(plain: Driver, ngram: Driver, tally: Tally) -> None:
    prompts = [VARIED[name] for name in NAMES]
    before = ngram.metrics()
    got = ngram.generate(prompts, GREEDY)
    assert (ngram.metrics() - before).accepted_tokens > 50
    expected = plain.generate(prompts, GREEDY)
    for name, want, have in zip(NAMES, expected.results, got.results, strict=True):
        check_greedy(plain, tally, name, want.prompt_token_ids, want.only, have.only)


def test_its_sampling_on_a_cpu_is_not_the_law_of_the_target(plain: Driver, ngram: Driver) -> None:
    """It takes the best token wherever it verified, whatever the temperature: the test of the law can fail."""
    case = LawTest({"temperature": 1.0, "max_tokens": 3, "ignore_eos": True}, samples=300)
    reference, _, _ = sample(plain, plain.tokenize(PROMPT), case, seed=1)
    drawn, _, _ = sample(ngram, plain.tokenize(PROMPT), case, seed=2)
    verdict = compare_laws(reference, drawn)
    print(verdict)
    # The first token comes from the prefill, which samples as it should.
    assert verdict.p_values[1] > LOWEST_P, verdict
    assert verdict.p_values[2] < LOWEST_P, verdict
