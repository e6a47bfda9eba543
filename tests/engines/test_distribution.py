"""At temperature > 0 the speculating engine draws from the law of the plain one.

Samples are seeded, so that vLLM's result is the same every time; SGLang's requests arrive from another process, so its
batches, and with them the coins, vary a little. The bound is loose on purpose: a wrong law gives p-values far below it
(the fault in ``test_faults.py`` with 500 samples, SGLang's own NGRAM with 300), a right one falls below in one
run of about 3,000 (three tests each).
"""

from __future__ import annotations

from typing import Any

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .engines import Engine, need
from .law import LawTest, compare_laws, follow_greedily, sample
from .prompts import VARIED

LOWEST_P = 1e-4
#: Two tokens, because every sample pays for its prompt; the next tokens are neither certain nor wild.
PROMPT = "def main"
TOKENS = 3
LAWS: dict[str, dict[str, Any]] = {
    "temperature 1": {"temperature": 1.0},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "min_p": {"temperature": 1.0, "min_p": 0.02},
}
GREEDY_NAMES = ["repeat-line", "code-repeat", "repeat-numbers", "chat-copy", "json-records"]
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


def check(
    engine: Engine,
    plain: Driver,
    spec: Driver,
    prompt: list[int],
    law: dict[str, Any],
    samples: int,
) -> None:
    for name in law:
        need(engine, name)
    greedy = [VARIED[name] for name in GREEDY_NAMES]
    case = LawTest({**law, "max_tokens": TOKENS, "ignore_eos": True}, samples)
    reference, _, _ = sample(plain, prompt, case, seed=101)
    # One token more, because the last token of an answer is never a drafted one.
    longer = LawTest({**case.params, "max_tokens": TOKENS + 1, **engine.narrow}, samples)
    beside = [(p, {**GREEDY, **engine.narrow}) for p in greedy]
    ours, exact, gained = sample(spec, prompt, longer, 202, beside)
    # Greedy requests in the same batches stay exact.
    expected = plain.generate(greedy, GREEDY).tokens
    assert exact == expected * (len(exact) // len(expected))
    # Drafts were really verified at the second and third token: accepted and rejected ones.
    assert gained.drafted_steps > samples // 3, gained
    assert gained.accepted_per_position[0] > samples // 10, gained
    assert gained.accepted_per_position[1] > samples // 50, gained
    assert gained.draft_tokens - gained.accepted_tokens > samples // 10, gained
    verdict = compare_laws(reference, ours)
    # Enough different tokens at the drafted positions to tell laws apart; the first token comes from the prefill.
    assert min(verdict.cells[2], verdict.cells[3]) >= 5, verdict
    assert verdict.worst_p > LOWEST_P, verdict
    print(f"{law}: {samples} samples, {verdict}, {gained}")


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_law_with_the_tested_method(engine: Engine, plain: Driver, spec: Driver, law: str) -> None:
    check(engine, plain, spec, spec.tokenize(PROMPT), LAWS[law], engine.samples)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_law_with_scripted_drafts(
    engine: Engine, plain: Driver, scripted: EngineProcess, law: str
) -> None:
    """Drafts that are always there: the target's greedy continuation of each likely first token."""
    prompt, table = follow_greedily(plain, PROMPT, width=2)
    script = {str(token): draft for token, draft in table.items()}
    scripted.call("run", target="engine_test_proposers:script", table=script)
    check(engine, plain, scripted, prompt, LAWS[law], engine.long_samples)
