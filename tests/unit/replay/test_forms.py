"""The forms of an entry: OpenAI's chats, completions and responses, streams, token ids, times."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from specplug.errors import LogError
from specplug.replay.forms import arrival_of, at, exchanges, model_of, seconds_of

USER = {"role": "user", "content": "the weather in Bonn?"}
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"city": "Bonn"}'},
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"city": "string"}}}
CALLED = '<tool_call>\n{"name": "look", "arguments": {"city": "Bonn"}}\n</tool_call>'


def one(entry: dict[str, Any]) -> tuple[Any, Any]:
    [found] = exchanges(entry)
    return found.prompt, found.response


def answer(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": i, "message": m} for i, m in enumerate(messages)]}


def test_a_chat_and_the_body_of_its_answer() -> None:
    prompt, response = one(
        {"messages": [USER], "tools": [TOOL], "response": answer({"content": "rain"})}
    )
    assert response == "rain"
    assert prompt.startswith("<|im_start|>system\n# Tools\n" + json.dumps(TOOL))
    assert prompt.endswith(
        "<|im_start|>user\nthe weather in Bonn?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tool_calls_are_written_as_the_model_wrote_them() -> None:
    """In the log the arguments are a string in a string; the model wrote an object."""
    _, response = one(
        {"messages": [USER], "choices": [{"message": {"content": None, "tool_calls": [CALL]}}]}
    )
    assert response == CALLED
    again, _ = one(
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "1", "content": "rain"},
                {"role": "assistant", "content": "It rains."},
            ]
        }
    )
    assert f"<|im_start|>assistant\n{CALLED}<|im_end|>" in again
    assert "<|im_start|>tool\nrain<|im_end|>" in again


def test_an_old_function_call_and_arguments_that_are_no_json() -> None:
    message = {"role": "assistant", "function_call": {"name": "f", "arguments": "{cut"}}
    assert '"arguments": "{cut"' in one({"messages": [USER, message]})[1]


def test_every_turn_of_a_chat_can_be_a_request() -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        USER,
        {"role": "assistant", "content": "b"},
    ]
    assert [e.response for e in exchanges({"messages": messages})] == ["b"]
    both = exchanges({"messages": messages}, "all")
    assert [e.response for e in both] == ["<think>\nhm\n</think>\n\na", "b"]
    assert "hm" not in both[1].prompt, "servers leave out earlier thoughts"


def test_several_choices_are_several_requests() -> None:
    found = exchanges({"messages": [USER], "response": answer({"content": "a"}, {"content": "b"})})
    assert [e.response for e in found] == ["a", "b"]


def test_completions() -> None:
    body = {"prompt": ["once"], "response": {"choices": [{"text": " upon"}]}}
    assert one(body) == ("once", " upon")
    assert one({"prompt": [1, 2], "response": {"choices": [{"text": "x"}]}})[0] == [1, 2]


def test_ids_that_the_server_returned_are_taken() -> None:
    body = {"prompt_token_ids": [1, 2], "choices": [{"token_ids": [3], "message": {}}]}
    assert one({"messages": [USER], "response": body}) == ([1, 2], [3])
    assert one({"prompt_token_ids": [1], "output_token_ids": [2, 3]}) == ([1], [2, 3])


@pytest.mark.parametrize("encode", [lambda body: body, json.dumps])
def test_what_a_proxy_records(encode: Any) -> None:
    entry = {
        "request": encode({"messages": [USER]}),
        "response": encode(answer({"content": "rain"})),
    }
    assert one(entry)[1] == "rain"
    batch = {"request": {"body": {"messages": [USER]}}, "response": {"body": answer(USER)}}
    assert one(batch)[1] == USER["content"]


def test_the_responses_api() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Bonn?"}]},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"city": "Bonn"}'},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
    ]
    said = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "web_search_call", "id": "x"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "It rains."}],
        },
    ]
    prompt, response = one(
        {"input": items, "instructions": "be brief", "tools": [TOOL], "output": said}
    )
    for part in ("be brief", "# Tools", "Bonn?", CALLED, "<|im_start|>tool\nrain"):
        assert part in prompt
    assert response == "<think>\nhm\n</think>\nIt rains."
    paired = {"request": {"input": "hi", "model": "m"}, "response": {"output": said}}
    assert one(paired)[1] == response
    assert one({"input": "hi", "output": "ho"})[1] == "ho"


def test_a_stream_is_the_list_of_its_chunks() -> None:
    def chunk(index: int, **delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": delta}]}

    chunks = [
        chunk(0, role="assistant"),
        chunk(0, content="It "),
        chunk(1, content="Sun"),
        chunk(0, content="rains"),
        {"choices": []},
        chunk(0, tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]),
    ]
    found = exchanges({"messages": [USER], "response": chunks})
    assert [e.response for e in found] == ["It rainsf{}", "Sun"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"request": {"messages": [USER]}}, "no 'response'"),
        ({"messages": [USER], "response": {"choices": []}}, "must be a list with an entry, got []"),
        ({"messages": [USER], "choices": ["x"]}, "a choice must be an object, got 'x'"),
        ({"messages": [USER], "choices": [{}]}, "field 'text' must be a string, got no such field"),
        ({"messages": [USER], "tools": "x", "response": "y"}, "each entry a tool; got 'x'"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": 3}]}]},
            "must be an object, got 3",
        ),
        ({"input": 3, "output": "x"}, "each entry an item; got 3"),
        ({"input": "x", "output": 3}, "must be a list of items or text, got 3"),
        ({"prompt_token_ids": ["x"], "token_ids": []}, "a list of token ids, got ['x']"),
        ({"prompt": "x", "response": [{"choices": []}]}, "without any choice"),
    ],
)
def test_a_malformed_entry_says_what_is_wrong(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(LogError) as caught:
        exchanges(entry)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1.8e9, 1.8e9),
        (1.8e12, 1.8e9),
        (1.8e18, 1.8e9),
        ("2027-01-15T08:00:00Z", 1.8e9),
        (datetime(2027, 1, 15, 8, tzinfo=timezone.utc), 1.8e9),
        ("yesterday", None),
        (True, None),
        (-1, None),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
    ],
)
def test_times(value: object, seconds: float | None) -> None:
    got = seconds_of(value)
    assert got == (None if seconds is None else pytest.approx(seconds))


def test_where_an_entry_says_when_and_who() -> None:
    entry = {"request": {"model": "a"}, "response": {"created": 5, "model": "b"}, "x": {"y": "z"}}
    assert (arrival_of(entry), model_of(entry), at(entry, "x.y")) == (5.0, "b", "z")
    assert arrival_of({"prompt": "x"}) is None
    with pytest.raises(LogError, match=r"field 'x.y' \(the time\) must be a time, got 'z'"):
        arrival_of(entry, "x.y")
