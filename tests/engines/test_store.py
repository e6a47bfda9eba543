"""The OpenAI server stopped and started again: with a store file it drafts from its earlier answers at once."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specplug.index.store_file import Vocabulary, read_store
from specplug.replay.tokenizers import load_tokenizer
from specplug.testing.engine_protocol import Driver

from .engines import Engine, flags, speculation
from .prompts import VARIED
from .server import Server

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}
NAMES = ["prose", "repeat-story"]


@contextmanager
def server(engine: Engine, model: str, log: Path, store: Path, **options: Any) -> Iterator[Server]:
    settings, env = speculation(
        engine, "specplug.suffix", store_path=str(store), store_mb=4, **options
    )
    running = Server(model, log, *flags(settings), engine=engine, env=env)
    try:
        running.wait()
        yield running
        # As an administrator stops it: the leader is told, and tells its workers.
        running.process.process.send_signal(signal.SIGTERM)
        running.process.process.wait(60)
    finally:
        running.process.end()


def ask(engine: Engine, running: Server, **ours: Any) -> tuple[list[str], int, int]:
    """The answers to the prompts, and how many draft tokens there were and were accepted."""
    names = [engine.counters["drafted"], engine.counters["accepted"]]
    before = [running.counter(name) for name in names]
    answers = [
        running.post("/v1/completions", prompt=VARIED[name], **GREEDY, **{engine.per_request: ours})
        for name in NAMES
    ]
    drafted, accepted = (
        int(running.counter(name) - was) for name, was in zip(names, before, strict=True)
    )
    return [answer["choices"][0]["text"] for answer in answers], drafted, accepted


def header_of(store: Path) -> dict[str, Any]:
    """The readable line of a store file; empty while there is none."""
    if not store.exists():
        return {}
    with open(store, "rb") as file:
        file.readline()
        header: dict[str, Any] = json.loads(file.readline())
        return header


@pytest.mark.timeout(600)
def test_a_restarted_server_drafts_from_its_earlier_answers(
    engine: Engine, model: str, plain: Driver, tmp_path: Path
) -> None:
    answers_of = plain.generate([VARIED[n] for n in NAMES], GREEDY).results
    expected = [r.only.text for r in answers_of]
    store = tmp_path / "store"
    # Engines kill their workers when they are stopped, so the text must have been saved in the quiet before.
    with server(engine, model, tmp_path / "first.log", store, store_save_seconds=86400) as first:
        answers, drafted, accepted = ask(engine, first)
        private, _, _ = ask(engine, first, specplug_share=0)
        assert answers == private == expected
        end = time.monotonic() + 30
        while header_of(store).get("outputs") != len(NAMES) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(3)
    header = header_of(store)
    assert header.get("outputs") == len(NAMES), "one output per shared request"
    # A store that `specplug warm` made must be taken for the engine's own.
    assert header["tokenizer"] == load_tokenizer(model).vocabulary_digest
    saved = read_store(store, Vocabulary(header["vocab_size"], header["tokenizer"]))
    with server(engine, model, tmp_path / "second.log", store) as second:
        again, drafted_again, accepted_again = ask(engine, second)
        assert again == expected
        others, _, accepted_others = ask(engine, second, specplug_namespace="tenant")
        assert others == expected
    total = len(saved.tokens)
    said = sum(len(r.only.token_ids) for r in answers_of)
    assert total == said, "what the last steps of the answers said is missing"
    print(
        f"\ndrafted and accepted of {total} tokens: {drafted}, {accepted} before the restart; ",
        end="",
    )
    print(
        f"{drafted_again}, {accepted_again} after it; {accepted_others} accepted for another tenant"
    )
    assert accepted_again > accepted + 20
    assert accepted_again >= 0.75 * total, "nearly all of it had been said before"
    assert accepted_others < accepted_again - 20, "another tenant found the text"
    text = (tmp_path / "second.log").read_text(errors="replace")
    assert f"{total} of {total} tokens of {len(NAMES)} earlier outputs loaded" in text
