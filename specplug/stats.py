"""Counters of a session. Plain integers, cheap enough to update every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class SessionStats:
    """What a session did since it was built.

    Attributes:
        steps: calls of ``Session.step``.
        rows: request-steps, the sum of the batch sizes.
        drafted_rows: request-steps that got at least one draft token.
        offered: draft tokens that the proposer wrote, before the controller cut them.
        drafted: draft tokens handed to the engine.
        accepted: draft tokens that turned out to be what the target emitted.
        emitted: tokens observed after the start of their request.
        started, finished: requests.
        restarted: histories that shrank or changed under a live id.
        recycled: requests dropped because all slots were taken.
        clipped: drafts cut because they held an id outside the vocabulary.
        faults: exceptions of the proposer; at most one, since it is not asked again.
    """

    steps: int = 0
    rows: int = 0
    drafted_rows: int = 0
    offered: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    started: int = 0
    finished: int = 0
    restarted: int = 0
    recycled: int = 0
    clipped: int = 0
    faults: int = 0

    def count_drafts(self, offered: Sequence[int], lengths: Sequence[int]) -> None:
        """Count a step: the lengths of its drafts, before and after they were cut. O(B)."""
        self.steps += 1
        self.rows += len(lengths)
        self.drafted_rows += len(lengths) - lengths.count(0)
        self.offered += sum(offered)
        self.drafted += sum(lengths)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted draft tokens per draft token; None before the first draft."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_acceptance_length_drafted(self) -> float | None:
        """Tokens per request-step that had a draft: accepted drafts plus the target's own token."""
        return 1 + self.accepted / self.drafted_rows if self.drafted_rows else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per request-step, steps without a draft counted."""
        return 1 + self.accepted / self.rows if self.rows else None

    def as_dict(self) -> dict[str, int | float | None]:
        """All counters and the three ratios."""
        return {
            **asdict(self),
            "acceptance_rate": self.acceptance_rate,
            "mean_acceptance_length_drafted": self.mean_acceptance_length_drafted,
            "mean_acceptance_length": self.mean_acceptance_length,
        }
