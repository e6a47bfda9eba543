"""What each idea of the suffix drafter brings: replays of recorded requests with one idea left out at a time.

    python tools/environments.py run core benchmarks/ablation.py TRACES TOKENIZER [--variant NAME ...] [--cost C ...]

TRACES is a folder of logs as ``specplug replay`` reads them; they are replayed in file order with a state per log. Each
variant is a copy of the package with some lines changed (its kernels are compiled anew, up to a minute), or another
option; with ``--hyper`` they are the hyper-parameters, each halved and doubled. Shown is the speedup,
emitted / (steps + c * drafted), over that of the whole. Deterministic; no model is run.
Results are added to ``--out``, so that variants can be run one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

from _variants import HYPER, VARIANTS, WHOLE, Variant

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
WIDTH = 16


def sources(folder: Path) -> Path:
    """The package as users get it, in a folder that may be edited."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-compile", "--target", str(folder), str(CHECKOUT)], check=True)
    return folder


def edit(folder: Path, variant: Variant) -> None:
    """Leave an idea out.

    Raises:
        SystemExit: a line to be changed is not there, or more than once.
    """
    for name, old, new in variant.edits:
        path = folder / "specplug" / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{variant.name}: {old!r} stands {text.count(old)} times in {name}")
        path.write_text(text.replace(old, new), encoding="utf-8")


def run(variant: Variant, package: Path, tokens: Path, costs: Sequence[float]) -> Any:
    """Counts of one variant by log and cost, replayed by a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "package"
        copytree(package, copy)
        edit(copy, variant)
        asked = json.dumps({"options": variant.options, "told": variant.told, "costs": list(costs)})
        command = [sys.executable, "-P", str(Path(__file__)), "--replay", str(tokens), asked]
        environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{HERE}"}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)


def replay(tokens: Path, asked: Mapping[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Steps, emitted and drafted tokens by log and cost; what :func:`run` calls in another process."""
    from specplug import registry
    from specplug.replay.drivers import ProposerDriver
    from specplug.types import Context

    vocabulary, logs = pickle.loads(tokens.read_bytes())
    found: dict[str, dict[str, list[int]]] = {}
    for log, requests in logs.items():
        longest = max(len(prompt) + len(response) for prompt, response in requests)
        context = Context(vocabulary, longest + WIDTH, WIDTH, max_requests=1)
        found[log] = {}
        for cost in asked["costs"]:
            options = {"verify_cost": asked["told"] * cost, **asked["options"]}
            driver = ProposerDriver(registry.build("suffix", context, options), context)
            found[log][f"{cost:g}"] = play(driver, requests)
    return found


def play(driver: Any, requests: Any) -> list[int]:
    """Steps, emitted and drafted tokens of a teacher-forced greedy replay, see :mod:`specplug.replay.simulator`."""
    from specplug.session import accepted_tokens

    steps = emitted = drafted = 0
    for prompt, response in requests:
        if len(response) < 2:
            continue
        driver.begin(prompt)
        new, position = response[:1], 1
        while position < len(response):
            driver.step(new)
            draft = driver.draft().tokens
            accepted = accepted_tokens(draft, None, response[position : position + len(draft)])
            end = min(len(response), position + accepted + 1)
            steps, emitted, drafted = steps + 1, emitted + end - position, drafted + len(draft)
            new, position = response[position:end], end
        driver.end(new)
    return [steps, emitted, drafted]


def table(results: Mapping[str, Any], variants: Sequence[Variant], cost: str) -> str:
    """Markdown: per variant and log the speedup over that of the whole, and the geometric mean."""
    from _peers_report import geometric_mean

    def speedup(variant: str, log: str) -> float:
        steps, emitted, drafted = results[variant][log][cost]
        return float(emitted / (steps + float(cost) * drafted))

    names = [v.name for v in variants if v.name in results and v.name != WHOLE]
    logs = list(results[WHOLE])
    lines = [f"| c = {cost} | " + " | ".join(logs) + " | geometric mean |"]
    lines += ["|---" * (len(logs) + 2) + "|"]
    first = [speedup(WHOLE, log) for log in logs]
    lines.append(f"| {WHOLE}: speedup | " + " | ".join(f"{v:.3f}" for v in first) + " | |")
    for name in names:
        ratios = [speedup(name, log) / whole for log, whole in zip(logs, first, strict=True)]
        cells = [f"{v:.3f}" for v in [*ratios, geometric_mean(ratios)]]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--variant", nargs="+", metavar="NAME", help="these only")
    parser.add_argument("--hyper", action="store_true", help="hyper-parameters, not ideas")
    parser.add_argument("--cost", type=float, nargs="+", default=[0.03])
    parser.add_argument("--only", nargs="+", default=[], metavar="LOG")
    parser.add_argument("--limit", type=int, help="requests of each log")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "build" / "ablation.json")
    return parser.parse_args()


def main() -> None:
    """Run the variants asked for and print the tables."""
    if sys.argv[1:2] == ["--replay"]:
        print(json.dumps(replay(Path(sys.argv[2]), json.loads(sys.argv[3]))))
        return
    from _comparison import load

    from specplug.replay.tokenizers import load_tokenizer

    chosen = arguments()
    variants = HYPER if chosen.hyper else VARIANTS
    unknown = set(chosen.variant or ()) - {v.name for v in variants}
    if unknown:
        raise SystemExit(f"no such variant: {unknown}; there are {[v.name for v in variants]}")
    tokenizer = load_tokenizer(chosen.tokenizer)
    results = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        package, tokens = sources(Path(folder) / "package"), Path(folder) / "tokens"
        logs = load(chosen.traces, tokenizer, chosen.limit, chosen.only)
        tokens.write_bytes(pickle.dumps((tokenizer.vocab_size, logs)))
        for variant in variants:
            if not chosen.variant or variant.name in chosen.variant:
                print(f"{variant.name}: {variant.says}", file=sys.stderr, flush=True)
                found = run(variant, package, tokens, chosen.cost)
                known = results.setdefault(variant.name, {})
                for log, counts in found.items():
                    known.setdefault(log, {}).update(counts)
                chosen.out.write_text(json.dumps(results))
    for cost in chosen.cost:
        print(table(results, variants, f"{cost:g}"), end="\n\n")


if __name__ == "__main__":
    main()
