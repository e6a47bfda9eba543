"""What is published for Prometheus, the same in every engine. Names, texts and labels; nothing of an engine.

Counters end up as ``specplug_<name>_total``, gauges as ``specplug_<name>``, the histogram as ``specplug_host_seconds``.
All have the label ``proposer`` and one that tells the workers of an engine apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specplug.control.decisions import REASONS as REASONS

if TYPE_CHECKING:
    from specplug.session import Session

COUNTERS = {
    "steps": "steps in which drafts were asked for",
    "rows": "requests, summed over steps",
    "drafted_rows": "requests that had a draft, summed over steps",
    "unserved_rows": "requests that get no drafts because of their kind, summed over steps",
    "offered_tokens": "draft tokens that the proposer wrote, before the controller cut them",
    "withheld_tokens": "draft tokens that the controller cut",
    "drafted_tokens": "draft tokens handed to the engine",
    "accepted_tokens": "draft tokens that the target confirmed",
    "requests": "requests begun",
    "fallbacks": "failures of specplug, after each of which decoding was plain",
    "store_evicted_tokens": "tokens of finished outputs that newer ones have replaced",
}
GAUGES = {
    "request_bytes": "memory of the running requests",
    "request_tokens": "tokens of the running requests",
    "store_bytes": "memory of the store of finished outputs",
    "store_tokens": "tokens in the store",
    "store_capacity": "the most tokens that the store can hold",
}
#: Counters of the controller ``goodput``, seconds or tokens; zeros under another.
CONTROLLED = {
    "controller_budget_tokens": "draft tokens that the controller could have let through",
    "controller_expected_tokens": "draft tokens that the controller expected the target to confirm",
    "controller_wasted_tokens": "draft tokens that were verified and rejected",
    "controller_predicted_seconds": "step times that the controller predicted",
    "controller_measured_seconds": "step times that were measured, of the same steps",
}
#: Counters with the labels ``source`` and ``position``, from 1 on; the last position stands for all behind it too.
BY_SOURCE = {
    "source_drafted_tokens": "draft tokens handed to the engine, by source and position",
    "source_accepted_tokens": "draft tokens that the target confirmed, by source and position",
}
#: A counter with the label ``reason``, of the controller ``goodput``.
DECISIONS = "controller_steps"
DECISIONS_TEXT = "steps by why the controller drafted what it did"
#: Upper bounds of the histogram, what a step waits for specplug.
HISTOGRAM = "host_seconds"
HISTOGRAM_TEXT = "seconds per step that the engine waits for specplug"
BUCKETS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3)
#: Steps between two looks at what takes longer than counting.
EVERY = 16


def quick(session: Session) -> dict[str, int]:
    """Counters of a session that cost nothing to read."""
    stats = session.stats
    return {
        "steps": stats.steps,
        "rows": stats.rows,
        "drafted_rows": stats.drafted_rows,
        "offered_tokens": stats.offered,
        "withheld_tokens": stats.offered - stats.drafted,
        "drafted_tokens": stats.drafted,
        "accepted_tokens": stats.accepted,
        "requests": stats.started,
        "fallbacks": stats.faults,
    }


def memory(session: Session) -> dict[str, int]:
    """The gauges and ``store_evicted_tokens``; zeros without ``memory()``, whose exceptions go through."""
    ask = getattr(session.proposer, "memory", None)
    found: Mapping[str, int] = ask() if ask is not None else {}
    return {
        **{name: int(found.get(name, 0)) for name in GAUGES},
        "store_evicted_tokens": int(found.get("store_evicted", 0)),
    }


def decisions(session: Session) -> list[int]:
    """Steps by reason, in the order of :data:`REASONS`; empty if the controller gives none."""
    made: Any = getattr(getattr(session.controller, "decisions", None), "reasons", None)
    return list(made) if made is not None and len(made) == len(REASONS) else []


def controlled(session: Session) -> dict[str, float]:
    """The values of :data:`CONTROLLED`; zeros if the controller gives none."""
    totals: Any = getattr(getattr(session.controller, "decisions", None), "totals", None)
    found: Mapping[str, float] = totals if isinstance(totals, dict) else {}
    return {name: float(found.get(name.split("_")[1], 0.0)) for name in CONTROLLED}


def position_labels(width: int) -> list[str]:
    """The labels of so many positions."""
    return [str(place + 1) for place in range(width)]
