"""Which drafts the target keeps, in torch, on any device: the maths of :mod:`specplug.verify` for whole batches.

``B`` rows, ``w`` positions (the last token and ``K = w - 1`` draft nodes), ``V`` tokens. Node ``j`` stands at position
``j + 1``. Nothing here waits for the device. Coins are arguments. Each function equals a function of
:mod:`specplug.reference`, which is what its tests compare it with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Tensor = Any


class Kept(NamedTuple):
    """What a step emits.

    Attributes:
        tokens: int64 ``[B, w]``: the kept drafts, then one token of the target's own; what lies behind is undefined.
        accepted: int64 ``[B]``: how many drafts were kept.
        path: int64 ``[B, w]`` for trees: positions of the emitting target laws, 0 first, -1 behind; None for chains.
    """

    tokens: Tensor
    accepted: Tensor
    path: Tensor | None = None


def root_path(tokens: Tensor) -> Tensor:
    """The path of a tree of which nothing was accepted, see :attr:`Kept.path`."""
    path = tokens.new_full(tokens.shape, -1)
    path[:, 0] = 0
    return path


def accept_by_comparison(samples: Tensor, tokens: Tensor, lengths: Tensor) -> Kept:
    """Keep drafts while they equal the target's own choice at their position.

    :func:`specplug.reference.accept.accept_greedy` where the choices are first maxima,
    :func:`~specplug.reference.accept.accept_by_comparison` where they are samples.

    Args:
        samples: int64 ``[B, w]``, the target's choice at each position.
        tokens: int64 ``[B, K]``, the drafts.
        lengths: int64 ``[B]``.
    """
    import torch

    width = tokens.shape[1]
    usable = torch.arange(width, device=tokens.device) < lengths[:, None]
    same = usable & (samples[:, :width] == tokens)
    # What is emitted is the choice itself: an accepted draft equals it.
    return Kept(samples, same.long().cumprod(1).sum(1))


def accept_one_hot(
    laws: Tensor, starts: Tensor, tokens: Tensor, lengths: Tensor, coins: Tensor
) -> Kept:
    """Keep draft ``x`` with probability ``law(x)``, else draw from the law without ``x``.

    :func:`specplug.reference.accept.accept_one_hot` (Leviathan et al. 2023, arXiv:2211.17192).

    Args:
        laws: floats ``[N, V]``, weights of the positions in use: row ``i`` has ``lengths[i] + 1`` of them,
            consecutive from ``starts[i]`` on.
        starts: int64 ``[B]``.
        tokens: int64 ``[B, K]``.
        lengths: int64 ``[B]``.
        coins: floats ``[B, K + 1]`` in ``[0, 1)``; coin ``j`` judges draft ``j``, the last one draws.
    """
    import torch

    rows, width = tokens.shape
    # One more column, so that a row without drafts has something to look at.
    padded = torch.cat([tokens, tokens.new_zeros(rows, 1)], 1)
    places = torch.arange(width, device=tokens.device)
    used = places < lengths[:, None]
    index = torch.where(used, starts[:, None] + places, starts[:, None])
    weights = laws[index, tokens].double()
    totals = laws.double().sum(1)[index]
    kept = (used & (coins[:, :width].double() * totals < weights)).long().cumprod(1).sum(1)
    final = laws[starts + kept].double()
    banned = padded.gather(1, kept[:, None])
    rejected = (kept < lengths)[:, None]
    # Out of the law only where the draft was rejected; elsewhere the weight is put back unchanged.
    final = final.scatter(1, banned, torch.where(rejected, 0.0, final.gather(1, banned)))
    choice = draw(final, coins[:, width])
    choice = torch.where(choice < 0, banned[:, 0], choice)
    return Kept(padded.scatter(1, kept[:, None], choice[:, None]), kept)


def draw(weights: Tensor, coins: Tensor) -> Tensor:
    """A token per row by its coin, int64 ``[R]``; -1 where no weight is positive.

    :func:`specplug.reference.draw.draw`. ``weights`` is float64 ``[R, V]``, ``coins`` floats ``[R]``.
    """
    import torch

    sums = weights.cumsum(1)
    stretched = coins.double()[:, None] * sums[:, -1:]
    choice = torch.searchsorted(sums, stretched, right=True)[:, 0]
    places = torch.arange(weights.shape[1], device=weights.device)
    last = torch.where(weights > 0, places, -1).amax(1)
    return torch.minimum(choice, last)


def accept_tree(samples: Tensor, tokens: Tensor, parents: Tensor, lengths: Tensor) -> Kept:
    """Follow the target's choices while they are in the tree.

    :func:`specplug.reference.accept_tree.accept_tree_greedy` where the choices are first maxima; in law
    ``accept_tree_one_hot`` where they are independent samples of each node's law.

    Args:
        samples: int64 ``[B, w]``, the target's choice after each node.
        tokens: int64 ``[B, K]``.
        parents: int64 ``[B, K]``, -1 for children of the last token.
        lengths: int64 ``[B]``.
    """
    import torch

    rows, width = tokens.shape
    if not width:  # no row has a draft in this step: a chain of none
        return accept_by_comparison(samples, tokens, lengths)
    places = torch.arange(width, device=tokens.device)
    used = places < lengths[:, None]
    node = tokens.new_full((rows,), -1)
    accepted = torch.zeros_like(node)
    emitted = tokens.new_zeros(rows, width + 1)
    path = tokens.new_full((rows, width + 1), -1)
    going = torch.ones(rows, dtype=torch.bool, device=tokens.device)
    for depth in range(width + 1):
        choice = samples.gather(1, node[:, None] + 1)[:, 0]
        emitted[:, depth] = torch.where(going, choice, 0)
        path[:, depth] = torch.where(going, node + 1, -1)
        children = used & (parents == node[:, None]) & (tokens == choice[:, None])
        going = going & children.any(1)
        # argmax: the first child of this token; a repeated sibling has no mass left.
        node = torch.where(going, children.int().argmax(1), node)
        accepted = accepted + going.long()
    return Kept(emitted, accepted, path)
