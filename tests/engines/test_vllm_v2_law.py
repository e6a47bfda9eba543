"""The law of sampling in vLLM's V2 runner, kernels interpreted, with drafts that are always there; a tiny model.

What is compared is the V2 runner with drafts and the V1 runner without. A right law gives a p-value below the bound in
one run of about 3,000 (three tests each); what a wrong one gives is tested too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Driver

from .conftest import WITH_PLUGINS
from .engines import VLLM_V2, together
from .law import LawTest, compare_laws, follow_greedily, sample
from .tiny import make_tiny

LOWEST_P = 1e-4
PROMPT = [11, 5, 11, 5, 42, 11]
LAW = {"temperature": 1.0, "ignore_eos": True}
TOKENS = 3

Pair = tuple[EngineProcess, EngineProcess]


@pytest.fixture(scope="module")
def both(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Plain in V1, with scripted drafts in V2."""
    folder = tmp_path_factory.mktemp("law")
    options = {
        **{"model": make_tiny(model, folder / "tiny"), "dtype": "float32"},
        **{"max_model_len": 64, "max_num_seqs": 32, "num_gpu_blocks_override": 256},
    }
    with ExitStack() as stack:
        plain, ours = (
            stack.enter_context(
                EngineProcess({**options, **more}, name=name, env=env, log=folder / f"{name}.log")
            )
            for name, more, env in (
                ("v1-plain", {}, VLLM_V2.plain),
                ("v2-scripted", VLLM_V2.scripted, together(VLLM_V2.environment, WITH_PLUGINS)),
            )
        )
        yield plain, ours


def check(plain: Driver, ours: EngineProcess, samples: int) -> None:
    prompt, table = follow_greedily(plain, PROMPT, width=2)
    script = {str(token): draft for token, draft in table.items()}
    ours.call("run", target="engine_test_proposers:script", table=script)
    reference, _, _ = sample(plain, prompt, LawTest({**LAW, "max_tokens": TOKENS}, samples), 101)
    # One token more, because the last token of an answer is never a drafted one.
    case = LawTest({**LAW, "max_tokens": TOKENS + 1}, samples)
    drawn, _, gained = sample(ours, prompt, case, 202)
    assert gained.accepted_per_position[0] > samples // 20, gained
    assert gained.accepted_per_position[1] > samples // 100, gained
    assert gained.draft_tokens - gained.accepted_tokens > samples // 10, gained
    verdict = compare_laws(reference, [tokens[:TOKENS] for tokens in drawn])
    assert min(verdict.cells[2], verdict.cells[3]) >= 5, verdict
    assert verdict.worst_p > LOWEST_P, verdict
    print(f"\n{samples} samples, {verdict}, {gained}")


def test_v2_with_drafts_draws_from_the_law_of_v1_without(both: Pair) -> None:
    check(*both, samples=500)


def test_another_temperature_is_told_apart(both: Pair) -> None:
    """So many samples would find a law that is wrong by a fifth in temperature."""
    plain, _ = both
    one = {**LAW, "max_tokens": TOKENS}
    right, _, _ = sample(plain, PROMPT, LawTest(one, 1500), 101)
    wrong, _, _ = sample(plain, PROMPT, LawTest({**one, "temperature": 1.2}, 1500), 303)
    assert compare_laws(right, wrong).worst_p < LOWEST_P


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_same_with_many_samples(both: Pair) -> None:
    check(*both, samples=15000)
