"""Host time of the SGLang adapter per engine step: drafting, laying out, and what verification asks of the host.

Drives the real drafter, layout and verification on stand-in requests (no engine, no model), with the text of
``host_time.py``. Verification runs on a vocabulary of 256 tokens, so that what is timed are its calls and not the
arithmetic, which the accelerator does; on a CPU add the arithmetic (one pass over the logits when decoding greedily).
Needs torch::

    python tools/environments.py run sglang benchmarks/sglang_host_time.py [--batches 1 8 64] [--steps 600]
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from array import array
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from host_time import OUTPUT, VOCABULARY, WARM_STEPS, Corpus

from specplug import registry
from specplug.adapters.common.timing import StepTimes
from specplug.adapters.sglang_srt.drafting import Drafter, Drafts
from specplug.adapters.sglang_srt.layout import chain_mask, lay_out
from specplug.adapters.sglang_srt.verify import Step, verify
from specplug.replay.provenance import provenance
from specplug.session import Session
from specplug.types import Context, TokenArray

SMALL = 256
#: CPU time of the calling thread for the parts, which a busy machine leaves alone; wall time for the whole.
PHASES = ("draft", "layout", "verify", "all", "wall")


class Request:
    """A request as the scheduler holds it, and the output that its model will give."""

    def __init__(self, name: str, prompt: TokenArray, output: TokenArray, length: int) -> None:
        self.rid = name
        self.origin_input_ids = array("q", prompt.tolist())
        self.output_ids = array("q", output[:1].tolist())
        self.text = np.resize(output, 2 * OUTPUT).tolist()
        self.length = length
        self.sampling_params = SimpleNamespace(
            **{"top_k": 1, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True},
            **{"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0},
            **{"min_new_tokens": 0, "max_new_tokens": OUTPUT, "stop_token_ids": None},
            custom_params=None,
        )

    def accept(self, draft: list[int]) -> int:
        """Append what the model says; how many drafts were right."""
        done = len(self.output_ids)
        right = 0
        while right < len(draft) and draft[right] == self.text[done + right]:
            right += 1
        self.output_ids.extend(self.text[done : done + right + 1])
        return right


def verification(drafts: Drafts, tokens: Any, reqs: list[Request], histories: Any) -> Step:
    """A greedy step on a small vocabulary."""
    rows, width = tokens.shape
    info = SimpleNamespace(
        is_all_greedy=True, sampling_seed=None, logit_bias=None, has_custom_logit_processor=False
    )
    logits = torch.zeros(rows, width, SMALL)
    step_tokens = torch.from_numpy(tokens[:, 1:] % SMALL)
    lengths = torch.from_numpy(drafts.lengths.astype(np.int64))
    batch = SimpleNamespace(reqs=reqs, sampling_info=info)
    return Step(batch, logits, drafts, step_tokens, lengths, histories)


def measure(method: str, batch: int, steps: int, prompt: int, width: int, seed: int) -> Any:
    """Median and 99th percentile in microseconds of each phase over ``steps`` steps of ``batch`` requests."""
    corpus = Corpus(seed)
    context = Context(VOCABULARY, prompt + 2 * OUTPUT, width, batch)

    def session() -> Session:
        return Session(registry.build(method, context, {}), context)

    drafter = Drafter(session, VOCABULARY, width, False, logging.getLogger("specplug"))
    numbers = count()

    def arrival() -> Request:
        number = next(numbers)
        asked, output = corpus.request(prompt, copies=number % 2 == 0)
        length = OUTPUT if number >= batch else max(8, OUTPUT * (number + 1) // batch)
        return Request(f"{number}-request", asked, output, length)

    reqs = [arrival() for _ in range(batch)]
    times = {phase: StepTimes(steps) for phase in PHASES}
    drafted = accepted = 0
    for step in range(WARM_STEPS + steps):
        wall, begin = time.perf_counter_ns(), time.thread_time_ns()
        histories = drafter.histories(reqs, [[] for _ in reqs])
        drafts = drafter.draft(reqs, histories, [True] * batch)
        one = time.thread_time_ns()
        wide = int(drafts.lengths.max())
        drafts = Drafts(drafts.tokens[:, :wide], drafts.lengths)
        layout = lay_out(np.array([r.output_ids[-1] for r in reqs]), drafts)
        torch.from_numpy(layout.tokens), torch.from_numpy(layout.depths)
        torch.from_numpy(chain_mask(batch, wide + 1))
        two = time.thread_time_ns()
        verify(verification(drafts, layout.tokens, reqs, histories), None, "pytorch")
        three = time.thread_time_ns()
        wall = time.perf_counter_ns() - wall
        if step >= WARM_STEPS:
            for phase, spent in zip(
                PHASES, (one - begin, two - one, three - two, three - begin, wall), strict=True
            ):
                times[phase].add(spent)
        for row, req in enumerate(reqs):
            n = int(drafts.lengths[row])
            drafted += n
            accepted += req.accept(drafts.tokens[row, :n].tolist())
            if len(req.output_ids) >= req.length:
                drafter.finished(req.rid)
                reqs[row] = arrival()
    assert drafter.faults == 0, "something failed: see the log"
    rows = (WARM_STEPS + steps) * batch
    return {
        "batch": batch,
        **{phase: times[phase].as_dict() for phase in PHASES},
        "drafted": drafted / rows,
        "accepted": accepted / rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--method", default="suffix")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--prompt", type=int, default=2000, help="prompt tokens per request")
    parser.add_argument("--width", type=int, default=15, help="draft tokens per row")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"host time of specplug.{chosen.method} in SGLang per engine step, microseconds")
    facts = provenance(("specplug", "numpy", "numba", "torch"), chosen.seed)
    print(*(f"  {key}: {value}" for key, value in facts.items()), sep="\n")
    print("  draft, layout, verify, all: CPU time of the calling thread; wall: everything")
    heads = "".join(f"{p + ' median':>15}{'p99':>8}" for p in PHASES)
    print(f"batch{heads}   per row: drafted accepted")
    for batch in chosen.batches:
        row = measure(chosen.method, batch, chosen.steps, chosen.prompt, chosen.width, chosen.seed)
        cells = "".join(f"{row[p]['median_us']:>15.0f}{row[p]['p99_us']:>8.0f}" for p in PHASES)
        print(f"{batch:>5}{cells}{row['drafted']:>19.2f}{row['accepted']:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
