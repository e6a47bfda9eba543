"""Collects hidden states for exit heads, and measures what the heads bring on text that they were not fitted on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.transformers_hf.decoder import Decoder, as_numpy
from specplug.errors import ExitHeadError
from specplug.layers.exit_head import ExitHead, Moments

#: Tokens of one pass.
CHUNK = 512
#: One of so many pieces of text, beginning with the first, is kept for the measurement.
HELD_OUT = 7
#: Of every document so many pieces are read before any is read further.
FIRST = 4
#: Sequences that the model generates at a time where no text is given, and their length.
SEQUENCES, LENGTH = 8, 192


@dataclass(frozen=True)
class Row:
    """One exit: how often its best token is the whole model's, on held-out text.

    Attributes:
        exit_layer: layers that run.
        raw: with the model's last norm and LM head alone.
        fitted: with the exit head in between.
        explained: share of the squared change between the states that the head predicts, on the text it was fitted on.
    """

    exit_layer: int
    raw: float
    fitted: float
    explained: float


class Collector:
    """Feeds moments of several exits from passes of the whole model.

    Args:
        decoder: the model.
        exits: exit layers.
        measured: the most held-out positions that are kept.
        seed: of the choice of these positions.
    """

    def __init__(
        self, decoder: Decoder, exits: Sequence[int], measured: int = 1500, seed: int = 0
    ) -> None:
        wrong = [layer for layer in exits if not 1 <= layer < decoder.layers]
        if wrong or not exits:
            raise ExitHeadError(
                f"exit layers must lie between 1 and {decoder.layers - 1}, got {wrong or 'none'}"
            )
        self.decoder = decoder
        self.exits = sorted(set(exits))
        self.moments = {layer: Moments(decoder.hidden) for layer in self.exits}
        self._measured = measured
        self._kept: list[tuple[NDArray[Any], ...]] = []
        self._held = 0
        self._generator = np.random.default_rng(seed)

    @property
    def tokens(self) -> int:
        """That the heads are fitted on."""
        return self.moments[self.exits[0]].tokens

    def add(self, document: Sequence[int], held_out: bool, done: Callable[[int], None]) -> None:
        """Take in one document of token ids; ``done`` is told how many tokens were taken in to fit."""
        for start in range(0, len(document), CHUNK):
            piece = list(document[start : start + CHUNK])
            if held_out and self._held >= self._measured:
                return
            shallow, final = self._states(piece)
            if held_out:
                self._keep(shallow, final)
            else:
                for layer, states in zip(self.exits, shallow, strict=True):
                    self.moments[layer].add(states, final)
                done(len(piece))

    def fit(self, ridge: float, rank: int | None) -> dict[int, ExitHead]:
        """One head per exit.

        Raises:
            ExitHeadError: see :meth:`Moments.fit`.
        """
        return {
            layer: ExitHead.from_fit(layer, found.fit(ridge, rank), rank)
            for layer, found in self.moments.items()
        }

    def measure(self, heads: dict[int, ExitHead], done: Callable[[int], None]) -> list[Row]:
        """Agreement of each exit with the whole model; ``done`` is told of every exit.

        Raises:
            ExitHeadError: no held-out text was taken in.
        """
        if not self._kept:
            raise ExitHeadError("no text was held out to measure the heads on; give more documents")
        columns = [np.concatenate(parts) for parts in zip(*self._kept, strict=True)]
        best = self._best(columns[-1])
        rows = []
        for layer, shallow in zip(self.exits, columns[:-1], strict=True):
            head = heads[layer]
            raw = float((self._best(shallow) == best).mean())
            fitted = float((self._best(head.apply(shallow)) == best).mean())
            matrix = np.linalg.multi_dot(head.slope) if len(head.slope) > 1 else head.slope[0]
            solved = np.concatenate([np.asarray(matrix, np.float64), head.constant[None]])
            rows.append(Row(layer, raw, fitted, self.moments[layer].explained(solved)))
            done(1)
        return rows

    @property
    def held_out(self) -> int:
        """Positions that :meth:`measure` looks at."""
        return self._held

    def _states(self, piece: list[int]) -> tuple[list[NDArray[Any]], NDArray[Any]]:
        """States after the last norm: of each exit, and the final ones; ``[n, d]`` each."""
        import torch

        decoder = self.decoder
        blocks = [decoder.blocks[layer - 1] for layer in self.exits]
        ids = torch.tensor([piece], dtype=torch.long, device=decoder.model.device)
        with torch.inference_mode(), decoder.watching([*blocks, decoder.norm]) as seen:
            decoder.inner(input_ids=ids, use_cache=False)
        # Only now: the norm is watched itself.
        return [decoder.normed(states) for states in seen[:-1]], as_numpy(seen[-1])

    def _keep(self, shallow: list[NDArray[Any]], final: NDArray[Any]) -> None:
        """Some positions of every piece, so that many documents have a say."""
        count = min(len(final), 64, self._measured - self._held)
        places = np.sort(self._generator.choice(len(final), count, replace=False))
        self._kept.append(tuple(states[places] for states in (*shallow, final)))
        self._held += count

    def _best(self, states: NDArray[Any]) -> NDArray[np.int64]:
        """The LM head's best token for each state. Scaling and capping of logits do not change which is best."""
        import torch

        embeddings = self.decoder.model.get_output_embeddings()
        weight = next(embeddings.parameters())
        found = []
        with torch.inference_mode():
            for start in range(0, len(states), 256):
                rows = torch.as_tensor(states[start : start + 256]).to(weight.device, weight.dtype)
                found.append(embeddings(rows).argmax(-1).cpu().numpy())
        return np.concatenate(found)


def own_text(decoder: Decoder, tokens: int, seed: int) -> Iterator[list[int]]:
    """What the model says by itself, drawn at temperature 1 from its first token on, until ``tokens`` are there.

    Raises:
        ExitHeadError: the model has no token to begin with.
    """
    import torch

    config = decoder.model.config.get_text_config()
    begin = config.bos_token_id if config.bos_token_id is not None else config.eos_token_id
    if isinstance(begin, list):
        begin = begin[0]
    if begin is None:
        raise ExitHeadError(
            f"{decoder.name} has no token to begin with, so it cannot generate text by itself; name text files"
        )
    torch.manual_seed(seed)
    made = 0
    while made < tokens:
        start = torch.full((SEQUENCES, 1), begin, dtype=torch.long, device=decoder.model.device)
        grown = decoder.model.generate(
            start,
            attention_mask=torch.ones_like(start),
            max_new_tokens=LENGTH,
            min_new_tokens=LENGTH,
            do_sample=True,
            top_k=0,
            # Nothing is padded; without an id of its own for it transformers warns.
            pad_token_id=(begin + 1) % decoder.vocab_size,
        )
        made += grown.shape[0] * grown.shape[1]
        yield from grown.tolist()


def collect(
    collector: Collector,
    documents: Iterable[Sequence[int]],
    tokens: int,
    done: Callable[[int], None],
) -> None:
    """Take in pieces of :data:`CHUNK` tokens until the heads have seen ``tokens``; one of :data:`HELD_OUT` is held out.

    Raises:
        ExitHeadError: there was no text, or too little to hold some out.
    """
    for number, piece in enumerate(_pieces(documents, tokens)):
        if collector.tokens >= tokens:
            break
        collector.add(piece, number % HELD_OUT == 0, done)
    if collector.tokens == 0 and collector.held_out == 0:
        raise ExitHeadError("no text of at least two tokens was found in the inputs")
    if collector.tokens == 0:
        raise ExitHeadError(
            f"the inputs are one piece of text (at most {CHUNK} tokens), which is left out to measure the heads on, so "
            "there is nothing to fit them on; give more text"
        )


def _pieces(documents: Iterable[Sequence[int]], tokens: int) -> Iterator[Sequence[int]]:
    """The beginning of every document, then, if they were few, the rest of each; about ``tokens`` are kept for that."""
    later: list[Sequence[int]] = []
    kept = 0
    for document in documents:
        cut = [document[i : i + CHUNK] for i in range(0, len(document), CHUNK)]
        cut = [piece for piece in cut if len(piece) > 1]
        yield from cut[:FIRST]
        for piece in cut[FIRST:]:
            # Some of it will be held out.
            if kept < 2 * tokens:
                later.append(piece)
                kept += len(piece)
    yield from later
