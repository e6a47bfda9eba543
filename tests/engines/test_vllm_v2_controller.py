"""The default controller in vLLM's V2 runner, interpreted: it drafts, gives up where nothing helps, and comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Step

from .conftest import WITH_PLUGINS
from .engines import SCRIPTED_WIDTH, VLLM_V2, together
from .prompts import VARIED

LENGTH, LONG = 48, 160
GREEDY = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
PLAIN = {"extra_args": {"specplug": {"draft_limit": 0}}}
PROMPT = VARIED["repeat-line"]


#: What pays depends on how long steps take, so only directions are asserted, and not in every run of the tests.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def governed(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Drafts what a test says; nothing is said about the controller."""
    options = {
        **{"model": model, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 2},
        **VLLM_V2.small,
        "speculative_config": {
            "method": "specplug.scripted",
            "num_speculative_tokens": SCRIPTED_WIDTH,
        },
    }
    env = together(VLLM_V2.environment, WITH_PLUGINS)
    log = tmp_path_factory.mktemp("v2") / "governed.log"
    with EngineProcess(options, name="governed", env=env, log=log) as engine:
        yield engine


def drafted(steps: tuple[Step, ...]) -> float:
    """Tokens per step."""
    return sum(len(step.draft) for step in steps) / len(steps)


def test_it_drafts_what_is_right_nothing_that_is_wrong_and_comes_back(
    governed: EngineProcess,
) -> None:
    plain = governed.generate([PROMPT], {**GREEDY, **PLAIN}).results[0].only
    # The answer repeats a line: what follows a token is always the same.
    right = {
        str(plain.token_ids[i]): list(plain.token_ids[i + 1 : i + 1 + SCRIPTED_WIDTH])
        for i in range(LENGTH - SCRIPTED_WIDTH)
    }
    wrong = next(token for token in range(1000, 2000) if token not in plain.token_ids)

    def serve(length: int, **script: object) -> tuple[Step, ...]:
        governed.call("run", target="engine_test_proposers:script", **{"table": {}, **script})
        only = governed.generate([PROMPT], {**GREEDY, "max_tokens": length}).results[0].only
        assert only.token_ids[:LENGTH] == plain.token_ids
        return only.steps

    def help_thrice() -> tuple[Step, ...]:
        return tuple(step for _ in range(3) for step in serve(LENGTH, table=right))

    helpful = help_thrice()
    assert sum(step.accepted for step in helpful) > LENGTH
    hopeless = serve(LONG, always=[wrong] * SCRIPTED_WIDTH)
    again = help_thrice()
    quarters = [drafted(hopeless[i : i + LONG // 4]) for i in range(0, LONG, LONG // 4)]
    print(
        f"\ntokens drafted per step: {drafted(helpful):.2f} where drafts are right, "
        f"{[round(q, 2) for q in quarters]} by quarters where they are wrong, {drafted(again):.2f} after that"
    )
    print("".join(str(len(step.draft)) for step in hopeless))
    assert quarters[-1] < min(drafted(helpful), drafted(again))
    assert quarters[-1] < quarters[0]
    state = governed.metrics()
    assert state.own["controller"]["controller"] == "goodput"
    assert state.own["controller"]["cost_steps"] >= 5
    assert state.own["session"]["accepted"] == state.accepted_tokens
    assert state.own["adapter_faults"] == state.own["session"]["faults"] == 0
