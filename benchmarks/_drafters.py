"""The drafters that benchmarks/peers.py compares, each as a driver of the replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _foreign import ForeignDriver
from _suffix_gpu import SETTINGS, SuffixGpuDriver

from specplug import registry
from specplug.replay.drivers import Driver, ProposerDriver
from specplug.types import Context, TokenArray

#: Depth of Arctic's trees and its least probability of a token: vLLM's defaults for its method "suffix".
ARCTIC_DEPTH = 24
ARCTIC_MIN_PROB = 0.1
ARCTIC_CACHED = 10_000
ARCTIC_FACTORS = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Drafter:
    """A name, how to make one with an empty state, and for which cost it drafts (None: it does not know)."""

    name: str
    make: Callable[[], Driver]
    cost: float | None = None


def drafters(
    context: Context, costs: list[float], proposer: str, suffix_gpu: bool = False
) -> list[Drafter]:
    """Ours once per cost, Arctic at each of its settings, vLLM's n-gram rule, and if asked for ``suffix-gpu``."""
    width = context.max_draft
    ours = [
        Drafter(f"{proposer} c={cost:g}", _maker(proposer, context, cost), cost) for cost in costs
    ]
    arctic = [Drafter(arctic_name(f), _arctic_maker(f, width)) for f in ARCTIC_FACTORS]
    found = [*ours, *arctic, Drafter("ngram 2-5", lambda: NgramDriver(width))]
    if suffix_gpu:
        found += [Drafter(name, _suffix_gpu_maker(name, width)) for name in SETTINGS]
    return found


def arctic_name(factor: float) -> str:
    """How tables call Arctic at this setting."""
    return f"arctic f{factor:g}"


def _maker(proposer: str, context: Context, cost: float) -> Callable[[], Driver]:
    def make() -> Driver:
        return ProposerDriver(registry.build(proposer, context, {"verify_cost": cost}), context)

    return make


def _suffix_gpu_maker(name: str, width: int) -> Callable[[], Driver]:
    return lambda: SuffixGpuDriver(width, SETTINGS[name])


def _arctic_maker(factor: float, width: int) -> Callable[[], Driver]:
    return lambda: ArcticDriver(factor, width)


class ArcticDriver(ForeignDriver):
    """``arctic-inference``: start_request, add_active_response, speculate, stop_request, as vLLM calls them.

    Its own estimate of its memory walks the whole tree; benchmarks/_host.py asks for it once.
    """

    def __init__(self, factor: float, width: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        super().__init__(width)
        self.cache: Any = SuffixDecodingCache(ARCTIC_DEPTH, ARCTIC_CACHED)
        self.factor = factor
        self.request = 0

    def begin(self, prompt: TokenArray) -> None:
        self.request += 1
        self.cache.start_request(self.request, prompt)

    def step(self, new: TokenArray) -> None:
        self.cache.add_active_response(self.request, new)
        self._drafted = self.cache.speculate(
            self.request,
            self.text[-ARCTIC_DEPTH:],
            max_spec_tokens=self.width,
            max_spec_factor=self.factor,
            min_token_prob=ARCTIC_MIN_PROB,
        ).token_ids

    def end(self, new: TokenArray) -> None:
        self.cache.add_active_response(self.request, new)
        self.cache.stop_request(self.request)


class NgramDriver(ForeignDriver):
    """vLLM's n-gram rule: what follows the earliest of the longest earlier matches of the last 2 to 5 tokens.

    Matches are kept in a dictionary where vLLM scans the text, so only what is drafted compares, not its time.
    """

    shortest, longest = 2, 5

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._first: dict[tuple[int, ...], int] = {}
        self._tokens: list[int] = []
        self._indexed = 0

    def begin(self, prompt: TokenArray) -> None:
        self._first = {}
        self._tokens = prompt.tolist()
        self._indexed = 0

    def step(self, new: TokenArray) -> None:
        tokens = self._tokens
        tokens += new.tolist()
        end = len(tokens)
        # A match must be followed by something, so the n-grams that end at the last token are not in yet.
        for stop in range(self._indexed + 1, end):
            for n in range(self.shortest, min(self.longest, stop) + 1):
                self._first.setdefault(tuple(tokens[stop - n : stop]), stop)
        self._indexed = end - 1
        self._drafted = []
        for n in range(min(self.longest, end), self.shortest - 1, -1):
            start = self._first.get(tuple(tokens[end - n :]))
            if start is not None:
                self._drafted = tokens[start : start + self.width]
                return
