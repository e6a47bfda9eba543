"""The file in which finished outputs outlive their process.

It holds token ids and names of namespaces, nothing of the memory layout: a store of any size, and of any later version,
can read it. Two lines of text, then arrays in little-endian order::

    specplug-store 1
    {"outputs": n, "tokens": t, "vocab_size": V, "tokenizer": "...", "names": [...], "sha256": "...", ...}
    int64 lengths[n], int32 name numbers[n], int32 token ids[t]; oldest output first

The checksum covers the header (without itself) and the arrays. A file is never changed in place: a temporary one
beside it is written, synchronised to disk and renamed over it, so that readers see the old or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specplug._version import __version__
from specplug.errors import StoreFileError
from specplug.files import replace_file
from specplug.index.pieces import PIECE, all_within, concatenated, give_way, replaced_from
from specplug.types import SEPARATOR

MAGIC = b"specplug-store "
VERSION = 1
#: A header longer than this is damage: 65,536 names of a kilobyte each fit.
MAX_HEADER = 1 << 26


@dataclass(frozen=True)
class Vocabulary:
    """What the ids of a file mean.

    Attributes:
        size: number of token ids; every id of the file is below it.
        digest: of the tokenizer (:func:`specplug.vocabulary.vocabulary_digest`), or "" where nobody knows it.
    """

    size: int
    digest: str = ""


@dataclass(frozen=True)
class Outputs:
    """Finished outputs, oldest first.

    Attributes:
        tokens: int32 ``[t]``, one output after the other; separators are -1.
        lengths: int64 ``[n]``, at least 1 each; they add up to ``t``.
        owners: int32 ``[n]``, the number of each output's namespace in ``names``.
        names: of the namespaces.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    owners: NDArray[np.int32]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths)


def no_outputs() -> Outputs:
    """None."""
    return Outputs(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int32), ())


def joined(older: Outputs, newer: Outputs, limit: int) -> Outputs:
    """Both, without the oldest ones beyond ``limit`` tokens, and without names that no output has."""
    lengths = np.concatenate([older.lengths, newer.lengths])
    owners = np.concatenate([older.owners, newer.owners + np.int32(len(older.names))])
    from_end = np.cumsum(lengths[::-1])
    kept = int(np.searchsorted(from_end, limit, side="right"))
    if kept < len(lengths):
        lengths, owners = lengths[len(lengths) - kept :], owners[len(owners) - kept :]
    total = int(lengths.sum())
    fresh = newer.tokens[max(0, len(newer.tokens) - total) :]
    tokens = concatenated([older.tokens[len(older.tokens) + len(fresh) - total :], fresh], np.int32)
    names = older.names + newer.names
    used = dict.fromkeys(names[i] for i in np.flatnonzero(np.bincount(owners)).tolist())
    number = {name: i for i, name in enumerate(used)}
    renumbered = np.array([number.get(name, 0) for name in names] or [0], np.int32)
    return Outputs(tokens, lengths, renumbered[owners], tuple(used))


def write_store(path: Path, outputs: Outputs, vocabulary: Vocabulary) -> None:
    """Replace ``path`` by a file of ``outputs``, readable by its owner only.

    Raises:
        OSError: it cannot be written; what was at ``path`` is untouched and nothing is left beside it.
    """
    header = {
        "outputs": len(outputs),
        "tokens": len(outputs.tokens),
        "vocab_size": vocabulary.size,
        "tokenizer": vocabulary.digest,
        "names": list(outputs.names),
        "specplug": __version__,
        "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    arrays = [
        np.ascontiguousarray(outputs.lengths, "<i8"),
        np.ascontiguousarray(outputs.owners, "<i4"),
        np.ascontiguousarray(outputs.tokens, "<i4"),
    ]
    header["sha256"] = _checksum(header, arrays)
    first = MAGIC + str(VERSION).encode() + b"\n" + json.dumps(header).encode() + b"\n"
    replace_file(path, first, *(array.data for array in arrays))


def read_store(path: Path, vocabulary: Vocabulary) -> Outputs:
    """The outputs of a file.

    Raises:
        StoreFileError: it is damaged (``damaged`` is set), no store, of a newer version, or of another vocabulary.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        header = _read_header(file, path)
        _check_vocabulary(header, vocabulary, path)
        return _read_outputs(file, header, vocabulary, path)


def _read_header(file: IO[bytes], path: Path) -> dict[str, Any]:
    first = file.readline(len(MAGIC) + 20)
    if MAGIC.startswith(first):
        raise StoreFileError(f"{path} is empty or truncated", damaged=True)
    if not first.startswith(MAGIC):
        raise StoreFileError(f"{path} is no store of specplug: it begins with {first[:16]!r}")
    version = first[len(MAGIC) :].strip()
    if not first.endswith(b"\n") or not version.isdigit():
        raise StoreFileError(f"{path} is damaged: its first line is {first!r}", damaged=True)
    if int(version) > VERSION:
        raise StoreFileError(
            f"{path} has version {int(version)}, this specplug ({__version__}) reads versions up to {VERSION}; "
            "upgrade specplug or choose another file"
        )
    try:
        header = json.loads(file.readline(MAX_HEADER))
        sizes = [header[key] for key in ("outputs", "tokens", "vocab_size")]
        strings = [header["tokenizer"], header["sha256"], *header["names"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreFileError(
            f"{path} is damaged: its header cannot be read ({type(error).__name__}: {error})",
            damaged=True,
        ) from error
    if not all(type(n) is int and n >= 0 for n in sizes) or not all(
        isinstance(s, str) for s in strings
    ):
        raise StoreFileError(
            f"{path} is damaged: its header holds values of wrong types", damaged=True
        )
    found: dict[str, Any] = header
    return found


def _check_vocabulary(header: dict[str, Any], vocabulary: Vocabulary, path: Path) -> None:
    """Equal digests decide; where one is not known, equal sizes have to do."""
    theirs = Vocabulary(header["vocab_size"], header["tokenizer"])
    both_known = bool(theirs.digest and vocabulary.digest)
    if theirs.digest == vocabulary.digest if both_known else theirs.size == vocabulary.size:
        return
    ours, other = (
        f"a vocabulary of {v.size} tokens (tokenizer {v.digest or 'unknown'})"
        for v in (vocabulary, theirs)
    )
    raise StoreFileError(
        f"{path} was made for {other}, the model has {ours}; choose one store file per tokenizer"
    )


def _read_outputs(
    file: IO[bytes], header: dict[str, Any], vocabulary: Vocabulary, path: Path
) -> Outputs:
    count, total = header["outputs"], header["tokens"]
    expected = 12 * count + 4 * total
    found = os.fstat(file.fileno()).st_size - file.tell()
    if found != expected:
        kind = "truncated" if found < expected else "damaged"
        raise StoreFileError(
            f"{path} is {kind}: {expected} bytes should follow its header, {found} do", damaged=True
        )
    content = _in_pieces(file, expected)
    arrays = [
        np.frombuffer(content, "<i8", count),
        np.frombuffer(content, "<i4", count, offset=8 * count),
        np.frombuffer(content, "<i4", total, offset=12 * count),
    ]
    stated = header.pop("sha256")
    if _checksum(header, arrays) != stated:
        raise StoreFileError(f"{path} is damaged: its checksum is wrong", damaged=True)
    lengths = concatenated(arrays[:1], np.int64)
    owners = concatenated(arrays[1:2], np.int32)
    tokens = concatenated(arrays[2:], np.int32)
    names = tuple(header["names"])
    # A file that somebody else has made may have a right checksum over wrong numbers.
    if count and (
        not all_within(lengths, 1, total + 1)
        or not all_within(owners, 0, len(names))
        or not all_within(tokens, SEPARATOR, header["vocab_size"])
    ):
        raise StoreFileError(
            f"{path} is damaged: it holds numbers that are out of range", damaged=True
        )
    if lengths.sum() != total:
        raise StoreFileError(
            f"{path} is damaged: the lengths of its outputs do not add up", damaged=True
        )
    # A tokenizer may have more tokens than the model has ids.
    if header["vocab_size"] > vocabulary.size:
        replaced_from(tokens, vocabulary.size, SEPARATOR)
    return Outputs(tokens, lengths, owners, names)


def _in_pieces(file: IO[bytes], size: int) -> memoryview:
    """Read ``size`` bytes so that other threads run in between: at once, it would hold up steps by some 20 ms."""
    # Not a bytearray, which writes zeros into all of it, 4 ms for 5 MB.
    view = np.empty(size, np.uint8).data
    for start in range(0, size, PIECE):
        file.readinto(view[start : start + PIECE])  # type: ignore[attr-defined]
        give_way()
    return view


def _checksum(header: dict[str, Any], arrays: list[NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for array in arrays:
        content = array.data.cast("B") if len(array) else b""
        for start in range(0, len(content), PIECE):
            digest.update(content[start : start + PIECE])
            give_way()
    return digest.hexdigest()
