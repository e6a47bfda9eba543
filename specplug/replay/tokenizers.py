"""The tokenizer of the target: a ``tokenizer.json``, a Hugging Face folder, or a GGUF file.

``tokenizers`` alone reads the first two. A folder without ``tokenizer.json`` (old SentencePiece models) and a GGUF
file are converted by ``transformers``, which every environment of vLLM or SGLang has; for GGUF it needs ``gguf``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specplug.errors import LogError, MissingExtraError
from specplug.types import TOKEN_DTYPE, TokenArray
from specplug.vocabulary import vocabulary_digest

FILE = "tokenizer.json"
GGUF_MAGIC = b"GGUF"
_CONVERTING = "run this in the environment of vLLM or SGLang, or pip install transformers"


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

    @property
    def vocabulary_digest(self) -> str:
        """What a file of token ids is marked with, see :func:`specplug.vocabulary.vocabulary_digest`."""
        return vocabulary_digest(self._tokenizer.get_vocab(with_added_tokens=True))

    def encode(self, texts: Sequence[str]) -> list[TokenArray]:
        """One int32 array per text.

        Raises:
            LogError: the tokenizer cannot take one of them.
        """
        try:
            # The fast variant leaves out character offsets, which nobody reads here.
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:
            raise LogError(f"the tokenizer cannot take this text: {error}") from error
        return [np.array(e.ids, TOKEN_DTYPE) for e in encoded]

    def decode(self, tokens: TokenArray) -> str:
        """The text of int32 ``[n]``, special tokens included."""
        return str(self._tokenizer.decode(tokens.tolist(), skip_special_tokens=False))


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """Load a tokenizer.

    Raises:
        MissingExtraError: the package ``tokenizers`` is not installed.
        LogError: there is no tokenizer at ``path``, it cannot be read, or the libraries for its kind are missing.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("reading text logs", "tokenizers", "replay") from error
    file = Path(path).expanduser()
    if file.is_dir() and not (file / FILE).is_file() and _slow_files(file):
        return _wrapped(_slow_files(file)[0], _converted(file))
    if file.is_dir():
        file = file / FILE
    if not file.is_file():
        raise LogError(
            f"no tokenizer at {file}; give a {FILE}, the folder of a Hugging Face model that holds one, or a GGUF file"
        )
    with open(file, "rb") as content:
        if content.read(4) == GGUF_MAGIC:
            return _wrapped(file, _converted(file.parent, file.name))
    try:
        tokenizer = Tokenizer.from_buffer(file.read_bytes())
    except Exception as error:  # the library raises plain Exception and ValueError, from Rust
        raise LogError(f"{file} is no tokenizer of the format {FILE}: {error}") from error
    return _wrapped(file, tokenizer)


def _slow_files(folder: Path) -> list[Path]:
    """Files of tokenizers that only ``transformers`` reads."""
    found = [folder / name for name in ("tokenizer.model", "spiece.model", "vocab.json")]
    return [path for path in found if path.is_file()]


def _converted(folder: Path, gguf: str | None = None) -> Any:
    """What ``transformers`` makes of a folder or of a GGUF file in it."""
    where = folder if gguf is None else folder / gguf
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise LogError(
            f"{where} is read by the package 'transformers', which is missing; {_CONVERTING}"
        ) from error
    options = {} if gguf is None else {"gguf_file": gguf}
    try:
        made = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **options)
    except ImportError as error:
        raise LogError(
            f"{where} is read by transformers with the packages 'gguf' and 'torch', of which one is missing; "
            f"{_CONVERTING} gguf torch: {str(error).strip().splitlines()[0]}"
        ) from error
    except Exception as error:  # a damaged file makes the library raise nearly anything
        raise LogError(f"{where} cannot be read as a tokenizer: {error}") from error
    inner = getattr(made, "backend_tokenizer", None)
    if inner is None:
        raise LogError(f"{where} has no fast tokenizer; convert it to a {FILE} and give that")
    return inner


def _wrapped(file: Path, tokenizer: Any) -> TextTokenizer:
    # A tokenizer file may carry the truncation and padding of the model's training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = tokenizer.get_vocab(with_added_tokens=True).values()
    if not ids:
        raise LogError(f"{file} has an empty vocabulary")
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return TextTokenizer(file, max(ids) + 1, digest.hexdigest()[:16], tokenizer)
