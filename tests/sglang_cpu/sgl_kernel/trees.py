"""Draft trees: links between nodes from an ancestor mask, and greedy verification. Both write into arguments.

A node's number is its row in the request's verify window; node 0 is the newest token of the request, its
descendants are drafts. ``retrieve_index`` holds the nodes' rows in the flat batch; SGLang's own spelling of the
keyword arguments is kept where it differs ("retrive").
"""

from __future__ import annotations

import torch

NONE = -1


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions, first children and next siblings of all nodes.

    Args:
        tree_mask: ``[batch_size * n * n]`` bool, flat; entry (i, j) says that j is i or one of its ancestors.
        verified_seq_len: ``[batch_size]`` tokens before node 0.
        positions: ``[batch_size * n]``; written: depth of the node plus ``verified_seq_len``.
        retrive_index: ``[batch_size, n]``; written: rows in the flat batch.
        retrive_next_token: ``[batch_size, n]``; written: the first child, or -1.
        retrive_next_sibling: ``[batch_size, n]``; written: the next child of the same parent, or -1.
        batch_size, draft_token_num: ``n`` is the latter.
    """
    n = draft_token_num
    order = torch.arange(n)
    mask = tree_mask[: batch_size * n * n].view(batch_size, n, n).bool()
    ancestors = mask & (order[None, :] < order[:, None])
    depth = ancestors.sum(-1)
    found = depth + verified_seq_len[:batch_size, None]
    positions[: batch_size * n] = found.flatten().to(positions.dtype)
    retrive_index[:batch_size] = torch.arange(batch_size * n).view(batch_size, n)

    parent = torch.where(depth > 0, (ancestors * order).amax(-1), NONE)
    child = parent[:, None, :] == order[None, :, None]  # (parent, child)
    first = torch.where(child, order, n).amin(-1)
    retrive_next_token[:batch_size] = torch.where(first < n, first, NONE)
    later = (parent[:, :, None] == parent[:, None, :]) & (order[None, :] > order[:, None])
    later &= (parent >= 0)[:, :, None]
    following = torch.where(later, order, n).amin(-1)
    retrive_next_sibling[:batch_size] = torch.where(following < n, following, NONE)


def verify_tree_greedy_cpu(
    *,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """From node 0 on, go to the child that is the target's best token, as long as there is one.

    Args:
        predicts: flat; written: the target's best token at every row that was visited.
        accept_index: ``[requests, depth]``; written: flat rows of the accepted nodes, node 0 first.
        accept_token_num: ``[requests]``; written: accepted drafts, node 0 not counted.
        candidates: ``[requests, n]`` tokens of the nodes.
        retrive_index, retrive_next_token, retrive_next_sibling: ``[requests, n]``, see above.
        target_predict: ``[requests, n]`` the target's best token after each node.
    """
    rows, tokens = retrive_index.tolist(), candidates.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    depth = accept_index.shape[1]
    for request, best in enumerate(target_predict.tolist()):
        node, path = 0, [rows[request][0]]
        while True:
            predicts[rows[request][node]] = best[node]
            child = children[request][node]
            while child != NONE and tokens[request][child] != best[node]:
                child = siblings[request][child]
            if child == NONE or len(path) == depth:
                break
            node = child
            path.append(rows[request][node])
        accept_index[request, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[request] = len(path) - 1
