"""From inputs to a published datastore: tokenizing, filters, duplicates, and going on after an interruption."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specplug.datastore.inputs import Content, Document, Filters, Inputs
from specplug.datastore.writer import Progress, Writer, silent
from specplug.errors import DatastoreError
from specplug.index.datastore import Datastore
from specplug.index.datastore_format import Header
from specplug.replay.tokenizers import TextTokenizer
from specplug.types import TokenArray

#: Documents and characters that are tokenized together.
BATCH, BATCH_CHARACTERS = 512, 1 << 21
#: Tokens after which the state is written down.
CHECKPOINT = 1 << 22
#: Bytes that a remembered document takes (a Python integer in a set).
REMEMBERED = 100


@dataclass(frozen=True)
class Options:
    """How a datastore is built.

    Attributes:
        filters: what of the inputs is taken.
        min_tokens: shorter documents are left out.
        duplicates: keep documents that are equal to an earlier one.
        memory: bytes that sorting and the memory of duplicates may take; tokenizing needs some tens of MB more.
        restart: begin anew even if an interrupted build could be continued.
        durable: wait until the result would outlive a power failure; see :class:`~specplug.datastore.writer.Writer`.
    """

    filters: Filters = field(default_factory=Filters)
    min_tokens: int = 2
    duplicates: bool = False
    memory: int = 1 << 29
    restart: bool = False
    durable: bool = True


@dataclass
class Counts:
    """What became of the documents.

    Attributes:
        taken: in the datastore.
        short: left out by ``min_tokens``.
        duplicate: equal to an earlier one.
        unreadable, filtered, problems: see :class:`~specplug.datastore.inputs.Inputs`.
    """

    taken: int = 0
    short: int = 0
    duplicate: int = 0
    unreadable: int = 0
    filtered: int = 0
    problems: list[str] = field(default_factory=list)


class Duplicates:
    """Remembers documents by 64-bit digests, as many as fit in the memory given; then it begins anew.

    Two different documents are taken for equal with probability n**2 / 2**65: 3e-8 at a million.
    """

    def __init__(self, memory: int) -> None:
        self._most = max(1, memory // REMEMBERED)
        self._seen: set[int] = set()

    def seen(self, content: Content) -> bool:
        """Whether this document came before; remembers it."""
        text = content.encode() if isinstance(content, str) else content.astype("<i4").tobytes()
        digest = hashlib.blake2b(text, digest_size=8).digest()
        number = int.from_bytes(digest, "little")
        if number in self._seen:
            return True
        if len(self._seen) >= self._most:
            self._seen.clear()
        self._seen.add(number)
        return False


def build(
    folder: str | Path,
    inputs: Sequence[str | Path],
    tokenizer: TextTokenizer | None,
    options: Options | None = None,
    progress: Progress = silent,
) -> tuple[Header, Counts]:
    """Build and publish a datastore. The same inputs and options give the same bytes, interrupted or not.

    Args:
        folder: where it is published; a datastore there is replaced at the end, at once.
        inputs: files and folders, see :mod:`specplug.datastore.inputs`.
        tokenizer: of the model; None if all inputs are datastores, whose vocabulary is taken.
        progress: told what is done, how much of it, and out of how much.

    Raises:
        DatastoreError, LogError, MissingExtraError: nothing is published; the message says what to do.
    """
    options = options or Options()
    paths = [Path(path).expanduser() for path in inputs]
    vocab_size, vocabulary = _vocabulary(paths, tokenizer)
    identity = {
        **{"inputs": [_identity(path) for path in paths], "filters": asdict(options.filters)},
        **{"min_tokens": options.min_tokens, "duplicates": options.duplicates},
        **{"vocabulary": vocabulary, "memory": options.memory},
    }
    with Writer(
        *(folder, vocab_size, vocabulary),
        identity=_plain(identity),
        memory=options.memory // 2,
        durable=options.durable,
        restart=options.restart,
    ) as writer:
        counts = _fill(writer, Inputs(paths, options.filters), tokenizer, options, progress)
        metadata = {
            **{"inputs": [path.name for path in paths][:20], "documents": counts.taken},
            **{"duplicates_left_out": counts.duplicate, "short_left_out": counts.short},
            **{"unreadable": counts.unreadable, "filtered": counts.filtered},
        }
        return writer.publish(metadata, progress), counts


def _fill(
    writer: Writer,
    inputs: Inputs,
    tokenizer: TextTokenizer | None,
    options: Options,
    progress: Progress,
) -> Counts:
    """Append all documents that are taken, from where an interrupted build had got to."""
    counts = Counts(**writer.cursor.get("counts", {}))
    done = tuple(writer.cursor.get("place", (-1, -1)))
    duplicates = Duplicates(options.memory // 4)
    known = writer.tokens
    total = inputs.size
    for batch in _batches(inputs):
        fresh = []
        for document in batch:
            repeated = not options.duplicates and duplicates.seen(document.content)
            if document.place <= done:
                continue  # already in the file; read again for the memory of duplicates only
            counts.duplicate += repeated
            if not repeated:
                fresh.append(document.content)
        tokens = _tokens(fresh, tokenizer)
        taken = [document for document in tokens if len(document) >= options.min_tokens]
        writer.extend(taken)
        counts.taken += len(taken)
        counts.short += len(tokens) - len(taken)
        progress("reading", inputs.bytes_read, total)
        if writer.tokens - known >= CHECKPOINT and batch[-1].place > done:
            writer.checkpoint({"place": batch[-1].place, "counts": asdict(counts)})
            known = writer.tokens
    counts.unreadable, counts.filtered = inputs.unreadable, inputs.filtered
    counts.problems = inputs.problems
    return counts


def _batches(inputs: Inputs) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in inputs:
        batch.append(document)
        size += len(document.content)
        if len(batch) >= BATCH or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokens(contents: list[Content], tokenizer: TextTokenizer | None) -> list[TokenArray]:
    texts = [content for content in contents if isinstance(content, str)]
    if texts and tokenizer is None:
        raise DatastoreError("a text needs a tokenizer; give the model's folder or tokenizer.json")
    encoded = iter(tokenizer.encode(texts) if tokenizer is not None and texts else [])
    return [next(encoded) if isinstance(content, str) else content for content in contents]


def _vocabulary(paths: Sequence[Path], tokenizer: TextTokenizer | None) -> tuple[int, str]:
    """Size and digest of the vocabulary; those of datastores among the inputs must be the same."""
    found: tuple[int, str, str] | None = None
    if tokenizer is not None:
        found = (tokenizer.vocab_size, tokenizer.vocabulary_digest, str(tokenizer.path))
    for path in paths:
        try:
            header = Datastore(path).header
        except DatastoreError:
            continue
        if found is None:
            found = (header.vocab_size, header.vocabulary, str(path))
        if header.vocabulary != found[1] or header.vocab_size != found[0]:
            raise DatastoreError(
                f"{path} was built with another vocabulary ({header.vocab_size} ids, {header.vocabulary or '?'}) "
                f"than {found[2]} ({found[0]} ids, {found[1] or '?'}); build it again with the same tokenizer"
            )
    if found is None:
        raise DatastoreError("no tokenizer is given, and no input is a datastore that names one")
    return found[0], found[1]


def _identity(path: Path) -> list[Any]:
    """What tells an input from another of the same name; the content is not read."""
    try:
        found = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), found.st_size, found.st_mtime_ns]


def _plain(value: Any) -> Any:
    """As JSON would give it back, so that identities can be compared."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
