"""The command ``specplug warm``: a store file from what a server has answered before."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specplug.index.store_file import Outputs
    from specplug.types import TokenArray

DESCRIPTION = """\
Makes a store file for `specplug.suffix` (option store_path) from a log of past responses, so that the first requests
after a start already find what was said before. Reads what `specplug replay` reads. Only the newest text that a store
of --store-mb can hold is kept. Reading text needs `pip install 'specplug[replay]'`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from specplug.replay.command import add_log_arguments, positive

    add_log_arguments(parser)
    add = parser.add_argument
    add("--out", required=True, type=Path, metavar="FILE", help="the store file to write")
    add("--store-mb", type=float, default=64.0, metavar="MB", help="as the proposer's option (64)")
    add("--prompts", action="store_true", help="keep prompts too, as the option share_prompts does")
    add(
        "--namespace",
        default="",
        metavar="NAME",
        help="of requests that will find the text (default: those without a namespace)",
    )
    add(
        "--vocab-size",
        type=positive,
        metavar="N",
        help="of the model, where the engine cannot tell its tokenizer (default: the tokenizer's)",
    )
    add("--append", action="store_true", help="add to FILE instead of refusing to replace it")


def run(chosen: argparse.Namespace) -> int:
    """Read the logs and write the file; returns the exit code."""
    from specplug.errors import SpecplugError

    try:
        return _run(chosen)
    except SpecplugError as error:
        print(f"specplug warm: {error}", file=sys.stderr)
    except OSError as error:
        print(f"specplug warm: {chosen.out} cannot be written: {error}", file=sys.stderr)
    return 1


def _run(chosen: argparse.Namespace) -> int:
    from specplug.errors import SettingsError
    from specplug.index import arrays, store_file
    from specplug.replay import command, reading
    from specplug.replay.progress import Progress

    logs, tokenizer = command.open_logs(chosen)
    command.check_folder(chosen.out)
    capacity, _ = arrays.store_layout(int(chosen.store_mb * 2**20))
    if capacity == 0:
        raise SettingsError(f"--store-mb must be at least 0.002, got {chosen.store_mb}")
    size = tokenizer.vocab_size if chosen.vocab_size is None else chosen.vocab_size
    vocabulary = store_file.Vocabulary(size, tokenizer.vocabulary_digest)
    if chosen.vocab_size is not None and chosen.vocab_size < tokenizer.vocab_size:
        raise SettingsError(
            f"--vocab-size {chosen.vocab_size} is less than the {tokenizer.vocab_size} ids of the tokenizer"
        )
    there = store_file.no_outputs()
    if chosen.out.exists():
        if not chosen.append:
            raise SettingsError(f"{chosen.out} exists; --append adds to it, or choose another file")
        there = store_file.read_store(chosen.out, vocabulary)
    reader = reading.Reader(tokenizer, chosen.max_length)
    kept, total = Newest(capacity), 0
    with Progress(sum(log.size for log in logs), chosen.quiet) as progress:
        for record in reader.tokenised(reading.one_after_the_other(logs)):
            progress.at(record.workload)
            total += kept.add(record.prompt if chosen.prompts else None, record.response)
            progress.done(record.size)
    limit = max(capacity, len(there.tokens))
    outputs = store_file.joined(there, kept.outputs(chosen.namespace), limit)
    store_file.write_store(chosen.out, outputs, vocabulary)
    for log in logs:
        print(f"{log.path}: {log.records} requests read, {log.malformed} malformed lines")
        for problem in log.problems:
            print(f"  {problem}")
    for name, count in reader.too_long.items():
        print(f"{name}: {count} requests of more than {chosen.max_length} tokens left out")
    print(
        f"{chosen.out}: {len(outputs)} outputs, {len(outputs.tokens)} tokens ({total} read, {len(there.tokens)} were "
        f"there); a store of {chosen.store_mb:g} MB holds {capacity}"
    )
    return 0


class Newest:
    """Collects texts and forgets the oldest beyond ``capacity`` tokens, so that a log may be larger than memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._texts: deque[TokenArray] = deque()
        self._held = 0

    def add(self, prompt: TokenArray | None, response: TokenArray) -> int:
        """Add one text; returns its length, 0 for one that is empty."""
        import numpy as np

        text = response if prompt is None else np.concatenate([prompt, response])
        if not len(response):
            return 0
        self._texts.append(text[-self._capacity :])
        self._held += len(self._texts[-1])
        while self._held > self._capacity:
            self._held -= len(self._texts.popleft())
        return len(text)

    def outputs(self, namespace: str) -> Outputs:
        """All that is left, as one namespace."""
        import numpy as np

        from specplug.index.store_file import Outputs

        lengths = np.array([len(text) for text in self._texts], np.int64)
        tokens = np.concatenate([np.zeros(0, np.int32), *self._texts])
        return Outputs(tokens, lengths, np.zeros(len(lengths), np.int32), (namespace,))
