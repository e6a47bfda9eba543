"""Names the weights of a model, from what its checkpoint's files and the loaded model both hold under the same name.

Engines fuse and pack weights as they load them, so a fingerprint over all weights of one engine could not be had in
another. This one hashes the names and shapes of the embedding, the norms and some matrices of every layer, and the
first rows of each, rounded to half precision.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from specplug.errors import ExitHeadError

#: Rows of each matrix that are looked at.
ROWS = 1
EMBEDDING_ROWS = 64
_MATRICES = "q_proj|qkv_proj|o_proj|gate_proj|gate_up_proj|down_proj"
_KNOWN = re.compile(
    rf"(?:^|\.)(embed_tokens\.weight|norm\.weight|layers\.\d+\.(?:[\w.]*norm|[\w.]*\.(?:{_MATRICES}))\.weight)$"
)
#: Towers for other things than text.
_OTHERS = re.compile(r"(?:^|\.)\w*(?:vision|visual|audio)\w*\.")


def common_name(name: str) -> str:
    """What a weight is called from its decoder stack on; "" if it does not count."""
    found = _KNOWN.search(name)
    return "" if found is None or _OTHERS.search(name) else found.group(1)


def fingerprint(
    weights: Iterable[tuple[str, tuple[int, ...], Callable[[int], NDArray[np.float32]]]],
) -> str:
    """32 hexadecimal digits.

    Args:
        weights: name, shape, and what reads the first so many rows as float32, rounded to bfloat16, so that a
            checkpoint has one fingerprint in whatever precision it is loaded. In any order.

    Raises:
        ExitHeadError: none of them has a name that is known here.
    """
    parts = {}
    for name, shape, read in weights:
        known = common_name(name)
        if known:
            rows = shape[0] if len(shape) == 1 else ROWS
            rows = EMBEDDING_ROWS if known == "embed_tokens.weight" else rows
            parts[known] = shape, np.ascontiguousarray(read(rows), "<f4").tobytes()
    if not parts:
        raise ExitHeadError("the model has no weights with the names of Llama-like models")
    digest = hashlib.sha256()
    for known in sorted(parts):
        shape, content = parts[known]
        digest.update(f"{known} {tuple(shape)}".encode() + content)
    return digest.hexdigest()[:32]
