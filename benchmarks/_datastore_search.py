"""Search times of a datastore beside those of ``draftretriever``: the same queries, in rounds that take turns.

A timer interrupt, or a neighbour of a virtual machine, adds some microseconds to a hundredth of all calls: little for
a search of 100 microseconds, everything for one of 1. So ours and theirs take turns for some rounds; in its turn each
asks all queries several times, in another order every time (the first hundred calls after other work find it in
the caches); and the time of a query is the median over all of these, for both by the same rule. Percentiles are over
queries. The 99th percentile of all single calls is reported beside it.

A batch is one call for a group of queries, so that each has the mean time of its group. What the peer takes is
averaged over the same groups for the comparison, pass by pass; percentiles are over groups then, for both. There are
5 to 13 of them, so that their 99th percentile is the slowest one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _datastore_peer import Peer
from numpy.typing import NDArray

from specplug.index.datastore import Datastore
from specplug.index.rest import RestIndex
from specplug.types import Context, Request, allocate_drafts

#: Turns, and how often all queries are asked in each; odd, so that the median is a time that was taken.
ROUNDS, PASSES = 5, 5
#: Requests of a step that are looked up by one call, as a server does.
BATCH = 32

#: Asks all queries once, in the order of these numbers, and returns nanoseconds by number (in batches: by group).
Round = Callable[[list[int]], NDArray[np.float64]]


def searching(folder: str, queries: list[list[int]]) -> Round:
    """Our search alone."""
    store = Datastore(folder)
    contexts = [np.array(query, np.int32) for query in queries]

    def once(order: list[int]) -> NDArray[np.float64]:
        times = np.zeros(len(contexts))
        for number in order:
            context = contexts[number]
            begin = time.perf_counter_ns()
            store.search(context)
            times[number] = time.perf_counter_ns() - begin
        return times

    return once


def batching(folder: str, vocab: int, queries: list[list[int]], depth: int) -> Round:
    """One call looks up and drafts for :data:`BATCH` requests: search, merging, a chain of ``depth``; per query.

    Groups are those of :func:`groups`; their turns come in the order of the first of their queries.
    """
    index = RestIndex(Context(vocab, 1 << 20, depth, BATCH), folder, cost=0.0)
    slots, ceilings = np.arange(BATCH, dtype=np.int32), np.full(BATCH, depth, np.int32)
    out = allocate_drafts(BATCH, depth)

    def once(order: list[int]) -> NDArray[np.float64]:
        starts = groups(len(queries))
        times = np.zeros(len(starts))
        for number in dict.fromkeys(number // BATCH for number in order):
            group = queries[starts[number] : starts[number] + BATCH]
            for slot, query in enumerate(group):
                index.start(slot, Request(str(slot), len(query)), np.array(query, np.int32))
            begin = time.perf_counter_ns()
            index.propose(slots[: len(group)], ceilings[: len(group)], out)
            times[number] = (time.perf_counter_ns() - begin) / len(group)
        return times

    return once


def groups(queries: int) -> list[int]:
    """Where each batch begins. The last one is full, too: it begins with queries of the one before."""
    last = max(0, queries - BATCH)
    return [min(start, last) for start in range(0, queries, BATCH)]


def asking(peer: Peer, queries: list[list[int]]) -> Round:
    """Their search; zeros where their process ended."""

    def once(order: list[int]) -> NDArray[np.float64]:
        answer = peer.search([queries[number] for number in order])
        times = np.zeros(len(queries))
        if answer is not None:
            times[order] = answer["ns"]
        return times

    return once


def times_of(rounds: dict[str, Round], queries: int) -> dict[str, dict[str, Any]]:
    """Per name of a round: ``us``, median and 99th percentile over queries; ``single_p99_us``, that of all calls.

    Where there is a round ``peer``, ``peer_batch`` is the same averaged over the groups of a batch.
    """
    taken: dict[str, list[NDArray[np.float64]]] = {name: [] for name in rounds}
    rng = np.random.default_rng(0)
    for _ in range(ROUNDS):
        orders = [rng.permutation(queries).tolist() for _ in range(PASSES)]
        for name, once in rounds.items():
            taken[name] += [once(order) / 1e3 for order in orders]
    if "peer" in taken:
        starts = groups(queries)
        taken["peer_batch"] = [
            np.array([times[start : start + BATCH].mean() for start in starts])
            for times in taken["peer"]
        ]
    return {
        name: {
            "us": np.percentile(np.median(table, axis=0), [50, 99]).tolist(),
            "single_p99_us": float(np.percentile(table, 99)),
        }
        for name, table in ((name, np.stack(times)) for name, times in taken.items())
    }
