"""The law of sampling with look-ups on the device and asynchronous scheduling on: that of V1 without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from specplug.testing.engine_process import EngineProcess

from .engines import VLLM_V2
from .law import LawTest, compare_laws, follow_greedily, sample
from .tiny import make_tiny

LOWEST_P = 1e-4
PROMPT = [11, 5, 11, 5, 42, 11]
LAW = {"temperature": 1.0, "ignore_eos": True}
TOKENS = 3

Pair = tuple[EngineProcess, EngineProcess]

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def both(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Plain in V1, with look-ups on the device in V2; a tiny model."""
    folder = tmp_path_factory.mktemp("law")
    options = {
        **{"model": make_tiny(model, folder / "tiny"), "dtype": "float32"},
        **{"max_model_len": 128, "max_num_seqs": 32, "num_gpu_blocks_override": 256},
    }
    drafts = {
        **{"method": "specplug.suffix", "num_speculative_tokens": 3},
        "specplug": {"lookup": {"name": "device", "store_mb": 0.005}, "controller": "fixed"},
    }
    ahead = {**VLLM_V2.environment, "SPECPLUG_TEST_AHEAD": "1"}
    plain = VLLM_V2.plain
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                EngineProcess({**options, **more}, name=name, env=env, log=folder / f"{name}.log")
            )
            for name, more, env in (
                ("v1-plain", {}, plain),
                ("v2-device", {"speculative_config": drafts}, ahead),
            )
        ]
        yield started[0], started[1]


def test_drafts_from_the_device_change_no_law(both: Pair) -> None:
    """The prompt says what is likely after each likely token, so that drafts are often accepted, and often not."""
    plain, device = both
    samples = 1500
    _, table = follow_greedily(plain, PROMPT, width=2)
    prompt = [token for first, then in table.items() for token in (first, *then)] + PROMPT
    reference, _, _ = sample(plain, prompt, LawTest({**LAW, "max_tokens": TOKENS}, samples), 101)
    # One token more, because the last token of an answer is never a drafted one.
    case = LawTest({**LAW, "max_tokens": TOKENS + 1}, samples)
    drawn, _, gained = sample(device, prompt, case, 202)
    assert gained.accepted_per_position[0] > samples // 20, gained
    assert gained.draft_tokens - gained.accepted_tokens > samples // 10, gained
    verdict = compare_laws(reference, [tokens[:TOKENS] for tokens in drawn])
    assert min(verdict.cells[2], verdict.cells[3]) >= 5, verdict
    assert verdict.worst_p > LOWEST_P, verdict
    print(f"\n{samples} samples, {verdict}, {gained}")
    assert device.metrics().own["adapter_faults"] == 0
    # So many samples would find a law that is wrong by a fifth in temperature.
    wrong, _, _ = sample(
        plain, prompt, LawTest({**LAW, "temperature": 1.2, "max_tokens": TOKENS}, samples), 303
    )
    assert compare_laws(reference, wrong).worst_p < LOWEST_P
