"""How fast a replay is, beside the simulator that ``arctic-inference`` comes with: response tokens per minute and core.

Both replay the same token ids in turns of some requests, on one thread, so that whatever else the machine does hits
both alike; what is compared is CPU time. Ours counts everything that ``specplug replay`` does with a record: drafting,
judging, oracle, all figures. Theirs is ``suffix_decode`` of their simulator, at the settings of vLLM's method
``suffix``, on one tree cache. Tokenising, which both need, is reported by itself.

    python tools/environments.py run bench benchmarks/replay_speed.py TOKENIZER LOG ... [--limit N] [--width 16]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specplug.replay.drivers import ProposerDriver
from specplug.replay.metrics import Tally
from specplug.replay.oracle import Memory, Oracle
from specplug.replay.provenance import provenance
from specplug.replay.reading import Reader, Tokenised, one_after_the_other
from specplug.replay.runs import variants
from specplug.replay.simulator import replay_record
from specplug.replay.tokenizers import load_tokenizer
from specplug.replay.traces import Choice, LogFile
from specplug.types import Context

#: Requests that one of the two replays before the other has its turn.
TURN = 5
DEPTH, FACTOR, MIN_PROB, CACHED = 24, 1.0, 0.1, 10_000
PACKAGES = ("specplug", "arctic-inference", "numpy", "numba", "tokenizers")


def their_simulator() -> Any:
    """Their module. It reads data with pandas and transformers, of which nothing is used here."""
    for name, attribute in (("pandas", "DataFrame"), ("transformers", "AutoTokenizer")):
        if name not in sys.modules:
            module = types.ModuleType(name)
            setattr(module, attribute, object)
            sys.modules[name] = module
    from arctic_inference.suffix_decoding import simulator

    return simulator


def ours(vocab_size: int, longest: int, width: int) -> tuple[Callable[[Tokenised], None], Tally]:
    """Replay of one record, and where it counts."""
    context = Context(vocab_size, longest, width, max_requests=1)
    driver = ProposerDriver(variants("suffix", {}, [0.03])[0].build(context), context)
    memory, oracle = Memory(width + 1), Oracle(width)
    tally, marks = Tally(), Tally()

    def play(record: Tokenised) -> None:
        seen = memory.look(record.prompt, record.response)
        oracle.replay(record.prompt, record.response, seen, marks)
        matches = seen.behind.tolist()
        replay_record(driver, record.prompt, record.response, tally, None, matches)

    return play, tally


def theirs(width: int) -> tuple[Callable[[Tokenised], None], list[int]]:
    """The same by Arctic, and its steps and tokens."""
    simulator = their_simulator()
    cache = simulator.SuffixDecodingCache(DEPTH, CACHED)
    counted = [0, 0]

    def play(record: Tokenised) -> None:
        number = play.number = getattr(play, "number", 0) + 1  # type: ignore[attr-defined]
        rows = simulator.suffix_decode(
            cache, number, record.prompt, record.response, width, FACTOR, MIN_PROB, False, True
        )
        counted[0] += len(rows)
        counted[1] += len(record.response)

    return play, counted


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tokenizer")
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, help="records of each log")
    parser.add_argument("--width", type=int, default=16)
    chosen = parser.parse_args()
    tokenizer = load_tokenizer(chosen.tokenizer)
    logs = [LogFile(path, choice=Choice(limit=chosen.limit)) for path in chosen.logs]
    begin = time.process_time()
    records = list(Reader(tokenizer, 1 << 18).tokenised(one_after_the_other(logs)))
    reading = time.process_time() - begin
    longest = max(len(r.prompt) + len(r.response) for r in records)
    play_ours, tally = ours(tokenizer.vocab_size, longest, chosen.width)
    play_theirs, counted = theirs(chosen.width)
    play_ours(records[0])  # compiles, or loads what was compiled
    spent = {"ours": 0.0, "theirs": 0.0}
    for start in range(0, len(records), TURN):
        for name, play in (("ours", play_ours), ("theirs", play_theirs)):
            begin = time.process_time()
            for record in records[start : start + TURN]:
                play(record)
            spent[name] += time.process_time() - begin
    tokens = sum(len(r.response) for r in records)
    print(
        f"{len(records)} requests, {sum(len(r.prompt) for r in records)} prompt tokens, {tokens} response tokens"
    )
    print(f"reading and tokenising, all threads: {reading:.2f} s of CPU")
    for name, seconds in spent.items():
        rate = tokens / seconds * 60
        print(
            f"{name:<7} {seconds:8.2f} s of CPU, {rate:12,.0f} response tokens per minute and core"
        )
    print(
        f"ratio {spent['theirs'] / spent['ours']:.2f}; tokens per step: ours {tally.mean_acceptance_length:.3f}, "
        f"theirs {counted[1] / counted[0]:.3f}"
    )
    print(json.dumps(provenance(PACKAGES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
