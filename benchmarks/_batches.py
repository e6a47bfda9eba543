"""Host time with several requests at a time: one call of ours per step for all, Arctic's calls for each of them.

A closed loop: so many requests of a workload run, in the order of the log, and each that is answered makes room for the
next. The same requests for both sides, greedy and teacher-forced as in the replay. Timed is all that a library is
asked to do: to take in prompts and new tokens, to draft, to clean up. The arrays that an engine has anyway (new tokens,
the end of a text) are made before the clock starts; verifying is not timed.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

import numpy as np
from _comparison import Requests
from _drafters import ARCTIC_DEPTH, ARCTIC_MIN_PROB, ArcticDriver
from _host import timed

from specplug.protocols import Proposer
from specplug.session import accepted_tokens
from specplug.types import Context, Observed, Request, TokenArray, allocate_drafts

WIDTH = 16
#: Each workload is served so often, by both sides in turn; shown is the median.
ROUNDS = 3

News = list[tuple[int, TokenArray]]
Seconds = tuple[float, float]


class Side(Protocol):
    """A library with room for some requests at a time; all calls but ``drafts`` return wall and CPU seconds."""

    def begin(self, slot: int, prompt: TokenArray) -> Seconds:
        """A request with this prompt takes a free slot."""

    def step(self, news: News) -> Seconds:
        """By slot, tokens became certain; draft for each of these slots."""

    def drafts(self) -> list[TokenArray]:
        """Of the last step, in its order."""

    def end(self, slot: int, new: TokenArray) -> Seconds:
        """The request is answered; ``new`` are its last tokens."""


class Ours:
    """Calls a proposer as the session does: ``observe`` and ``propose`` once per step, with the same arrays."""

    def __init__(self, proposer: Proposer, context: Context) -> None:
        self.proposer = proposer
        most = context.max_requests
        self._places = {
            n: (np.zeros(n, np.int32), np.zeros(n + 1, np.int64)) for n in range(1, most + 1)
        }
        self._last = (np.zeros(1, np.int32), np.zeros(2, np.int64))
        out = allocate_drafts(most, WIDTH, context.vocab_size, proposer.capabilities)
        self._outs = {
            n: out._replace(
                tokens=out.tokens[:n], lengths=out.lengths[:n], survival=out.survival[:n]
            )
            for n in self._places
        }
        self._ceilings = {n: np.full(n, WIDTH, np.int32) for n in self._places}
        self._rows = 0
        self._serial = 0

    def begin(self, slot: int, prompt: TokenArray) -> Seconds:
        self._serial += 1
        request = Request(str(self._serial), len(prompt))
        return timed(lambda: self.proposer.start(slot, request, prompt))

    def step(self, news: News) -> Seconds:
        self._rows = len(news)
        slots, ceilings, out = (
            self._places[self._rows][0],
            self._ceilings[self._rows],
            self._outs[self._rows],
        )
        observed = self._observed(self._places[self._rows], news)
        out.lengths[:] = 0

        def call() -> None:
            self.proposer.observe(observed)
            self.proposer.propose(slots, ceilings, out)

        return timed(call)

    def drafts(self) -> list[TokenArray]:
        out = self._outs[self._rows]
        return [out.tokens[row, :length] for row, length in enumerate(out.lengths.tolist())]

    def end(self, slot: int, new: TokenArray) -> Seconds:
        observed = self._observed(self._last, [(slot, new)])

        def call() -> None:
            self.proposer.observe(observed)
            self.proposer.finish(slot, True)

        return timed(call)

    @staticmethod
    def _observed(place: tuple[Any, Any], news: News) -> Observed:
        slots, offsets = place
        slots[:] = [slot for slot, _ in news]
        np.cumsum([len(new) for _, new in news], out=offsets[1:])
        return Observed(slots, offsets, np.concatenate([new for _, new in news]))


class Arctic:
    """Calls ``arctic-inference`` for each request, as vLLM does."""

    def __init__(self, most: int, longest: int) -> None:
        self.cache = ArcticDriver(1.0, WIDTH).cache
        self._texts = np.zeros((most, longest), np.int32)
        self._lengths = [0] * most
        self._numbers = [0] * most
        self._serial = 0
        self._drafts: list[Any] = []

    def begin(self, slot: int, prompt: TokenArray) -> Seconds:
        self._serial += 1
        self._numbers[slot], self._lengths[slot] = self._serial, 0
        self._hold(slot, prompt)
        return timed(lambda: self.cache.start_request(self._serial, prompt))

    def step(self, news: News) -> Seconds:
        asked = [(self._numbers[slot], new, self._hold(slot, new)) for slot, new in news]
        cache, drafts = self.cache, []

        def call() -> None:
            for number, new, end in asked:
                cache.add_active_response(number, new)
                found = cache.speculate(
                    number,
                    end,
                    max_spec_tokens=WIDTH,
                    max_spec_factor=1.0,
                    min_token_prob=ARCTIC_MIN_PROB,
                )
                drafts.append(found.token_ids)

        spent = timed(call)
        self._drafts = drafts
        return spent

    def drafts(self) -> list[TokenArray]:
        return [np.array(draft, np.int32) for draft in self._drafts]

    def end(self, slot: int, new: TokenArray) -> Seconds:
        number = self._numbers[slot]

        def call() -> None:
            self.cache.add_active_response(number, new)
            self.cache.stop_request(number)

        return timed(call)

    def _hold(self, slot: int, new: TokenArray) -> TokenArray:
        """Append to the text of a request; its last tokens."""
        start = self._lengths[slot]
        end = self._lengths[slot] = start + len(new)
        self._texts[slot, start:end] = new
        text: TokenArray = self._texts[slot, max(0, end - ARCTIC_DEPTH) : end]
        return text


def serve(side: Side, requests: Requests, running: int) -> dict[str, float]:
    """Serve all requests, at most ``running`` at a time; microseconds per request and step, and what was counted."""
    waiting = deque(r for r in requests if len(r[1]) >= 2)
    free = list(range(running - 1, -1, -1))
    live: dict[int, list[Any]] = {}  # slot: response, tokens known, new tokens
    wall = cpu = longest = 0.0
    steps = rows = emitted = 0

    def spend(seconds: Seconds) -> None:
        nonlocal wall, cpu, longest
        wall, cpu, longest = wall + seconds[0], cpu + seconds[1], max(longest, seconds[0])

    while waiting or live:
        while waiting and free:
            prompt, response = waiting.popleft()
            slot = free.pop()
            spend(side.begin(slot, prompt))
            live[slot] = [response, 1, response[:1]]
        spend(side.step([(slot, entry[2]) for slot, entry in live.items()]))
        steps, rows = steps + 1, rows + len(live)
        for (slot, entry), draft in zip(list(live.items()), side.drafts(), strict=True):
            response, known, _ = entry
            accepted = accepted_tokens(draft, None, response[known : known + len(draft)])
            end = min(len(response), known + accepted + 1)
            emitted += end - known
            entry[1:] = end, response[known:end]
            if end == len(response):
                spend(side.end(slot, entry[2]))
                del live[slot]
                free.append(slot)
    return {
        "steps": steps,
        "mean_batch": rows / steps,
        "mean_acceptance_length": emitted / rows,
        "wall_us": 1e6 * wall / rows,
        "cpu_us": 1e6 * cpu / rows,
        "longest_call_ms": 1e3 * longest,
    }


def batches(
    build: Callable[[Context], Proposer],
    vocab: int,
    workloads: Mapping[str, Requests],
    sizes: Sequence[int],
) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Figures by workload, requests at a time, and side (``ours``, ``arctic``): medians over :data:`ROUNDS`."""
    found: dict[str, Any] = {}
    for workload, requests in workloads.items():
        print(f"batches of {workload}", flush=True)
        longest = max(len(p) + len(r) for p, r in requests) + WIDTH
        found[workload] = {}
        for size in sizes:
            context = Context(vocab, longest, WIDTH, max_requests=size)
            sides: dict[str, Callable[[], Side]] = {
                "ours": lambda context=context: Ours(build(context), context),  # type: ignore[misc]
                "arctic": lambda size=size, longest=longest: Arctic(size, longest),  # type: ignore[misc]
            }
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, make in sides.items():
                    side = make()
                    gc.collect()
                    rounds[name].append(serve(side, requests, size))
            found[workload][str(size)] = {
                name: {key: median(r[key] for r in results) for key in results[0]}
                for name, results in rounds.items()
            }
    return found
