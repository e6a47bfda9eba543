"""The exact law of everything a server would emit with a proposer, and its comparison with plain decoding.

The whole loop runs: session, proposer and the real verification kernels, for one request or for
several that share what the proposer keeps. See :mod:`specplug.testing.paths` for how all paths are
followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specplug.reference.enumerate_law import (
    Tokens,
    plain_law,
    product_law,
    side_by_side,
    total_variation,
)
from specplug.session import Session
from specplug.testing.cells import Verifier, emitted_cells
from specplug.testing.paths import Oracle, explore
from specplug.testing.report import brief
from specplug.testing.targets import DraftRow, SampledTarget, befores
from specplug.types import TOKEN_DTYPE, DraftBuffers, ProbArray, Request

#: Two laws this close, in total variation, differ by rounding only.
LAW_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Arrival:
    """One request of a scenario.

    Attributes:
        prompt: its tokens, possibly none.
        limit: tokens after which its output ends.
        stop_token_ids: tokens at which its output ends.
        step: it is there from this step on, or from the first step after it at which nothing else
            runs.
        tell_limit: the session knows the limit; otherwise drafts may run over the end.
        keep: its text may serve others when it ends.
        request_id: by default its place in the scenario.
    """

    prompt: Tokens
    limit: int
    stop_token_ids: frozenset[int] = frozenset()
    step: int = 0
    tell_limit: bool = True
    keep: bool = True
    request_id: str | None = None

    def __repr__(self) -> str:
        return brief(self)


#: From the step number and the requests that run, to those that take part, in the order of their
#: rows.
RowOrder = Callable[[int, list[int]], list[int]]


def everyone(step: int, running: list[int]) -> list[int]:
    """All running requests, in order of arrival."""
    return running


@dataclass(frozen=True)
class Scenario:
    """What happens, apart from chance.

    Attributes:
        arrivals: the requests.
        order: which of them take part in a step; at least one, if any runs.
        undrafted_steps: steps in which the engine decodes plainly and never asks the session.
    """

    arrivals: tuple[Arrival, ...]
    order: RowOrder = everyone
    undrafted_steps: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        return brief(self)


class LawViolationError(AssertionError):
    """A proposer or verifier changes what the model says."""


#: Builds a session anew for each path; the oracle draws the tokens of sampled drafts.
SessionFactory = Callable[[Oracle], Session]


@dataclass
class _Cache:
    """One-step laws that were worked out before: they depend on the target's laws and the draft alone."""

    target: SampledTarget
    verifier: Verifier
    cells: dict[tuple[object, ...], tuple[list[Tokens], list[float]]] = field(default_factory=dict)

    def step_law(self, history: Tokens, draft: DraftRow) -> tuple[list[Tokens], list[float]]:
        target = self._positions(history, draft)
        key = tuple(None if part is None else part.tobytes() for part in (target, *draft))
        found = self.cells.get(key)
        if found is None:
            law = emitted_cells(self.verifier, target, draft)
            found = self.cells[key] = (list(law), list(law.values()))
        return found

    def _positions(self, history: Tokens, draft: DraftRow) -> ProbArray:
        if self.verifier.greedy:
            return np.stack([self.target.scores(before) for before in befores(history, draft)])
        return self.target.position_laws(history, draft)


def emitted_law(
    sessions: SessionFactory,
    scenario: Scenario,
    target: SampledTarget,
    verifier: Verifier,
    max_paths: int = 100_000,
) -> dict[tuple[Tokens, ...], float]:
    """The joint law of the outputs of all requests of ``scenario``.

    Raises:
        NotReplayableError: the proposer depends on more than what it is told.
        TooManyPathsError: the scenario is too large.
        HiddenEdgeError: see :func:`specplug.testing.cells.emitted_cells`.
    """
    cache = _Cache(target, verifier)
    return explore(lambda oracle: _run(sessions(oracle), scenario, cache, oracle), max_paths)


def check_law(
    sessions: SessionFactory,
    scenario: Scenario,
    target: SampledTarget,
    verifier: Verifier,
    max_paths: int = 100_000,
) -> float:
    """Compare the law with drafts to the law of plain decoding; returns their total variation.

    Raises:
        LawViolationError: it exceeds :data:`LAW_TOLERANCE`; the message shows both laws side by
        side.
    """
    got = emitted_law(sessions, scenario, target, verifier, max_paths)
    expected = product_law(
        [plain_law(target.next_law, a.prompt, a.limit, a.stop_token_ids) for a in scenario.arrivals]
    )
    distance = total_variation(expected, got)
    if not distance <= LAW_TOLERANCE:
        raise LawViolationError(
            f"verifier {verifier.name!r}: the output with drafts differs from plain decoding by {distance:.3e} in "
            f"total variation (rounding explains {LAW_TOLERANCE:g})\n{side_by_side(expected, got)}\n"
            f"target: {target!r}\nscenario: {scenario!r}"
        )
    return distance


def _run(session: Session, scenario: Scenario, cache: _Cache, oracle: Oracle) -> tuple[Tokens, ...]:
    arrivals = scenario.arrivals
    outputs: list[Tokens] = [() for _ in arrivals]
    waiting = list(range(len(arrivals)))
    running: list[int] = []
    step = 0
    while waiting or running:
        arrived = [i for i in waiting if arrivals[i].step <= step] or (
            [] if running else waiting[:1]
        )
        for index in arrived:
            waiting.remove(index)
            running.append(index)
            session.begin(_request(arrivals[index], index), _array(arrivals[index].prompt))
        rows = scenario.order(step, list(running))
        histories = [arrivals[i].prompt + outputs[i] for i in rows]
        plain = step in scenario.undrafted_steps
        none = _no_draft(cache.target.vocab_size)
        drafts = [none] * len(rows) if plain else _drafts(session, arrivals, rows, histories)
        for index, history, draft in zip(rows, histories, drafts, strict=True):
            bursts, weights = cache.step_law(history, draft)
            burst = bursts[oracle.choose(weights)]
            outputs[index], over = _append(outputs[index], burst, arrivals[index])
            if over:
                running.remove(index)
                session.finish(_name(arrivals[index], index), arrivals[index].keep)
        step += 1
    session.close()
    return tuple(outputs)


def _no_draft(vocab_size: int) -> DraftRow:
    none = np.zeros(0, TOKEN_DTYPE)
    return DraftRow(none, none, np.zeros((0, vocab_size)))


def _drafts(
    session: Session, arrivals: Sequence[Arrival], rows: list[int], histories: list[Tokens]
) -> list[DraftRow]:
    names = [_name(arrivals[i], i) for i in rows]
    buffers = session.step(names, [_array(history) for history in histories])
    return [row_of(buffers, row) for row in range(len(rows))]


def row_of(buffers: DraftBuffers, row: int) -> DraftRow:
    """A copy of one row of draft buffers, cut to its length."""
    used = (row, slice(int(buffers.lengths[row])))
    return DraftRow(
        buffers.tokens[used].copy(),
        None if buffers.parents is None else buffers.parents[used].copy(),
        None if buffers.draft_probs is None else buffers.draft_probs[used].copy(),
    )


def _append(output: Tokens, burst: Tokens, arrival: Arrival) -> tuple[Tokens, bool]:
    """Take the tokens of a burst one by one, as an engine does: what follows the end is dropped."""
    for token in burst:
        output = (*output, token)
        if token in arrival.stop_token_ids or len(output) == arrival.limit:
            return output, True
    return output, False


def _request(arrival: Arrival, index: int) -> Request:
    return Request(
        _name(arrival, index),
        prompt_length=len(arrival.prompt),
        stop_token_ids=arrival.stop_token_ids,
        max_output=arrival.limit if arrival.tell_limit else None,
    )


def _name(arrival: Arrival, index: int) -> str:
    return arrival.request_id if arrival.request_id is not None else str(index)


def _array(tokens: Tokens) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, TOKEN_DTYPE)
