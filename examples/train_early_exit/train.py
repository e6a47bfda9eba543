"""Trains two small models on the CPU in minutes, one as usual, one for early exits, and shows what that changes.

Both read the same text, the sources of Python's standard library, byte by byte, in the same number of steps. The second
one learns by the recipe of LayerSkip (Elhoushi et al. 2024, arXiv:2404.16710): deep layers are dropped at random, the
more often the deeper, and in every step one more exit (in rotation) has to predict the text through the common head.
Both are saved as ordinary Hugging Face checkpoints, and both then draft for themselves::

    python tools/environments.py run vllm examples/train_early_exit/train.py --out build/early_exit

The model is a toy: what it shows is the difference, and that a checkpoint trained this way pays.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

from specplug.adapters.transformers_hf import Decoder, SelfSpeculation
from specplug.layers.plan import Plan
from specplug.proposers.layerskip.early_exit import EarlyExit, Fixed
from specplug.proposers.layerskip.stopping import Always, Paying
from specplug.replay.progress import Progress
from specplug.replay.provenance import provenance

#: One token per byte, and one to begin with.
VOCABULARY, BEGIN = 257, 256


def text(limit: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    pieces, size = [], 0
    for path in sorted(folder.glob("*.py")):
        pieces.append(np.frombuffer(path.read_bytes(), np.uint8))
        size += len(pieces[-1])
        if size >= limit:
            break
    return np.concatenate(pieces).astype(np.int64)


def build(options: argparse.Namespace) -> Any:
    """A small Llama, the same weights every time."""
    import torch
    import transformers

    torch.manual_seed(options.seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.width,
        intermediate_size=8 * options.width // 3,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def states_of(model: Any, ids: Any, drop: list[float]) -> list[Any]:
    """Hidden states after each layer; layer ``i`` is left out with chance ``drop[i]``."""
    import torch

    inner = model.model
    hidden = inner.embed_tokens(ids)
    places = torch.arange(ids.shape[1])[None]
    angles = inner.rotary_emb(hidden, position_ids=places)
    found = []
    for chance, block in zip(drop, inner.layers, strict=True):
        if torch.rand(()) >= chance:
            hidden = block(hidden, position_ids=places, position_embeddings=angles)
        found.append(hidden)
    return found


def train(options: argparse.Namespace, data: Any, early: bool) -> Any:
    """One model; ``early`` by the recipe above."""
    import torch

    model = build(options).train()
    layers = options.layers
    # Grows from 0 in the first layer to its largest value in the last, as in the paper.
    drop = [
        options.dropout * (math.exp(i * math.log(2) / (layers - 1)) - 1.0) for i in range(layers)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.rate, total_steps=options.steps, pct_start=0.1
    )
    coins = np.random.default_rng(options.seed)
    with Progress(options.steps, options.quiet, unit="steps") as progress:
        progress.at("for early exits" if early else "as usual")
        for step in range(options.steps):
            starts = coins.integers(0, len(data) - options.length - 1, options.batch)
            rows = torch.tensor(np.stack([data[s : s + options.length + 1] for s in starts]))
            states = states_of(model, rows[:, :-1], drop if early else [0.0] * layers)
            exits = [layers - 1, step % (layers - 1)] if early else [layers - 1]
            loss = torch.zeros(())
            for place in exits:
                scores = model.lm_head(model.model.norm(states[place]))
                part = torch.nn.functional.cross_entropy(
                    scores.flatten(0, 1), rows[:, 1:].flatten()
                )
                loss = loss + part * (1.0 if place == layers - 1 else options.weight)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            progress.done(1)
    return model.eval()


def save_tokenizer(folder: Path) -> None:
    """One token per byte, so that servers which want a tokenizer load the checkpoint."""
    import tokenizers
    import transformers

    # The usual stand-ins: printable bytes for themselves, the others as characters from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    stand_ins = {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}
    vocabulary = {stand_ins[byte]: byte for byte in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<begin>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<begin>"
    ).save_pretrained(folder)


def measure(
    model: Any, prompts: list[list[int]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Plain decoding, every exit, and the best exit with the rule that drafts while it pays."""
    decoder = Decoder(model)
    layers = decoder.layers
    rows: list[dict[str, Any]] = []

    def add(name: str, policy: Any, stop: Any, width: int) -> None:
        engine = SelfSpeculation(decoder, policy, stop, max_draft=width)
        engine.generate(prompts[0], 8)
        start = time.perf_counter()
        runs = [engine.generate(prompt, options.tokens) for prompt in prompts]
        seconds = time.perf_counter() - start
        drafted, accepted = sum(r.drafted for r in runs), sum(r.accepted for r in runs)
        emitted, steps = sum(len(r.tokens) for r in runs), sum(r.steps for r in runs)
        outputs = [r.tokens for r in runs]
        rows.append(
            {
                "draft": name,
                "acceptance": accepted / drafted if drafted else 0.0,
                "mal": emitted / steps,
                "tokens_per_s": emitted / seconds,
                "identical": sum(a == b for a, b in zip(outputs, rows[0]["outputs"], strict=True))
                if rows
                else len(runs),
                "outputs": outputs,
            }
        )

    add("none", Fixed(Plan.full(layers)), Always(), 0)
    for place in range(1, layers):
        add(f"exit {place} of {layers}", EarlyExit(layers, place), Always(), options.draft)
    best = max(rows[1:], key=lambda row: row["tokens_per_s"])["draft"]
    place = int(best.split()[1])
    add(
        f"exit {place}, while it pays",
        EarlyExit(layers, place),
        Paying(),
        options.draft,
    )
    return rows


def table(name: str, rows: list[dict[str, Any]]) -> str:
    """Aligned, with ratios to plain decoding of the same model."""
    lines = [f"{name:<24}  acceptance  MAL step  tokens/s  ratio  identical"]
    for row in rows:
        ratio = row["tokens_per_s"] / rows[0]["tokens_per_s"]
        lines.append(
            f"  {row['draft']:<22}  {row['acceptance']:>10.3f}  {row['mal']:>8.2f}  {row['tokens_per_s']:>8.1f}  "
            f"{ratio:>4.2f}x  {row['identical']} of {len(row['outputs'])}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for both checkpoints")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.2, help="of the last layer")
    parser.add_argument("--weight", type=float, default=1.0, help="of the rotating exit's loss")
    parser.add_argument("--tokens", type=int, default=96, help="generated per prompt")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--draft", type=int, default=3, help="tokens drafted per step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure what lies in --out already")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    import transformers

    data = text(3_000_000)
    learned, unseen = data[: -len(data) // 20], data[-len(data) // 20 :]
    starts = np.linspace(0, len(unseen) - 300, options.prompts).astype(int)
    prompts = [[BEGIN, *unseen[s : s + 200].tolist()] for s in starts]
    worst = 0
    for name, early in (("usual", False), ("early_exit", True)):
        start = time.perf_counter()
        if options.again:
            model = transformers.AutoModelForCausalLM.from_pretrained(options.out / name)
        else:
            model = train(options, learned, early)
            model.save_pretrained(options.out / name)
            save_tokenizer(options.out / name)
        seconds = time.perf_counter() - start
        rows = measure(model, prompts, options)
        print(table(f"{name}, {seconds:.0f} s", rows), flush=True)
        worst += sum(row["identical"] < options.prompts for row in rows)
    print(json.dumps(provenance(("specplug", "torch", "transformers"), options.seed)))
    return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
