"""The command ``specplug datastore``: build, info, verify, merge, search, export."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.datastore.build import Counts
    from specplug.index.datastore import Datastore
    from specplug.index.datastore_format import Header
    from specplug.replay.tokenizers import TextTokenizer

DESCRIPTION = """\
Datastores for specplug.rest and specplug.hybrid: text, code or logged answers, indexed on disk, from which a server
drafts. A datastore is a folder with one file, which is published at once and may be replaced while servers use it.
Reading text needs `pip install 'specplug[replay]'`, Parquet 'specplug[parquet]'.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="action")
    _add_build(
        commands.add_parser("build", help="make one from logs, Parquet, text files or folders")
    )
    merge = commands.add_parser("merge", help="make one from several of the same vocabulary")
    merge.add_argument("folder", type=Path, help="of the new datastore")
    merge.add_argument(
        "inputs", nargs="+", type=Path, metavar="DATASTORE", help="folders that are merged"
    )
    _add_how(merge)
    merge.set_defaults(action_run=_merge)
    info = commands.add_parser(
        "info", help="what is in it and how it was built; reads the header only"
    )
    info.add_argument("folder", type=Path, help="of the datastore")
    info.add_argument("--json", action="store_true", help="machine-readable")
    info.set_defaults(action_run=_info)
    verify = commands.add_parser("verify", help="read all of it and compare checksums")
    verify.add_argument("folder", type=Path, help="of the datastore")
    verify.add_argument("--tokenizer", metavar="PATH", help="also: was it built with this one?")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    verify.set_defaults(action_run=_verify)
    search = commands.add_parser("search", help="what it holds after a text, and what is drafted")
    search.add_argument("folder", type=Path, help="of the datastore")
    search.add_argument("--text", help="needs --tokenizer")
    search.add_argument("--ids", type=_ids, metavar="N,...", help="token ids instead of a text")
    search.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json, model folder or GGUF")
    search.add_argument("--most", type=int, default=10, metavar="N", help="occurrences shown (10)")
    search.add_argument("--width", type=int, default=16, metavar="N", help="tokens drafted (16)")
    search.set_defaults(action_run=_search)
    export = commands.add_parser("export", help="its documents as JSON, one per line")
    export.add_argument("folder", type=Path, help="of the datastore")
    export.add_argument("--tokenizer", metavar="PATH", help="write text instead of token ids")
    export.set_defaults(action_run=_export)


def _add_build(build: argparse.ArgumentParser) -> None:
    add = build.add_argument
    add("folder", type=Path, help="where the datastore is published")
    add(
        "inputs",
        nargs="+",
        type=Path,
        metavar="INPUT",
        help="files and folders, read in this order",
    )
    add("--tokenizer", metavar="PATH", help="of the model: tokenizer.json, model folder or GGUF")
    add("--include", action="append", default=[], metavar="GLOB", help="of the files in folders")
    add("--exclude", action="append", default=[], metavar="GLOB", help="of the files in folders")
    add(
        "--where",
        action="append",
        default=[],
        type=_condition,
        metavar="FIELD=GLOB,...",
        help="records in which a field matches, for example license=mit,apache-2.0",
    )
    add("--whole", action="store_true", help="prompts too, not the responses only")
    add("--turns", choices=("last", "all"), default="last", help="answers of a chat (last)")
    add("--min-tokens", type=int, default=2, metavar="N", help="leave shorter documents out (2)")
    add("--strict", action="store_true", help="stop at what cannot be read instead of counting it")
    _add_how(build)
    build.set_defaults(action_run=_build)


def _add_how(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--keep-duplicates", action="store_true", help="documents that are equal to earlier ones")
    add("--memory-mb", type=int, default=512, metavar="MB", help="for sorting and duplicates (512)")
    add("--restart", action="store_true", help="do not go on with an interrupted build")
    add("--no-sync", action="store_true", help="do not wait until a power failure would do no harm")
    add("--quiet", action="store_true", help="no progress bar")


def run(chosen: argparse.Namespace) -> int:
    """Run one subcommand; returns the exit code."""
    from specplug.errors import SpecplugError

    try:
        action: Callable[[argparse.Namespace], int] = chosen.action_run
        return action(chosen)
    except SpecplugError as error:
        print(f"specplug datastore {chosen.action}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "interrupted; the same command goes on from its last checkpoint, which it takes every few million tokens",
            file=sys.stderr,
        )
        return 1


def _build(chosen: argparse.Namespace) -> int:
    from specplug.datastore.build import Options
    from specplug.datastore.inputs import Filters
    from specplug.replay.traces import Choice

    filters = Filters(
        include=tuple(chosen.include),
        exclude=tuple(chosen.exclude),
        choice=Choice(turns=chosen.turns, where=tuple(chosen.where)),
        whole=chosen.whole,
        strict=chosen.strict,
    )
    options = Options(
        filters=filters,
        min_tokens=chosen.min_tokens,
        duplicates=chosen.keep_duplicates,
        memory=max(1, chosen.memory_mb) << 20,
        restart=chosen.restart,
        durable=not chosen.no_sync,
    )
    return _make(chosen, options, _tokenizer(chosen.tokenizer))


def _merge(chosen: argparse.Namespace) -> int:
    from specplug.datastore.build import Options
    from specplug.index.datastore import Datastore

    for path in chosen.inputs:
        Datastore(path)  # refused before anything is written
    options = Options(
        duplicates=chosen.keep_duplicates,
        memory=max(1, chosen.memory_mb) << 20,
        restart=chosen.restart,
        durable=not chosen.no_sync,
    )
    return _make(chosen, options, None)


def _make(chosen: argparse.Namespace, options: Any, tokenizer: TextTokenizer | None) -> int:
    from specplug.datastore.build import build

    begin = time.perf_counter()
    with _Bar(chosen.quiet) as bar:
        header, counts = build(chosen.folder, chosen.inputs, tokenizer, options, bar)
    seconds = time.perf_counter() - begin
    print("\n".join(_summary(chosen.folder, header, counts, seconds)))
    for problem in counts.problems:
        print(f"  {problem}", file=sys.stderr)
    return 0


def _summary(folder: Path, header: Header, counts: Counts, seconds: float) -> list[str]:
    per_token = header.file_size / header.tokens
    return [
        f"{folder}: {header.documents} documents, {header.tokens} tokens, "
        f"{header.file_size / 1e6:.1f} MB ({per_token:.2f} bytes per token), {seconds:.1f} s",
        f"left out: {counts.duplicate} duplicates, {counts.short} too short, {counts.filtered} files by filters, "
        f"{counts.unreadable} unreadable",
    ]


def _info(chosen: argparse.Namespace) -> int:
    from specplug.index.datastore import Datastore

    facts = describe(Datastore(chosen.folder))
    if chosen.json:
        print(json.dumps(facts, indent=2))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    return 0


def describe(store: Datastore) -> dict[str, Any]:
    """What the header says, for people and for JSON."""
    header = store.header
    return {
        "path": str(store.path),
        "format_version": header.version,
        "documents": header.documents,
        "tokens": header.tokens,
        "entries": header.entries,
        "vocab_size": header.vocab_size,
        "vocabulary": header.vocabulary or None,
        "bytes": header.file_size,
        "bytes_per_token": round(header.file_size / header.tokens, 3),
        **{f"bits_per_{_ONE[name]}": s.bits for name, s in header.sections.items()},
        **header.metadata,
    }


#: What the numbers of a section are, one of them.
_ONE = {"tokens": "token", "entries": "entry", "buckets": "bucket"}


def _verify(chosen: argparse.Namespace) -> int:
    from specplug.index.datastore import Datastore
    from specplug.index.volume import check_fit

    store = Datastore(chosen.folder)
    tokenizer = _tokenizer(chosen.tokenizer)
    if tokenizer is not None:
        check_fit(store, tokenizer.vocab_size, tokenizer.vocabulary_digest)
    done = 0
    with _Bar(chosen.quiet) as bar:

        def count(size: int) -> None:
            nonlocal done
            done += size
            bar("checksums", done, store.header.file_size)

        store.verify(count)
    print(f"{store.path}: intact")
    return 0


def _search(chosen: argparse.Namespace) -> int:
    import numpy as np

    from specplug.datastore.preview import draft_after
    from specplug.errors import DatastoreError
    from specplug.index.datastore import Datastore
    from specplug.types import TOKEN_DTYPE

    store = Datastore(chosen.folder)
    tokenizer = _tokenizer(chosen.tokenizer)
    if chosen.ids is not None:
        context = np.array(chosen.ids, TOKEN_DTYPE)
    elif chosen.text is not None and tokenizer is not None:
        [context] = tokenizer.encode([chosen.text])
    else:
        raise DatastoreError("what to look for? give --text and --tokenizer, or --ids")

    def shown(tokens: Any) -> str:
        tokens = np.array([t for t in tokens.tolist() if t >= 0], TOKEN_DTYPE)
        return repr(tokenizer.decode(tokens)) if tokenizer is not None else str(tokens.tolist())

    found = store.search(context)
    print(
        f"{len(found.positions)} occurrences looked at, the longest match has "
        f"{max(found.lengths.tolist(), default=0)} of {len(context)} tokens"
    )
    for position, length in list(
        zip(found.positions.tolist(), found.lengths.tolist(), strict=True)
    )[: chosen.most]:
        text = store.tokens(position, position + chosen.width)
        ends = np.flatnonzero(text < 0)
        text = text[: ends[0]] if len(ends) else text
        print(f"  {length:3d} tokens at {position}: {shown(text)}")
    tokens, survival = draft_after(store.path, store.header.vocab_size, context, chosen.width)
    chances = " ".join(f"{value:.2f}" for value in survival)
    print(f"draft: {shown(tokens)}\nchance that each and all before it are accepted: {chances}")
    return 0


def _export(chosen: argparse.Namespace) -> int:
    from specplug.datastore.inputs import documents_of
    from specplug.index.datastore import Datastore
    from specplug.index.volume import check_fit

    store = Datastore(chosen.folder)
    tokenizer = _tokenizer(chosen.tokenizer)
    if tokenizer is not None:
        check_fit(store, tokenizer.vocab_size, tokenizer.vocabulary_digest)
    for tokens in documents_of(store):
        if tokenizer is None:
            print(json.dumps({"prompt_token_ids": [], "token_ids": tokens.tolist()}))
        else:
            print(json.dumps({"text": tokenizer.decode(tokens)}, ensure_ascii=False))
    return 0


def _tokenizer(path: str | None) -> TextTokenizer | None:
    if path is None:
        return None
    from specplug.replay.tokenizers import load_tokenizer

    return load_tokenizer(path)


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers with commas between, got {text!r}") from None


def _condition(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, globs = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"FIELD=GLOB,... is expected, got {text!r}")
    return name, tuple(globs.split(","))


class _Bar:
    """One progress bar after the other, for the stages of a build."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._stage, self._done = "", 0

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)

    def __call__(self, what: str, done: int, total: int) -> None:
        """See :data:`specplug.datastore.writer.Progress`."""
        from specplug.replay.progress import Progress

        if what != self._stage:
            self.__exit__()
            self._bar = Progress(total, self._quiet)
            self._bar.at(what)
            self._stage, self._done = what, 0
        self._bar.done(done - self._done)
        self._done = done
