"""The KV cache that drafts, verification and trials share."""

from __future__ import annotations

from typing import Any


def crop(cache: Any, length: int) -> None:
    """Forget what lies behind ``length`` tokens. Layers that a draft left out are shorter, so each is cut by itself."""
    for layer in cache.layers:
        excess = layer.get_seq_length() - length
        if excess > 0:
            layer.crop(-excess)


def beginning(cache: Any, empty: Any, length: int) -> Any:
    """``empty`` (a new cache) filled with the first ``length`` tokens of ``cache``, which stays as it is.

    No keys are copied before the new cache grows.
    """
    for number, layer in enumerate(cache.layers):
        if length > 0:
            empty.update(layer.keys[..., :length, :], layer.values[..., :length, :], number)
    return empty


class Branches:
    """One layer of a cache, as several alternatives of one token see it: its first tokens, then only themselves.

    Stands in for a cache in a call of that layer; what is added to it is forgotten.
    """

    def __init__(self, cache: Any, layer: int, length: int, branches: int) -> None:
        self._layer = cache.layers[layer]
        self._length = length
        self._branches = branches

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The keys and values that the attention sees, ``[branches, heads, length + 1, size]``."""
        import torch

        size = (self._branches, -1, -1, -1)
        seen_keys = self._layer.keys[..., : self._length, :].expand(size)
        seen_values = self._layer.values[..., : self._length, :].expand(size)
        return torch.cat([seen_keys, keys], dim=-2), torch.cat([seen_values, values], dim=-2)
