"""What each idea of the suffix drafter brings: replays of recorded requests with one idea left out at a time.

    python tools/environments.py run core benchmarks/ablation.py TRACES TOKENIZER [--variant NAME ...] [--cost C ...]

TRACES is a folder of logs as ``specplug replay`` reads them; they are replayed in file order with a state per log. Each
variant is a copy of the package with some lines changed (its kernels are compiled anew, up to a minute), or another
option. Shown is the speedup, emitted / (steps + c * drafted), over that of the whole. Deterministic; no model is run.
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
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
WHOLE = "whole"
WIDTH = 16


@dataclass(frozen=True)
class Variant:
    """Lines of the sources that are replaced (file, old, new), or options, and what that leaves out."""

    name: str
    says: str
    edits: tuple[tuple[str, str, str], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def _layout(old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    return (("kernels/layout.py", old, new),)


def _learning(old: str, new: str) -> tuple[tuple[str, str, str], ...]:
    return (("kernels/learning.py", old, new),)


def _without(*features: str) -> tuple[str, str, str]:
    """The features of a ranked token that do not count; what is learned of them does not matter then."""
    asked = " or ".join(f"f == {FEATURES.index(name)}" for name in features)
    old = "z += weights[f] * log.features[where, row, f]"
    return "kernels/ranking.py", old, f"z += 0.0 if {asked} else {old[5:]}"


#: In the order of ``F_*`` in the layout.
FEATURES = ("reliability", "count", "one", "token", "context", "recency", "near", "age", "both")

VARIANTS = (
    Variant(WHOLE, "everything"),
    Variant("store", "no text of other requests", options={"store_mb": 0}),
    Variant("prompts", "with the prompts of other requests", options={"share_prompts": True}),
    Variant(
        "templates",
        "one model for all prompts",
        (("index/templates.py", "if len(prompt) < PREFIX:", "if len(prompt) >= 0:"),),
    ),
    Variant(
        "pointers",
        "copying is not followed past an edit, and nearness to where it had got to is not asked",
        (
            ("kernels/match.py", "for inserted in range(2):", "for inserted in range(0):"),
            _without("near"),
        ),
    ),
    Variant(
        "edits",
        "how far a match goes on past an edited token does not count",
        (
            (
                "kernels/match.py",
                "edits = 0 if edit < 3 else (1 if edit < 7 else 2)",
                "edits = 0",
            ),
        ),
    ),
    Variant("newest", "one candidate per chain", _layout("MAX_FOUND = 24", "MAX_FOUND = 1")),
    Variant(
        "reliability",
        "hit rates of classes of candidates stay as they begin",
        _learning("        _learn_candidates(state, where, which, depth, true)\n", ""),
    ),
    Variant(
        "weights", "weights stay as they begin", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.0")
    ),
    Variant(
        "agreement",
        "how many candidates and texts agree does not count",
        (_without("count", "both"),),
    ),
    Variant(
        "tables", "the token and the one before it do not count", (_without("token", "context"),)
    ),
    Variant("recency", "how long ago the token occurred does not count", (_without("recency"),)),
    Variant("age", "how old the candidates are does not count", (_without("age"),)),
    Variant(
        "stopping",
        "a draft ends at the cost of a token, not at cost times goodput",
        (
            (
                "kernels/branching.py",
                "return cost * learned[M_TOKENS] / learned[M_COST]",
                "return cost",
            ),
        ),
    ),
    Variant("8 candidates", "per chain instead of 24", _layout("MAX_FOUND = 24", "MAX_FOUND = 8")),
    Variant("16 links", "per chain instead of 64", _layout("MAX_STEPS = 64", "MAX_STEPS = 16")),
    Variant("keep 4", "followed after the first token, not 16", _layout("KEEP = 16", "KEEP = 4")),
    Variant(
        "step / 3", "weights learn slower", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.0067")
    ),
    Variant("step x 3", "weights learn faster", _learning("STEP_SIZE = 0.02", "STEP_SIZE = 0.06")),
    Variant(
        "goodput x 10", "of 50 steps, not 500", _learning("DISCOUNT = 0.998", "DISCOUNT = 0.98")
    ),
    Variant(
        "16 pseudo-counts",
        "per class of candidates, not 4",
        (("kernels/ranking.py", "SHRINK_CELL = 4.0", "SHRINK_CELL = 16.0"),),
    ),
)


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
        asked = json.dumps({"options": variant.options, "costs": list(costs)})
        command = [sys.executable, "-P", str(Path(__file__)), "--replay", str(tokens), asked]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
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
            options = {"verify_cost": cost, **asked["options"]}
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


def table(results: Mapping[str, Any], cost: str) -> str:
    """Markdown: per variant and log the speedup over that of the whole, and the geometric mean."""
    from _peers_report import geometric_mean

    def speedup(variant: str, log: str) -> float:
        steps, emitted, drafted = results[variant][log][cost]
        return float(emitted / (steps + float(cost) * drafted))

    names = [v.name for v in VARIANTS if v.name in results and v.name != WHOLE]
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
    parser.add_argument("--variant", nargs="+", choices=[v.name for v in VARIANTS])
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
    tokenizer = load_tokenizer(chosen.tokenizer)
    results = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        package, tokens = sources(Path(folder) / "package"), Path(folder) / "tokens"
        logs = load(chosen.traces, tokenizer, chosen.limit, chosen.only)
        tokens.write_bytes(pickle.dumps((tokenizer.vocab_size, logs)))
        for variant in VARIANTS:
            if not chosen.variant or variant.name in chosen.variant:
                print(f"{variant.name}: {variant.says}", file=sys.stderr, flush=True)
                found = run(variant, package, tokens, chosen.cost)
                known = results.setdefault(variant.name, {})
                for log, counts in found.items():
                    known.setdefault(log, {}).update(counts)
                chosen.out.write_text(json.dumps(results))
    for cost in chosen.cost:
        print(table(results, f"{cost:g}"), end="\n\n")


if __name__ == "__main__":
    main()
