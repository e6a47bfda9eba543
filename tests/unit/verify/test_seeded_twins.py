"""Kernels and slow twins agree to the last bit on seeded inputs that are full of edges.

Flat laws, exact ties, zeros, weights that sum to anything, coins on the edges of cells, empty and partly filled drafts.
Quicker than the properties, and the first thing that ``tools/mutation.py`` holds a changed kernel against.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest

Arguments = tuple[Any, ...]

_COINS = [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.6, 2 / 3, 0.75, 0.9, 1.0 - 2.0**-53]
_CASES = 300


def cases_of(stem: str) -> list[tuple[str, Arguments]]:
    """Functions of one kernel module with arguments, the arrays that they write included."""
    build = _BUILDERS.get(stem)
    generator = np.random.default_rng(5)
    return [case for _ in range(_CASES) for case in build(generator)] if build else []


def results(module: str, cases: list[tuple[str, Arguments]]) -> list[Any]:
    """What the functions return and leave in their arguments."""
    loaded = import_module(module)
    found = []
    for name, arguments in cases:
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        returned = getattr(loaded, name)(*copies)
        found.append((returned, [c for c in copies if isinstance(c, np.ndarray)]))
    return found


def same(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of results are equal to the last bit."""
    return all(
        a == b
        and all(
            np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(p, q, strict=True)
        )
        for (a, p), (b, q) in zip(one, other, strict=True)
    )


def _laws(generator: np.random.Generator, *shape: int) -> np.ndarray:
    weights = generator.choice([0.0, 1.0, 1.0, 2.0, 5.0, 40.0], shape)
    weights[..., 0] += weights.sum(axis=-1) == 0.0
    laws: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    # Kernels normalise by themselves, and must do so on both sides.
    scale: float = generator.choice([1.0, 1.0, 0.25, 3.0])
    return laws * scale


def _ints(generator: np.random.Generator, low: int, high: int, *shape: int) -> np.ndarray:
    return generator.integers(low, high, shape).astype(np.int32)


def _draw(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    target, draft = _laws(generator, 4), _laws(generator, 4)
    coin, scales = float(generator.choice(_COINS)), generator.choice([0.5, 1.0, 3.0], 2).tolist()
    return [
        ("total", (target,)),
        ("draw", (target, coin)),
        ("draw_without", (target, int(generator.integers(4)), coin)),
        ("residual_mass", (target, draft, *scales)),
        ("draw_residual", (target, draft, *scales, coin)),
    ]


def _chain(generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    rows, width, vocab_size = (int(generator.integers(*ends)) for ends in ((1, 4), (0, 4), (1, 5)))
    target = _laws(generator, rows, width + 1, vocab_size)
    tokens = _ints(generator, 0, vocab_size, rows, width)
    lengths = np.maximum(_ints(generator, 0, width + 1, rows), _ints(generator, 0, width + 1, rows))
    coins = generator.choice(_COINS, (rows, width + 1))
    return (
        target,
        tokens,
        lengths,
        coins,
        np.full(rows, 9, np.int32),
        np.full((rows, width + 1), 9, np.int32),
    )


def _accept(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    target, tokens, lengths, coins, accepted, emitted = _chain(generator)
    return [
        ("first_maximum", (target[0, 0],)),
        ("accept_greedy", (target, tokens, lengths, accepted, emitted)),
        ("accept_by_comparison", (target, tokens, lengths, coins, accepted, emitted)),
        ("accept_one_hot", (target, tokens, lengths, coins, accepted, emitted)),
    ]


def _possible(generator: np.random.Generator, target: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Draft laws, some of them the target's own but for the last bits; tokens are changed to possible ones."""
    laws = _laws(generator, *tokens.shape, target.shape[2])
    for place in np.ndindex(*tokens.shape):
        if generator.random() < 0.4:
            laws[place] = target[place] * generator.choice([1.0, 1.0 - 2.0**-50, 1.0 + 2.0**-50])
        if laws[place][tokens[place]] == 0.0:
            tokens[place] = int(laws[place].argmax())
    return laws


def _accept_sampled(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    target, tokens, lengths, coins, accepted, emitted = _chain(generator)
    laws = _possible(generator, target, tokens)
    inputs = (target, laws, tokens, lengths, coins, accepted, emitted)
    return [("accept_sampled", inputs), ("accept_block", inputs)]


def _parents(generator: np.random.Generator, rows: int, nodes: int) -> np.ndarray:
    columns = [generator.integers(-1, max(0, node), rows) for node in range(nodes)]
    return np.array(columns, np.int32).T.reshape(rows, nodes).copy()


def _accept_tree(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    target, tokens, lengths, coins, _, emitted = _chain(generator)
    parents = _parents(generator, *tokens.shape)
    laws = _possible(generator, target, tokens)
    path = np.full(tokens.shape, 9, np.int32)
    return [
        ("accept_tree_greedy", (target, tokens, parents, lengths, emitted, path)),
        ("accept_tree_one_hot", (target, tokens, parents, lengths, coins, emitted, path)),
        ("accept_tree_sampled", (target, laws, tokens, parents, lengths, coins, emitted, path)),
    ]


def _topology(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    rows, nodes = int(generator.integers(1, 4)), int(generator.integers(0, 6))
    parents, lengths = _parents(generator, rows, nodes), _ints(generator, 0, nodes + 1, rows)
    first, following, depths = (np.full((rows, n), 9, np.int32) for n in (nodes + 1, nodes, nodes))
    mask = np.ones((rows, nodes + 1, nodes + 1), np.bool_)
    return [
        ("link_children", (parents, lengths, first, following)),
        ("node_depths", (parents, lengths, depths)),
        ("ancestor_mask", (parents, lengths, mask)),
    ]


def _sampling(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    scores = generator.choice([0.0, 1.0, 0.5, -2.0, -np.inf, 30.0], (3, 9))
    scores[:, 0] = generator.normal(size=3)
    choose = generator.choice
    return [
        ("softmax", (scores, np.empty_like(scores))),
        ("apply_temperature", (scores, choose([0.0, 0.5, 1.0, 2.0], 3))),
        ("keep_top_k", (scores, _ints(generator, 0, 11, 3))),
        ("keep_top_p", (scores, choose([1e-9, 0.25, 0.5, 0.75, 0.9, 1.0], 3))),
        ("keep_min_p", (scores, choose([0.0, 1e-3, 0.5, 1.0], 3))),
    ]


def _penalties(generator: np.random.Generator) -> list[tuple[str, Arguments]]:
    rows, width, vocab_size = 2, int(generator.integers(0, 4)), 4
    scores = generator.normal(size=(rows, width + 1, vocab_size)) * 3
    offsets = np.array([0, generator.integers(0, 4), 6])
    inputs = (
        scores,
        _ints(generator, -1, vocab_size + 1, 6),
        offsets,
        _ints(generator, -1, vocab_size + 1, rows, width),
        _parents(generator, rows, width),
        _ints(generator, 0, width + 1, rows),
        generator.choice([1.0, 1.3, 0.5], rows),
    )
    return [(name, inputs) for name in ("apply_repetition", "apply_frequency", "apply_presence")]


_BUILDERS: dict[str, Callable[[np.random.Generator], list[tuple[str, Arguments]]]] = {
    "draw": _draw,
    "accept": _accept,
    "accept_sampled": _accept_sampled,
    "accept_tree": _accept_tree,
    "topology": _topology,
    "sampling": _sampling,
    "penalties": _penalties,
}


@pytest.mark.parametrize("stem", sorted(_BUILDERS))
def test_kernel_equals_its_twin(stem: str) -> None:
    cases = cases_of(stem)
    ref = results(f"specplug.reference.{stem}", cases)
    got = results(f"specplug.kernels.{stem}", cases)
    for (name, arguments), one, other in zip(cases, ref, got, strict=True):
        assert same([one], [other]), (name, arguments, one, other)
