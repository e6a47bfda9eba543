"""Which vocabulary token ids belong to: a digest that travels with every file of token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping


def vocabulary_digest(vocabulary: Mapping[str, int]) -> str:
    """First 16 hexadecimal digits of a SHA-256 over all tokens and their ids, in the order of the ids.

    A function of the mapping alone, not of the file that it was read from: a ``tokenizer.json`` and the tokenizer that
    an engine has loaded give the same digest.

    >>> vocabulary_digest({"a": 0, "b": 1}) == vocabulary_digest({"b": 1, "a": 0})
    True
    """
    digest = hashlib.sha256()
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        digest.update(f"{number} {len(token)} {token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
