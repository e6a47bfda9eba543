"""``draftretriever`` 0.1.1 in a process of its own: a query of one token ends the process.

The package of that name on PyPI is not the suffix array of REST (He et al. 2023) but what ADED made of it: a table of
which token followed how often after each two (tri-grams), and a tree search over it that draws at random. So it
builds from counts, its file holds no text, and only the last two tokens of a query matter.

Reads pickles from standard input (path of the index, vocabulary size, documents; then lists of queries, or the path of
a file to build once more) and answers each with one on standard output.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: As REST calls it: trees of at most 64 nodes, 10 deep.
CHOICES, LONG = 64, 10


def build(path: str, vocab_size: int, documents: list[list[int]]) -> float:
    """Seconds to build an index; documents are lists already."""
    import draftretriever

    begin = time.perf_counter()
    writer = draftretriever.Writer(file_path=path, vocab_size=vocab_size)
    for document in documents:
        writer.add_entry(document)
    writer.finalize()
    return time.perf_counter() - begin


def search(reader: Any, queries: list[list[int]]) -> dict[str, Any]:
    """Times, and the paths of the tree per query, the best first."""
    times, paths = [], []
    for query in queries:
        begin = time.perf_counter_ns()
        found = reader.search(query, choices=CHOICES, long=LONG)[0]
        times.append(time.perf_counter_ns() - begin)
        paths.append([[token for token in path if token >= 0] for path in found])
    return {"ns": times, "paths": paths}


class Peer:
    """One index, in a process that can be asked again and again. Use as a context manager."""

    def __init__(self, path: str, vocab: int, documents: list[Any]) -> None:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        #: Seconds of the first build and bytes on disk; None if the process ended.
        self.built = self._ask((path, vocab, [d.tolist() for d in documents]))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *failure: object) -> None:
        with contextlib.suppress(OSError):
            self._process.communicate()

    def search(self, queries: list[list[int]]) -> dict[str, Any] | None:
        """What it finds and how long it takes; None if its process ended without an answer."""
        return None if self.built is None else self._ask(queries)

    def build_again(self, path: str) -> float:
        """Seconds to build the same documents into another file; not a number if its process ended.

        A file that is there already is written over and not made shorter, which costs less than a new one.
        """
        answer = None if self.built is None else self._ask(path)
        return float("nan") if answer is None else float(answer["build_s"])

    def _ask(self, question: Any) -> dict[str, Any] | None:
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        try:
            pickle.dump(question, to)
            to.flush()
            answer: dict[str, Any] = pickle.load(back)
        except (OSError, EOFError, pickle.UnpicklingError):
            print(f"  draftretriever ended with {self._process.wait()}")
            return None
        return answer


def ask_peer(
    path: str, vocab: int, documents: list[Any], queries: list[list[int]]
) -> dict[str, Any] | None:
    """What it does; None if its process ended without an answer."""
    with Peer(path, vocab, documents) as peer:
        found = peer.search(queries)
        return None if peer.built is None or found is None else {**peer.built, **found}


def main() -> None:
    """Answer until nobody asks."""
    import draftretriever

    path, vocab_size, documents = pickle.load(sys.stdin.buffer)
    seconds = build(path, vocab_size, documents)
    answer: dict[str, Any] = {"build_s": seconds, "bytes": os.path.getsize(path)}
    reader = draftretriever.Reader(index_file_path=path)
    with contextlib.suppress(EOFError):
        while True:
            pickle.dump(answer, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            queries = pickle.load(sys.stdin.buffer)
            if isinstance(queries, str):
                answer = {"build_s": build(queries, vocab_size, documents)}
            else:
                answer = search(reader, queries)


if __name__ == "__main__":
    main()
