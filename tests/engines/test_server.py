"""The engine's OpenAI server with speculation, in its default form: several processes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specplug.testing.engine_protocol import Batch, Driver

from .conftest import METHOD
from .engines import Engine, flags, need
from .logs import our_faults
from .prompts import RECORDS, VARIED, chat
from .server import Server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
GREEDY = {"temperature": 0, "max_tokens": 48}
NAMES = ["repeat-story", "code-repeat", "json-records", "repeat-numbers", "prose"]


@pytest.fixture(scope="module")
def server(
    engine: Engine, model: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that speculates, float32."""
    log: Path = tmp_path_factory.mktemp("server") / "server.log"
    running = Server(model, log, *flags(engine.methods[METHOD]), engine=engine)
    try:
        running.wait()
        yield running
    finally:
        running.process.end()


@pytest.fixture(scope="module")
def expected(plain: Driver) -> Batch:
    """What plain decoding says to the prompts."""
    return plain.generate([VARIED[name] for name in NAMES], GREEDY)


def texts(expected: Batch) -> list[str]:
    return [result.only.text for result in expected.results]


def joined(events: Iterator[dict[str, Any]]) -> tuple[str, int]:
    """The whole text of a stream and the number of pieces it came in."""
    pieces = [event["choices"][0]["text"] for event in events if event["choices"]]
    return "".join(pieces), len([p for p in pieces if p])


def test_completions(engine: Engine, server: Server, expected: Batch) -> None:
    before = server.counter(engine.counters["accepted"])
    for name, want in zip(NAMES, texts(expected), strict=True):
        answer = server.post(COMPLETIONS, prompt=VARIED[name], **GREEDY)
        assert answer["choices"][0]["text"] == want
        assert answer["usage"]["completion_tokens"] > 0
    assert server.counter(engine.counters["accepted"]) - before > 20


def test_streaming(server: Server, expected: Batch) -> None:
    for name, want in zip(NAMES[:3], texts(expected)[:3], strict=True):
        text, pieces = joined(server.stream(COMPLETIONS, prompt=VARIED[name], **GREEDY))
        assert text == want
        # Several tokens per step arrive in one piece, but not all in one.
        assert 1 < pieces < GREEDY["max_tokens"]


def test_streams_side_by_side(server: Server, expected: Batch) -> None:
    found: dict[int, str] = {}

    def follow(i: int) -> None:
        name = NAMES[i % len(NAMES)]
        found[i] = joined(server.stream(COMPLETIONS, prompt=VARIED[name], **GREEDY))[0]

    threads = [threading.Thread(target=follow, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert found == {i: texts(expected)[i % len(NAMES)] for i in range(10)}


def test_chat(server: Server, plain: Driver) -> None:
    messages = VARIED["chat-copy"]
    want = plain.generate([messages], GREEDY).results[0].only
    answer = server.post(CHAT, messages=messages, **GREEDY)
    assert answer["choices"][0]["message"]["content"] == want.text
    assert answer["choices"][0]["finish_reason"] == want.finish_reason


def test_several_choices(engine: Engine, server: Server, expected: Batch) -> None:
    need(engine, "top_k")
    params = {"temperature": 1.0, "top_k": 1, "n": 3, "max_tokens": 48}
    answer = server.post(COMPLETIONS, prompt=VARIED[NAMES[0]], **params)
    assert [c["text"] for c in answer["choices"]] == [texts(expected)[0]] * 3


def test_structured_output(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "id": {"type": "integer"}},
        "required": ["city", "id"],
        "additionalProperties": False,
    }
    answer = server.post(
        CHAT,
        messages=chat("Give one record as JSON with city and id:\n" + RECORDS),
        temperature=0,
        max_tokens=80,
        response_format={"type": "json_schema", "json_schema": {"name": "r", "schema": schema}},
    )
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"city", "id"}


def test_request_options_over_http(engine: Engine, server: Server) -> None:
    """``vllm_xargs`` or ``custom_params`` carries ours: this request opts out of drafts."""
    if METHOD == "ngram":
        pytest.skip("an option of specplug")
    name = engine.counters["drafted"]
    before = server.counter(name)
    body: dict[str, Any] = {"prompt": VARIED[NAMES[0]], **GREEDY}
    server.post(COMPLETIONS, **body, **{engine.per_request: {"specplug_draft_limit": 0}})
    assert server.counter(name) == before
    server.post(COMPLETIONS, **body)
    assert server.counter(name) > before


@pytest.mark.parametrize("field", [{"min_p": 0.1}, {"logit_bias": {"5": 2.0}}], ids=str)
def test_what_an_engine_lacks_is_refused_and_what_it_has_is_served(
    engine: Engine, server: Server, field: dict[str, Any]
) -> None:
    body = {"model": "test", "prompt": "a", "max_tokens": 2, **field}
    status, text = server.request("POST", COMPLETIONS, body)
    if set(field) & set(engine.lacks):
        assert status == 400
        assert "min_p and logit_bias" in text
    else:
        assert status == 200, text


def test_hanging_up(engine: Engine, server: Server, expected: Batch) -> None:
    """A client that goes away in mid-stream frees its request; the next one is served as ever."""
    stream = server.stream(
        COMPLETIONS, prompt=VARIED["prose"], temperature=0, max_tokens=1500, ignore_eos=True
    )
    for _ in range(3):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 30
    while server.counter(engine.counters["running"]) > 0:
        assert time.monotonic() < end, "the request is still running"
        time.sleep(0.2)
    answer = server.post(COMPLETIONS, prompt=VARIED[NAMES[1]], **GREEDY)
    assert answer["choices"][0]["text"] == texts(expected)[1]


def test_no_faults_in_the_log(engine: Engine, server: Server) -> None:
    """Last: nothing went wrong in the worker's process while all this was served."""
    assert not our_faults(server.process.log_text)
    if METHOD != "ngram":
        assert f"{METHOD} ready in" in server.process.log_text
    repaired = engine.name == "vllm" and "host_sampling_fault" not in engine.lacks
    if repaired and METHOD != "ngram":
        # Said once, by the one process that samples.
        assert server.process.log_text.count("expand_batch_to_tokens of this vLLM") == 1
