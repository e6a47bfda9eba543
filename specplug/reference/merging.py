"""Slow twin of :mod:`specplug.kernels.merging`: the continuations as lists, children as groups of them."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from specplug.reference.contexts import token_of

SHRINK = 4.0
MEMORY = 1024.0
MAX_DEPTH = 32
#: Columns of a node, classes: see specplug.kernels.datastore_layout.
TOKEN, NODE_PARENT, NODE_DEPTH, MASK, CELL, COARSE, DRAFTED = range(7)
SHARE_CLASSES, COUNT_CLASSES = 8, 4


def load_texts(shelf: Any, found: Any, count: int, width: int, texts: Any) -> None:
    """The ``width`` tokens from each occurrence on, -1 from its document's end on."""
    for i in range(count):
        text = [token_of(shelf, int(found[i][0]) + j) for j in range(width)]
        end = text.index(-1) if -1 in text else width
        texts[i, :width] = text[:end] + [-1] * (width - end)


def length_class(length: int) -> int:
    """Class of a match length (at least 1)."""
    return bisect_right([2, 3, 4, 5, 6, 7, 8, 9, 11, 14, 18, 24, 32], length)


def share_class(share: float) -> int:
    """Class of a share of the evidence (above 0, at most 1)."""
    return bisect_right([0.1, 0.25, 0.4, 0.6, 0.8, 0.95, 1.0], share)


def count_class(count: int) -> int:
    """Class of a number of occurrences."""
    return bisect_right([2, 4, 9], count)


def hit_rate(model: Any, cell: int, coarse: int) -> float:
    """Estimated probability that a guess of this class is right."""
    parent = model.coarse[coarse, 0] / model.coarse[coarse, 1]
    return float((model.cells[cell, 0] + SHRINK * parent) / (model.cells[cell, 1] + SHRINK))


def _children(scratch: Any, model: Any, members: list[int], depth: int) -> list[Any]:
    """Token, occurrences, classes of every child of a node, the one with most evidence first."""
    groups: dict[int, list[int]] = {}
    total = 0.0
    lengths = {i: min(int(scratch.found[i][1]) + depth, MAX_DEPTH) for i in members}
    for i in members:
        total += float(model.weights[lengths[i]])
        token = int(scratch.texts[i, depth])
        if token >= 0:
            groups.setdefault(token, []).append(i)
    found = []
    for token, group in groups.items():
        evidence = sum(float(model.weights[lengths[i]]) for i in group)
        longest = max(lengths[i] for i in group)
        coarse = length_class(longest) * SHARE_CLASSES + share_class(evidence / total)
        found.append(
            (evidence, token, group, coarse * COUNT_CLASSES + count_class(len(group)), coarse)
        )
    return sorted(found, key=lambda child: -child[0])


def grow(
    scratch: Any, model: Any, nodes: Any, row: int, limits: Any, threshold: float
) -> tuple[int, int]:
    """Grow the draft of a row; returns the number of nodes, and how many of them are drafted."""
    count, ceiling, branches, width = limits
    made: list[dict[str, Any]] = []

    def branch(parent: int, members: list[int], depth: int, survival: float) -> None:
        for _, token, group, cell, coarse in _children(scratch, model, members, depth)[:branches]:
            if len(made) < nodes.shape[1]:
                made.append(
                    {
                        **{"token": token, "parent": parent, "depth": depth, "group": group},
                        **{"cell": cell, "coarse": coarse, "place": -1},
                        "survival": survival * hit_rate(model, cell, coarse),
                    }
                )

    branch(-1, list(range(count)), 0, 1.0)
    drafted = 0
    while True:
        waiting = [i for i, node in enumerate(made) if node["place"] < 0]
        best = max(waiting, key=lambda i: (made[i]["survival"], -i), default=-1)
        if best < 0 or drafted >= ceiling or made[best]["survival"] < threshold:
            break
        node = made[best]
        node["place"] = drafted
        drafted += 1
        if node["depth"] + 1 < width:
            branch(best, node["group"], node["depth"] + 1, node["survival"])
    for i, node in enumerate(made):
        mask = sum(1 << j for j in node["group"])
        fields = (node["token"], node["parent"], node["depth"], mask, node["cell"], node["coarse"])
        nodes[row, i] = (*fields, node["place"])
        scratch.survival[i] = node["survival"]
    return len(made), drafted


def judge(model: Any, nodes: Any, row: int, size: int, tokens: Any) -> None:
    """Learn from what the target said: every node whose parent turned out true is a trial."""
    said, start, end = tokens
    truth = [int(token) for token in said[start:end]]
    true = {-1}
    for i in range(size):
        token, parent, depth, _, cell, coarse, _ = (int(value) for value in nodes[row, i])
        if parent not in true or depth >= len(truth):
            continue
        hit = truth[depth] == token
        for trials in (model.cells[cell], model.coarse[coarse]):
            trials += (hit, 1)
            if trials[1] > MEMORY:
                trials *= 0.5
        if hit:
            true.add(i)
            nodes[row, i, MASK] = -1
