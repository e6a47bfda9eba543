"""``draftretriever`` 0.1.1 in a process of its own: a query of one token ends the process.

The package of that name on PyPI is not the suffix array of REST (He et al. 2023) but what ADED made of it: a table of
which token followed how often after each two (tri-grams), and a tree search over it that draws at random. So it
builds from counts, its file holds no text, and only the last two tokens of a query matter.

Reads one pickle (path of the index, vocabulary size, documents, queries) from standard input, writes one to standard
output.
"""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: As REST calls it: trees of at most 64 nodes, 10 deep.
CHOICES, LONG = 64, 10
REPEATS = 3


def build(path: str, vocab_size: int, documents: list[list[int]]) -> float:
    """Seconds to build an index; documents are lists already."""
    import draftretriever

    begin = time.perf_counter()
    writer = draftretriever.Writer(file_path=path, vocab_size=vocab_size)
    for document in documents:
        writer.add_entry(document)
    writer.finalize()
    return time.perf_counter() - begin


def search(path: str, queries: list[list[int]]) -> dict[str, Any]:
    """Times, and the paths of the tree per query, the best first."""
    import draftretriever

    reader = draftretriever.Reader(index_file_path=path)
    times, paths = [], []
    for query in queries:
        begin = time.perf_counter_ns()
        found = reader.search(query, choices=CHOICES, long=LONG)[0]
        times.append(time.perf_counter_ns() - begin)
        paths.append([[token for token in path if token >= 0] for path in found])
    return {"ns": times, "paths": paths}


def ask_peer(
    path: str, vocab: int, documents: list[Any], queries: list[list[int]]
) -> dict[str, Any] | None:
    """What it does; None if its process ended without an answer."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=pickle.dumps((path, vocab, [d.tolist() for d in documents], queries)),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        print(f"  draftretriever ended with {done.returncode}: {done.stderr.decode()[-200:]!r}")
        return None
    answer: dict[str, Any] = pickle.loads(done.stdout)
    return answer


def main() -> None:
    """Answer one request."""
    path, vocab_size, documents, queries = pickle.load(sys.stdin.buffer)
    seconds = [build(path, vocab_size, documents) for _ in range(REPEATS)]
    answer: dict[str, Any] = {"build_s": statistics.median(seconds)}
    answer["bytes"] = os.path.getsize(path)
    answer.update(search(path, queries))
    pickle.dump(answer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
