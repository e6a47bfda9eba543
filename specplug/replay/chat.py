"""Chats as text: what a model was given, and what it said itself.

A log does not say which template the server used. Every layout repeats roles and separators in much the same way, so
what can be drafted from the text hardly depends on it: ChatML stands for all, with tools and tool calls in the form
that most open models are trained on (``<tool_call>{"name": ..., "arguments": ...}</tool_call>``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from specplug.errors import LogError

#: Fields of an assistant message that hold what it thought before it answered, by server.
THOUGHTS = ("reasoning_content", "reasoning")


def render_chat(messages: Sequence[Mapping[str, Any]], tools: object = None) -> str:
    """Messages as one text, ending where the assistant begins. Thoughts of earlier turns are left out, as servers do.

    Raises:
        LogError: a message is malformed.
    """
    head = f"<|im_start|>system\n{tool_list(tools)}<|im_end|>\n" if tools else ""
    turns = [f"<|im_start|>{role_of(m)}\n{content_of(m)}<|im_end|>\n" for m in messages]
    return "".join([head, *turns, "<|im_start|>assistant\n"])


def spoken(message: Mapping[str, Any]) -> str:
    """Everything that the model generated for a message: thoughts, text, tool calls."""
    for name in THOUGHTS:
        if isinstance(message.get(name), str) and message[name]:
            return f"<think>\n{encodable(message[name])}\n</think>\n\n{content_of(message)}"
    return content_of(message)


def content_of(message: Mapping[str, Any]) -> str:
    """Text and tool calls of a message."""
    parts = [*_texts(message.get("content"))]
    calls = message.get("tool_calls") or []
    if message.get("function_call"):
        calls = [*calls, {"function": message["function_call"]}]
    parts += [tool_call(call.get("function", call)) for call in _mappings(calls, "a tool call")]
    return encodable("\n".join(parts))


def tool_call(function: object) -> str:
    """A call as the model writes it: its arguments are an object there, but a string in the log."""
    if not isinstance(function, Mapping):
        raise LogError(f"a tool call must be an object, got {short(function)}")
    arguments = function.get("arguments", function.get("input", {}))
    if isinstance(arguments, str):
        with contextlib.suppress(
            ValueError
        ):  # cut off, or free text of a custom tool: as it stands
            arguments = json.loads(arguments)
    body = {"name": function.get("name"), "arguments": arguments}
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def tool_list(tools: object) -> str:
    """The tools that the model may call, one a line."""
    lines = (json.dumps(tool, ensure_ascii=False) for tool in _mappings(tools, "a tool"))
    return encodable("\n".join(["# Tools", *lines]))


def role_of(message: object) -> str:
    """The role of a message."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise LogError(f"a message must be an object with a 'role', got {short(message)}")
    return str(message["role"])


def from_items(items: Iterable[object]) -> list[dict[str, Any]]:
    """Items of the Responses API as messages. Unknown kinds (searches, images) are left out."""
    found: list[dict[str, Any]] = []
    for item in _mappings(items, "an item"):
        kind = item.get("type", "message")
        if kind == "message" or "role" in item:
            found.append(dict(item))
        elif kind in ("function_call", "custom_tool_call"):
            found.append({"role": "assistant", "content": None, "tool_calls": [item]})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            text = output if isinstance(output, (str, list)) else json.dumps(output)
            found.append({"role": "tool", "content": text})
        elif kind == "reasoning":
            thought = "\n".join([*_texts(item.get("content")), *_texts(item.get("summary"))])
            found.append({"role": "assistant", "content": None, "reasoning": thought})
    return found


def said_items(items: Iterable[object]) -> str:
    """What the model generated for the output of the Responses API."""
    return "\n".join(filter(None, (spoken(m).strip("\n") for m in from_items(items))))


def encodable(text: str) -> str:
    """The text itself.

    Raises:
        LogError: it holds half of a surrogate pair, which JSON can spell, but which no tokenizer takes.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LogError(f"half of a surrogate pair at character {error.start}") from None
    return text


def short(value: object) -> str:
    """A value for a message."""
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _texts(content: object) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content] if content else []
    if isinstance(content, list):
        parts = (p for p in content if isinstance(p, Mapping))
        # Images and sound have no text; a refusal has one.
        texts = (p.get("text", p.get("refusal")) for p in parts)
        return [t for t in texts if isinstance(t, str)]
    raise LogError(f"the content of a message must be text, got {short(content)}")


def _mappings(values: object, what: str) -> Iterable[Mapping[str, Any]]:
    if not isinstance(values, Iterable) or isinstance(values, (str, Mapping)):
        raise LogError(f"a list is expected, each entry {what}; got {short(values)}")
    for value in values:
        if not isinstance(value, Mapping):
            raise LogError(f"{what} must be an object, got {short(value)}")
        yield value
