"""The arrays of a verification step."""

from __future__ import annotations

import numpy as np

from specplug.adapters.sglang_srt.drafting import Drafts, no_drafts
from specplug.adapters.sglang_srt.layout import chain_mask, lay_out


def drafts(rows: list[list[int]], width: int, parents: list[list[int]] | None = None) -> Drafts:
    made = no_drafts(len(rows), width)
    nodes = None if parents is None else np.zeros((len(rows), width), np.int32)
    for row, tokens in enumerate(rows):
        made.tokens[row, : len(tokens)] = tokens
        made.lengths[row] = len(tokens)
        if nodes is not None and parents is not None:
            nodes[row, : len(tokens)] = parents[row]
    return Drafts(made.tokens, made.lengths, nodes)


def test_rows_are_padded_by_their_last_token() -> None:
    layout = lay_out(np.array([7, 8, 9]), drafts([[1, 2], [], [3]], 2))
    assert layout.tokens.tolist() == [[7, 1, 2], [8, 8, 8], [9, 3, 9]]
    assert layout.depths.tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 1]]
    assert layout.next_token.tolist() == [[1, 2, -1], [-1, -1, -1], [1, -1, -1]]
    assert (layout.next_sibling == -1).all()
    assert layout.sees is None


def test_no_drafts_are_plain_decoding() -> None:
    layout = lay_out(np.array([7]), no_drafts(1, 0))
    assert layout.tokens.tolist() == [[7]]
    assert layout.next_token.tolist() == [[-1]]


def test_a_chain_looks_back() -> None:
    assert chain_mask(1, 3)[0].tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_a_tree_is_laid_out_one_place_behind_the_root() -> None:
    layout = lay_out(np.array([7]), drafts([[1, 2, 3]], 4, [[-1, -1, 0]]))
    assert layout.tokens.tolist() == [[7, 1, 2, 3, 7]]
    assert layout.depths.tolist() == [[0, 1, 1, 2, 0]]
    assert layout.next_token.tolist() == [[1, 3, -1, -1, -1]]
    assert layout.next_sibling.tolist() == [[-1, 2, -1, -1, -1]]
    assert layout.sees is not None
    seen = [np.flatnonzero(line).tolist() for line in layout.sees[0]]
    assert seen == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 4]], "padding must look at something"
