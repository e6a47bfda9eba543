"""The command ``specplug fit-exit``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.adapters.transformers_hf.decoder import Decoder
    from specplug.adapters.transformers_hf.fitting import Row

DESCRIPTION = """\
Fits exit heads for a model: linear maps by which its first layers guess its next token, for drafts by layer skipping.
In closed form, without training; reads text files, folders and logs as `specplug datastore build` does, or, if none are
named, lets the model talk to itself. Text is read in pieces of 512 tokens: the first four of every document, and, if
these are too few, the rest of the documents in turn. One piece of seven is left out (its neighbour may be read), and
how often each exit agrees with the whole model on these is printed. Runs where transformers and torch are installed, as
they are beside vLLM and SGLang.
"""
PACKAGES = ("specplug", "torch", "transformers", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="folder of a Hugging Face causal language model")
    add("inputs", nargs="*", type=Path, metavar="INPUT", help="text, logs or folders to fit it on")
    add("--out", type=Path, metavar="FILE", help="file of heads (MODEL.exits, beside the folder)")
    add(
        "--layers",
        default="1/4,1/2,3/4",
        metavar="N,...",
        help="exits, in layers or as fractions of the depth, or `all` (1/4,1/2,3/4)",
    )
    add("--tokens", type=_positive, default=30_000, metavar="N", help="to fit on (30000)")
    add(
        "--ridge",
        type=float,
        default=0.01,
        metavar="R",
        help="penalty, as a share of the states' size (0.01)",
    )
    add("--rank", type=_positive, metavar="N", help="of the maps; smaller files (full)")
    add(
        "--measure",
        type=_positive,
        default=1500,
        metavar="N",
        help="held-out tokens to measure on (1500)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn at random (0)")
    add("--quiet", action="store_true", help="no progress bar")


def run(chosen: argparse.Namespace) -> int:
    """Fit, measure, write; returns the exit code."""
    from specplug.errors import MissingExtraError, SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug fit-exit: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        print(
            f"specplug fit-exit: {MissingExtraError('fitting exit heads', str(error.name), 'vllm')}",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
    return 1


def exits_of(text: str, layers: int) -> list[int]:
    """The exits that ``--layers`` names in a model of ``layers`` layers.

    Raises:
        ExitHeadError: neither numbers nor fractions, or outside of the model.
    """
    from specplug.errors import ExitHeadError

    if text == "all":
        return list(range(1, layers))
    found = []
    for part in text.split(","):
        above, _, below = part.partition("/")
        try:
            layer = round(layers * int(above) / int(below)) if below else int(above)
        except (ValueError, ZeroDivisionError):
            raise ExitHeadError(
                f"--layers takes numbers, fractions or `all`, got {part!r}; for example --layers 4,1/2"
            ) from None
        if not 1 <= layer < layers:
            raise ExitHeadError(
                f"--layers {part}: an exit lies after 1 to {layers - 1} layers of this model, not after {layer}"
            )
        found.append(layer)
    return sorted(set(found))


def _run(chosen: argparse.Namespace) -> int:
    from specplug.adapters.transformers_hf import fitting
    from specplug.layers.exit_file import SUFFIX, save_heads
    from specplug.replay import provenance
    from specplug.replay.progress import Progress

    out: Path = chosen.out or chosen.model.resolve().with_name(chosen.model.resolve().name + SUFFIX)
    _check_place(out)
    decoder = _load(chosen.model)
    exits = exits_of(chosen.layers, decoder.layers)
    collector = fitting.Collector(decoder, exits, chosen.measure, chosen.seed)
    with Progress(chosen.tokens, chosen.quiet, unit="tokens") as progress:
        fitting.collect(collector, _documents(chosen, decoder), chosen.tokens, progress.done)
    heads = collector.fit(chosen.ridge, chosen.rank)
    with Progress(len(exits), chosen.quiet, unit="exits") as progress:
        rows = collector.measure(heads, progress.done)
    print(_table(rows, decoder.layers, collector.held_out))
    facts: dict[str, Any] = {
        **provenance.provenance(PACKAGES, chosen.seed),
        "model": decoder.name,
        "tokens": collector.tokens,
        "ridge": chosen.ridge,
        "agreement": {row.exit_layer: {"raw": row.raw, "fitted": row.fitted} for row in rows},
    }
    size = save_heads(out, list(heads.values()), decoder.fingerprint(), facts)
    print(
        f"fitted on {collector.tokens} tokens; {len(heads)} heads, {size / 1000:.0f} kB, written to {out}"
    )
    return 0


def _check_place(out: Path) -> None:
    """Before minutes of work: is there a folder to write to?"""
    from specplug.errors import ExitHeadError

    if not out.parent.is_dir():
        raise ExitHeadError(
            f"{out}: there is no folder {out.parent}; make it, or choose another --out"
        )


def _load(path: Path) -> Decoder:
    import transformers

    from specplug.adapters.transformers_hf.decoder import Decoder
    from specplug.errors import ExitHeadError

    if not (path / "config.json").is_file():
        raise ExitHeadError(f"{path}: no folder of a Hugging Face model (it has no config.json)")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32")
    except (OSError, ValueError) as error:
        raise ExitHeadError(f"{path}: transformers cannot load it: {error}") from error
    return Decoder(model)


def _documents(chosen: argparse.Namespace, decoder: Decoder) -> Iterator[Sequence[int]]:
    """Token ids of one document after the other."""
    from specplug.adapters.transformers_hf.fitting import own_text
    from specplug.datastore.inputs import Filters, Inputs
    from specplug.replay.tokenizers import load_tokenizer

    if not chosen.inputs:
        yield from own_text(decoder, chosen.tokens * 4 // 3, chosen.seed)
        return
    tokenizer = load_tokenizer(chosen.model)
    for document in Inputs(chosen.inputs, Filters(whole=True)):
        content = document.content
        ids = tokenizer.encode([content])[0] if isinstance(content, str) else content
        yield [token for token in ids.tolist() if 0 <= token < decoder.vocab_size]


def _table(rows: Sequence[Row], layers: int, held_out: int) -> str:
    lines = [
        f"agreement with the whole model on {held_out} tokens of text that was left out",
        f"{'exit after':>12}  {'raw':>6}  {'fitted':>6}  {'ratio':>6}  {'explained':>9}",
    ]
    for row in rows:
        ratio = f"{row.fitted / row.raw:.1f}x" if row.raw else "-"
        place = f"{row.exit_layer} of {layers}"
        lines.append(
            f"{place:>12}  {row.raw:>6.3f}  {row.fitted:>6.3f}  {ratio:>6}  {row.explained:>9.3f}"
        )
    return "\n".join(lines)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value
