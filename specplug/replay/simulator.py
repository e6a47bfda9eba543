"""The replay loop: teacher-forced, greedy, one request after the other.

At each step the drafter drafts, the part of its draft that agrees with the recorded response is accepted, and one more
token of the response follows, which a target would have added itself. The first token of a response comes from the
prefill, before anything is drafted. With a greedy target this is exactly what speculation would have done; with a
sampling target it is what it would have done for the coins that fell when the log was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specplug.errors import ReplayError
from specplug.replay.drivers import Draft, Driver
from specplug.replay.metrics import SETTLED_STEPS, Durations, Tally
from specplug.session import accepted_tokens
from specplug.types import ROOT, TokenArray


class Checkable(Protocol):
    """Something that knows its invariants."""

    def broken_invariant(self) -> str:
        """See :class:`specplug.replay.drivers.Driver`."""


class Check(Protocol):
    """Called after every step with what it drafted."""

    def __call__(self, driver: Checkable, draft: Draft, where: str) -> None:
        """Raise :class:`~specplug.errors.ReplayError` if something is wrong."""


@dataclass(slots=True)
class ContractCheck:
    """Checks drafts at every step, and the proposer's own invariants at every ``every``-th.

    Attributes:
        width: most tokens of a draft.
        vocab_size: ids must lie below it.
    """

    width: int
    vocab_size: int
    every: int = 1
    _steps: int = 0

    def __call__(self, driver: Checkable, draft: Draft, where: str) -> None:
        """See :class:`Check`."""
        problem = broken_draft(draft, self.width, self.vocab_size)
        if not problem and self._steps % self.every == 0:
            problem = driver.broken_invariant()
        self._steps += 1
        if problem:
            raise ReplayError(f"{where}: {problem}")


def broken_draft(draft: Draft, width: int, vocab_size: int) -> str:
    """ "" if a draft obeys :class:`specplug.types.DraftBuffers`, else a sentence. Cost O(n)."""
    n = len(draft.tokens)
    if n > width:
        return f"{n} tokens were drafted, but the ceiling was {width}"
    for i, token in enumerate(draft.tokens.tolist()):
        if not 0 <= token < vocab_size:
            return f"draft token {i} is {token}, outside the vocabulary of {vocab_size}"
    if draft.survival is None:
        return ""
    survival = draft.survival.tolist()
    parents = range(-1, n - 1) if draft.parents is None else draft.parents.tolist()
    for i, (value, parent) in enumerate(zip(survival, parents, strict=True)):
        if not ROOT <= parent < i:
            return f"draft node {i} hangs on node {parent}; parents stand before their children"
        limit = 1.0 if parent == ROOT else survival[parent]
        # Products of many factors may differ by rounding.
        if not 0.0 <= value <= limit * (1 + 1e-12):
            return f"survival of draft token {i} is {value}, which must lie in 0 .. {limit} (its parent's)"
    return ""


def replay_record(
    driver: Driver,
    prompt: TokenArray,
    response: TokenArray,
    tally: Tally,
    check: Check | None = None,
    matches: Sequence[int] | None = None,
) -> None:
    """Replay one request and count into ``tally``.

    Args:
        prompt, response: int32 ``[n]`` and ``[m]``; with fewer than two response tokens there is no step.
        matches: per response token, how long a stretch before it stood earlier; None where nobody knows.
    """
    total = len(response)
    if total < 2:
        tally.short += 1
        return
    host = tally.host
    tally.requests += 1
    tally.prompt_tokens += len(prompt)
    tally.response_tokens += total
    driver.hold(prompt, True)
    _timed(driver.begin, prompt, host.start_wall, host.start_cpu)
    position, new = 1, response[:1]
    while position < total:
        driver.hold(new, False)
        _timed(driver.step, new, host.step_wall, host.step_cpu)
        draft = driver.draft()
        if check is not None:
            check(driver, draft, f"request {tally.requests}, response token {position}")
        end = judge(draft, response, position, tally, matches)
        new, position = response[position:end], end
    memory = driver.memory()
    if memory is not None:
        tally.remember_memory(memory, ending=True)
    driver.hold(new, False)
    _timed(driver.end, new, host.finish_wall, host.finish_cpu)
    if check is not None:
        check(driver, Draft(response[:0]), f"request {tally.requests}, at its end")
    memory = driver.memory()
    if memory is not None:
        tally.remember_memory(memory, ending=False)


def _timed(
    call: Callable[[TokenArray], None], tokens: TokenArray, wall: Durations, cpu: Durations
) -> None:
    # The CPU clock is a system call, so it stands outside of what the wall clock measures.
    cpu_before = thread_time_ns()
    before = perf_counter_ns()
    call(tokens)
    after = perf_counter_ns()
    cpu_after = thread_time_ns()
    wall.add(after - before)
    cpu.add(cpu_after - cpu_before)


def judge(
    draft: Draft,
    response: TokenArray,
    position: int,
    tally: Tally,
    matches: Sequence[int] | None = None,
) -> int:
    """Count a draft against the response from ``position`` on; returns where the next step begins."""
    drafted = len(draft.tokens)
    mask = accepted_nodes(draft, response[position : position + drafted])
    accepted = int(mask.sum())
    end = min(len(response), position + accepted + 1)
    tally.step(end - position, drafted, accepted, _depth(draft))
    if matches is not None:
        tally.by_match.add(matches[position], end - position, drafted, accepted)
    if drafted and draft.survival is not None:
        tally.reliability.add(draft.survival, mask)
        if tally.steps > SETTLED_STEPS:
            tally.settled.add(draft.survival, mask)
    return end


def _depth(draft: Draft) -> int:
    """Tokens of a chain, or of the longest branch of a tree."""
    if draft.parents is None:
        return len(draft.tokens)
    depths: list[int] = []
    for parent in draft.parents.tolist():
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return max(depths, default=0)


def accepted_nodes(draft: Draft, truth: TokenArray) -> NDArray[np.bool_]:
    """Which draft tokens (bool ``[n]``) are accepted: they and all before them agree with ``truth`` (int32 ``[m]``).

    Tokens beyond the end of ``truth`` are not accepted: there the request had stopped.
    """
    mask = np.zeros(len(draft.tokens), np.bool_)
    if draft.parents is None:
        mask[: accepted_tokens(draft.tokens, None, truth)] = True
        return mask
    node = ROOT
    for token in truth.tolist():
        children = np.flatnonzero((draft.parents == node) & (draft.tokens == token))
        if not len(children):
            break
        node = int(children[0])
        mask[node] = True
    return mask
