"""The tokenizer of the target, from a ``tokenizer.json`` or a Hugging Face folder that holds one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specplug.errors import LogError, MissingExtraError
from specplug.types import TOKEN_DTYPE, TokenArray

FILE = "tokenizer.json"


@dataclass(frozen=True)
class TextTokenizer:
    """Text to token ids; no special tokens are added.

    Attributes:
        path: the file.
        vocab_size: one more than the largest id, tokens added to the model's vocabulary included.
        digest: first 16 hexadecimal digits of the file's SHA-256.
    """

    path: Path
    vocab_size: int
    digest: str
    _tokenizer: Any

    def encode(self, texts: Sequence[str]) -> list[TokenArray]:
        """One int32 array per text."""
        # The fast variant leaves out character offsets, which nobody reads here.
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(e.ids, TOKEN_DTYPE) for e in encoded]


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """Load a tokenizer.

    Raises:
        MissingExtraError: the package ``tokenizers`` is not installed.
        LogError: there is no tokenizer at ``path``, or it cannot be read.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("reading text logs", "tokenizers", "replay") from error
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / FILE
    if not file.is_file():
        raise LogError(
            f"no tokenizer at {file}; give a {FILE} or the folder of a Hugging Face model that holds one"
        )
    content = file.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception and ValueError, from Rust
        raise LogError(f"{file} is no tokenizer of the format {FILE}: {error}") from error
    # A tokenizer file may carry the truncation and padding of the model's training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise LogError(f"{file} has an empty vocabulary")
    return TextTokenizer(file, max(ids) + 1, hashlib.sha256(content).hexdigest()[:16], tokenizer)
