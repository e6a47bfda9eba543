"""The file of a datastore, byte by byte; ``docs/datastore-format.md`` says the same in prose.

All numbers are little-endian. The header takes the first 4096 bytes; sections begin at multiples of 4096::

    offset  bytes  what
         0      8  magic, b"SPDSTORE"
         8      4  format version, unsigned (2; 1 is read too)
        12      4  listed: last tokens that the section of buckets lists; 0 if it has a number for every token
        16      8  vocab_size: ids are 0 .. vocab_size - 1, the id vocab_size is the separator
        24      8  tokens, separators included
        32      8  entries
        40      8  documents
        48      8  depth: tokens of context by which entries are sorted
        56     96  sections tokens, entries, buckets: bits per number, offset, bytes, reserved (8 bytes each)
       152     96  SHA-256 of each of the three sections
       248     32  digest of the vocabulary in ASCII, see specplug.vocabulary; zeros behind it
       280      8  bytes of metadata, a JSON object in UTF-8 at offset 512 (at most 3520 bytes)
       288     32  SHA-256 of the header with these 32 bytes set to 0
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from specplug.errors import DatastoreError

#: The file within the folder that users name.
FILE = "datastore.bin"
#: In a path, stands for the namespace of the request.
PLACEHOLDER = "{namespace}"
MAGIC = b"SPDSTORE"
VERSION = 2
#: Sections begin at multiples of these bytes, by version. What is not here cannot be read.
ALIGNMENT = {1: 4096, 2: 64}
HEADER_BYTES = 4096
SECTIONS = ("tokens", "entries", "buckets")
_FIXED = struct.Struct("<8sII5Q")
_SECTION = struct.Struct("<4Q")
#: Everything up to the checksum.
_ALL = struct.Struct("<8sII5Q12Q32s32s32s32sQ")
_SECTIONS_AT, _DIGESTS_AT, _VOCABULARY_AT, _SIZE_AT, _CHECK_AT = 56, 152, 248, 280, 288
_METADATA_AT = 512
_JSON = json.JSONEncoder(sort_keys=True)


_NO_DIGEST = bytes(32)


class Section(NamedTuple):
    """Where packed numbers lie: bits per number, offset and bytes in the file (padded to whole words), SHA-256."""

    bits: int
    offset: int
    size: int
    digest: bytes = _NO_DIGEST


class Header(NamedTuple):
    """What the first 4096 bytes say.

    Attributes:
        vocab_size: ids lie below it; it is itself the separator.
        tokens: numbers in the section of that name, separators included.
        entries: sorted positions.
        documents: how many the corpus had after filters.
        depth: tokens of context that the order of entries goes by.
        sections: by the names of :data:`SECTIONS`.
        vocabulary: see :func:`specplug.vocabulary.vocabulary_digest`; "" if the ids came without a tokenizer.
        metadata: how it was built; JSON.
        listed: last tokens that the section of buckets lists; 0: it has a number for every token of the vocabulary.
        version: of the format.
    """

    vocab_size: int
    tokens: int
    entries: int
    documents: int
    depth: int
    sections: Mapping[str, Section]
    vocabulary: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})
    listed: int = 0
    version: int = VERSION

    @property
    def file_size(self) -> int:
        """Bytes that the file must have."""
        last = self.sections[SECTIONS[-1]]
        return last.offset + last.size


def file_of(path: str | Path) -> Path:
    """The file of a datastore that is named by its folder or by the file itself."""
    path = Path(path).expanduser()
    return path / FILE if path.is_dir() else path


def read_header(path: str | Path) -> Header:
    """The header of a published file; nothing is mapped.

    Raises:
        DatastoreError: there is none, or it cannot be a datastore; the message says what to do.
    """
    file = file_of(path)
    try:
        with open(file, "rb") as opened:
            return decode(opened.read(HEADER_BYTES), os.fstat(opened.fileno()).st_size, str(file))
    except OSError as error:
        raise unopened(path, error) from error


def unopened(path: str | Path, error: OSError) -> DatastoreError:
    """Why a path could not be opened, and what to do."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return DatastoreError(
            f"no datastore at {path}; `specplug datastore build {path} INPUT --tokenizer MODEL` makes one"
        )
    return DatastoreError(
        f"{file_of(path)} cannot be opened: {error}; a file that this process may read is expected"
    )


def check_header(header: Header, where: str, vocab_size: int, vocabulary: str) -> None:
    """Refuse a datastore whose ids cannot be the model's.

    Args:
        header: of the datastore.
        where: its path, for the message.
        vocab_size: of the model.
        vocabulary: of its tokenizer, see :func:`specplug.vocabulary.vocabulary_digest`; "" if that is not known.

    Raises:
        DatastoreError: ids of the store can lie outside of the model's vocabulary, or mean other text.
    """
    if header.vocab_size > vocab_size:
        raise DatastoreError(
            f"{where} was built for {header.vocab_size} token ids, the model has {vocab_size}; "
            "build it with the tokenizer of this model"
        )
    if vocabulary and header.vocabulary not in ("", vocabulary):
        raise DatastoreError(
            f"{where} was built with another tokenizer (vocabulary {header.vocabulary}, the model's "
            f"is {vocabulary}); build it with the tokenizer of this model"
        )


def bits_for(largest: int) -> int:
    """Bits per number of a section whose numbers go up to ``largest``.

    >>> bits_for(65535), bits_for(65536), bits_for(0)
    (16, 17, 1)
    """
    return max(1, largest.bit_length())


def packed_bytes(count: int, bits: int) -> int:
    """Bytes of a section of ``count`` numbers, whole words and one to spare (a reader may look one word ahead)."""
    return (-(-count * bits // 64) + 1) * 8


def listed_for(vocab_size: int, entries: int, distinct: int) -> int:
    """How many last tokens the section of buckets lists: none where a number for each takes half a byte per entry.

    >>> listed_for(49_152, 1_000_000, 30_000), listed_for(49_152, 10_000, 2_000)
    (0, 2000)
    """
    dense = (vocab_size + 1) * bits_for(entries)
    width = bits_for(vocab_size) + bits_for(entries)
    if dense <= 4 * entries or (distinct + 1) * width >= dense or width > 62:
        return 0
    return distinct


def layout(
    vocab_size: int,
    tokens: int,
    entries: int,
    digests: Mapping[str, bytes] | None = None,
    *,
    listed: int = 0,
    version: int = VERSION,
) -> dict[str, Section]:
    """The three sections of a store of this size, one after the other."""
    digests = digests or {}
    buckets = (vocab_size + 1, bits_for(entries))
    if listed:
        buckets = (listed + 1, bits_for(vocab_size) + bits_for(entries))
    plan = ((tokens, bits_for(vocab_size)), (entries, bits_for(max(tokens - 1, 0))), buckets)
    sections, offset, align = {}, HEADER_BYTES, ALIGNMENT[version]
    for name, (count, bits) in zip(SECTIONS, plan, strict=True):
        size = packed_bytes(count, bits)
        sections[name] = Section(bits, offset, size, digests.get(name, _NO_DIGEST))
        offset = -(-(offset + size) // align) * align
    return sections


def encode(header: Header) -> bytes:
    """The 4096 bytes of a header.

    Raises:
        DatastoreError: the metadata is too long.
    """
    # Most have none, and to ask the library takes as long as all else here.
    text = _JSON.encode(dict(header.metadata)).encode() if header.metadata else b"{}"
    if len(text) > HEADER_BYTES - _METADATA_AT - 64:
        raise DatastoreError(f"{len(text)} bytes of metadata do not fit in the header (3520)")
    tokens, entries, buckets = map(header.sections.__getitem__, SECTIONS)
    page = bytearray(HEADER_BYTES)
    _ALL.pack_into(
        *(page, 0, MAGIC, header.version, header.listed, header.vocab_size, header.tokens),
        *(header.entries, header.documents, header.depth),
        *(*tokens[:3], 0, *entries[:3], 0, *buckets[:3], 0),
        *(tokens.digest, entries.digest, buckets.digest),
        *(header.vocabulary.encode("ascii"), len(text)),
    )
    page[_METADATA_AT : _METADATA_AT + len(text)] = text
    page[_CHECK_AT : _CHECK_AT + 32] = hashlib.sha256(page).digest()
    return bytes(page)


def decode(page: bytes, file_size: int, where: str) -> Header:
    """Read a header and check that it describes a file of ``file_size`` bytes. O(1).

    Raises:
        DatastoreError: no datastore, one of a later version, a damaged header, or a file of another size.
    """
    if page[:8] != MAGIC:
        raise DatastoreError(
            f"{where} is no datastore: it begins with {bytes(page[:8])!r}, expected {MAGIC!r}; "
            "build one with `specplug datastore build`"
        )
    version = int.from_bytes(page[8:12], "little")
    if version not in ALIGNMENT:
        raise DatastoreError(
            f"{where} has format version {version}, this specplug reads versions up to {VERSION}; "
            "upgrade specplug, or build the datastore again with this one"
        )
    if len(page) < HEADER_BYTES:
        raise DatastoreError(
            f"{where} ends after {len(page)} bytes, within its header; copy or build it again"
        )
    blank = bytearray(page)
    blank[_CHECK_AT : _CHECK_AT + 32] = bytes(32)
    if hashlib.sha256(blank).digest() != page[_CHECK_AT : _CHECK_AT + 32]:
        raise DatastoreError(f"{where}: the header is damaged (checksum); copy or build it again")
    header = _parse(page, where)
    if file_size != header.file_size:
        raise DatastoreError(
            f"{where} has {file_size} bytes, its header says {header.file_size}; "
            "it was cut or is still being copied; copy or build it again"
        )
    return header


def _parse(page: bytes, where: str) -> Header:
    _, version, listed, vocab_size, tokens, entries, documents, depth = _FIXED.unpack_from(page)
    sections = {}
    for i, name in enumerate(SECTIONS):
        bits, offset, size, _ = _SECTION.unpack_from(page, _SECTIONS_AT + 32 * i)
        digest = page[_DIGESTS_AT + 32 * i : _DIGESTS_AT + 32 * (i + 1)]
        sections[name] = Section(bits, offset, size, digest)
    (length,) = struct.unpack_from("<Q", page, _SIZE_AT)
    metadata = json.loads(page[_METADATA_AT : _METADATA_AT + length] or b"{}")
    vocabulary = page[_VOCABULARY_AT : _VOCABULARY_AT + 32].rstrip(b"\0").decode("ascii", "replace")
    header = Header(
        *(vocab_size, tokens, entries, documents, depth, sections, vocabulary, metadata),
        *(listed, version),
    )
    digests = {name: section.digest for name, section in sections.items()}
    plan = layout(vocab_size, tokens, entries, digests, listed=listed, version=version)
    if sections != plan or (listed and version == 1):
        raise DatastoreError(
            f"{where}: its sections ({', '.join(map(str, sections.values()))}) are not those of format version "
            f"{version}; copy or build it again"
        )
    return header
