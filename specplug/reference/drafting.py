"""Slow twin of :mod:`specplug.kernels.drafting`.

Empty history or no candidate: no draft. One candidate: a copy of what follows it while the estimate holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specplug.reference.branching import floor_of, next_token
from specplug.reference.calibration import corrected, own_ratio
from specplug.reference.candidates import find_candidates
from specplug.reference.match import load_context
from specplug.reference.ranking import rank_tokens
from specplug.reference.suffix_state import (
    KEEP,
    LOG_CANDIDATES,
    LOG_TOKENS,
    STORE,
    Candidate,
    Depth,
    SuffixState,
)


def draft_row(
    state: SuffixState, slot: int, ceiling: int, cost: float
) -> tuple[list[int], list[float]]:
    """Draft tokens and survival estimates for one request."""
    stream = state.streams[slot]
    model = state.models[stream.model]
    stream.depths, stream.drafted, stream.sources, stream.chain = [], 0, [], []
    own = own_ratio(stream)
    context = load_context(state, slot)
    candidates = find_candidates(state, slot) if context else []
    floor = floor_of(state, slot, cost)
    tokens: list[int] = []
    survival: list[float] = []
    room = [LOG_TOKENS, LOG_CANDIDATES]
    for depth in range(ceiling):
        candidates = _with_next_token(state, slot, candidates, tokens)
        if not candidates:
            break
        previous = tokens[-1] if tokens else context[-1]
        here = rank_tokens(state, slot, depth, candidates, previous, tokens)
        top = max(here.ranked, key=lambda entry: entry.probability)
        stream.depths.append(here if _fits(here, room) else Depth((0, 0, 0), [], []))
        surviving = (stream.chain[-1] if stream.chain else 1.0) * top.probability
        if surviving < floor:
            break
        tokens.append(top.token)
        stream.chain.append(surviving)
        said = corrected(model, top.probability, surviving, own)
        survival.append((survival[-1] if survival else 1.0) * said)
        stream.sources.append(top.source)
        candidates = _follow(candidates, top.token)
    stream.drafted = len(tokens)
    return tokens, survival


def draft_batch(
    state: SuffixState, slots: Sequence[int], ceilings: Sequence[int], cost: float
) -> list[tuple[list[int], list[float]]]:
    """Draft for every slot."""
    return [draft_row(state, s, c, cost) for s, c in zip(slots, ceilings, strict=True)]


def _fits(depth: Depth, room: list[int]) -> bool:
    """Whether the log has room for this depth; takes the room if so."""
    if len(depth.ranked) > room[0] or len(depth.candidates) > room[1]:
        return False
    room[0] -= len(depth.ranked)
    room[1] -= len(depth.candidates)
    return True


def _with_next_token(
    state: SuffixState, slot: int, candidates: list[Candidate], drafted: list[int]
) -> list[Candidate]:
    """The candidates that have a next token; copying own text may run into the draft itself."""
    kept = []
    for candidate in candidates:
        token = next_token(state, slot, drafted, candidate.source, candidate.position)
        if token >= 0:
            kept.append(replace(candidate, token=token))
    return kept


def _follow(candidates: list[Candidate], token: int) -> list[Candidate]:
    """Advance those that guessed ``token``; the first KEEP of own text and of the store survive."""
    kept: list[Candidate] = []
    counts = {False: 0, True: 0}
    for candidate in candidates:
        if candidate.token == token:
            stored = candidate.source == STORE
            counts[stored] += 1
            if counts[stored] <= KEEP:
                length = min(63, candidate.length + 1)
                kept.append(replace(candidate, position=candidate.position + 1, length=length))
    return kept
