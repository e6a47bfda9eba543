"""The forms that an entry of a log may have, each as prompts and responses.

========================================  ========================================================================
form                                      what it is
========================================  ========================================================================
``{"prompt", "response"}``                text; ``response`` may be the body of an OpenAI answer
``{"messages"}``                          a chat; the last message is the assistant's and is the response
``{"messages", "response" | "choices"}``  a chat and the answer to it: text, a message, or the body of an answer
``{"input", "output"}``                   the Responses API: text or items, with ``instructions`` and ``tools``
``{"request", "response"}``               what a proxy records: the two bodies, as objects or as JSON in a string
``{"prompt_token_ids", "token_ids"}``     ids, which are taken as they are (``output_token_ids`` is the same)
``{"text"}``                              no prompt, all of it is response
========================================  ========================================================================

A streamed answer may be the list of its chunks. An entry with several choices is several requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from specplug.errors import LogError
from specplug.replay.chat import (
    encodable,
    from_items,
    render_chat,
    role_of,
    said_items,
    short,
    spoken,
)

Text: TypeAlias = str | Sequence[int]
Turns = Literal["last", "all"]
Entry: TypeAlias = Mapping[str, Any]

#: Fields that say when a request arrived, the best first.
TIMES = (
    *("arrived", "arrival_time", "timestamp", "created", "created_at"),
    *("start_time", "startTime", "time", "ts"),
)
_OUTPUT_IDS = ("output_token_ids", "token_ids", "response_token_ids", "output_ids")


class Exchange(NamedTuple):
    """One request and its answer: text, or token ids where the log holds them."""

    prompt: Text
    response: Text


def exchanges(entry: Entry, turns: Turns = "last") -> list[Exchange]:
    """Read one entry of a log.

    Args:
        turns: of a chat whose answers stand in it: the last one only, or every one of the assistant's.

    Raises:
        LogError: a field is missing or has the wrong type.
    """
    if "request" in entry and isinstance(_decoded(entry["request"]), Mapping):
        entry = _paired(entry)
    if "prompt_token_ids" in entry and any(name in entry for name in _OUTPUT_IDS):
        name = next(name for name in _OUTPUT_IDS if name in entry)
        return [Exchange(_ids(entry, "prompt_token_ids"), _ids(entry, name))]
    if "messages" in entry:
        return _chat(entry, turns)
    if "input" in entry and ("output" in entry or "response" in entry):
        return _responses(entry)
    if "prompt" in entry or "response" in entry:
        return [Exchange(_prompt(entry), answer) for answer in _answers(entry)]
    if "text" in entry:
        return [Exchange("", _text(entry, "text"))]
    known = ", ".join(sorted(map(str, entry))) or "none"
    raise LogError(
        f"fields 'prompt' and 'response', or 'messages', or 'text' are expected; found: {known}"
    )


def at(entry: Entry, path: str) -> Any:
    """The value of a field, or of a field of a field (``metadata.team``); None where there is none."""
    if path in entry:
        return entry[path]
    value: Any = entry
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def model_of(entry: Entry) -> str | None:
    """Which model answered, if the entry says so."""
    for path in ("response.model", "model", "request.model", "response.body.model"):
        if isinstance(at(entry, path), str):
            return str(at(entry, path))
    return None


def arrival_of(entry: Entry, path: str | None = None) -> float | None:
    """When a request arrived, in seconds since 1970; None if the entry does not say.

    Raises:
        LogError: the field that was asked for is missing or is no time.
    """
    if path is not None:
        moment = seconds_of(at(entry, path))
        if moment is None:
            raise LogError(
                f"field {path!r} (the time) must be a time, got {short(at(entry, path))}"
            )
        return moment
    for part in (entry, entry.get("request"), entry.get("response")):
        if not isinstance(part, Mapping):
            continue
        for name in TIMES:
            moment = seconds_of(part.get(name))
            if moment is not None:
                return moment
    return None


def seconds_of(value: object) -> float | None:
    """A time (seconds, ms, us or ns since 1970, ISO 8601, or a datetime) in seconds; None if it is none."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        return None
    number = float(value)
    # Today is 1.8e9 s: whatever is a thousand times later is written in a finer unit.
    while number > 1e11 and number != float("inf"):
        number /= 1000
    return number if number < 1e11 else None


def _decoded(value: object) -> object:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _paired(entry: Entry) -> dict[str, Any]:
    """The bodies of a request and of its response as one entry."""
    request, response = _decoded(entry["request"]), _decoded(entry.get("response"))
    assert isinstance(request, Mapping)
    inner = _decoded(request.get("body"))
    body = dict(inner if isinstance(inner, Mapping) else request)
    if isinstance(response, Mapping) and "body" in response:
        response = _decoded(response["body"])
    if response is None:
        raise LogError("the entry has a 'request', but no 'response'")
    return {**body, "response": response}


def _chat(entry: Entry, turns: Turns) -> list[Exchange]:
    messages = entry["messages"]
    if not isinstance(messages, list) or not messages:
        raise LogError(f"field 'messages' must be a list of messages, got {short(messages)}")
    roles = [role_of(message) for message in messages]
    tools = entry.get("tools") or entry.get("functions")
    if "response" in entry or "choices" in entry:
        prompt = _given_prompt(entry.get("response")) or render_chat(messages, tools)
        return [Exchange(prompt, answer) for answer in _answers(entry)]
    if roles[-1] != "assistant":
        raise LogError(
            f"the last message must be the assistant's (or a field 'response' be there), "
            f"got role {roles[-1]!r}"
        )
    said = [i for i, role in enumerate(roles) if role == "assistant"]
    chosen = said if turns == "all" else said[-1:]
    return [Exchange(render_chat(messages[:i], tools), spoken(messages[i])) for i in chosen]


def _responses(entry: Entry) -> list[Exchange]:
    given, answer = entry["input"], entry.get("output", _decoded(entry.get("response")))
    if isinstance(answer, Mapping):
        answer = answer.get("output")
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else from_items(given)
    if isinstance(entry.get("instructions"), str):
        messages.insert(0, {"role": "system", "content": entry["instructions"]})
    prompt = render_chat(messages, entry.get("tools"))
    if isinstance(answer, str):
        return [Exchange(prompt, encodable(answer))]
    if not isinstance(answer, list):
        raise LogError(f"field 'output' must be a list of items or text, got {short(answer)}")
    return [Exchange(prompt, said_items(answer))]


def _prompt(entry: Entry) -> Text:
    given = _given_prompt(entry.get("response"))
    if given is not None:
        return given
    value = entry.get("prompt")
    if isinstance(value, list) and value and all(isinstance(part, int) for part in value):
        return _ids(entry, "prompt")
    if isinstance(value, list) and len(value) == 1:
        return _text({"prompt": value[0]}, "prompt")
    return _text(entry, "prompt")


def _given_prompt(response: object) -> Sequence[int] | None:
    """Ids of the prompt, where the server was asked to return them."""
    response = _decoded(response)
    if isinstance(response, Mapping) and isinstance(response.get("prompt_token_ids"), list):
        return _ids(response, "prompt_token_ids")
    return None


def _answers(entry: Entry) -> list[Text]:
    """All answers to one request."""
    if "response" not in entry and "choices" in entry:
        return [_choice(choice) for choice in _list(entry, "choices")]
    response = _decoded(entry["response"]) if isinstance(entry.get("response"), str) else None
    if not isinstance(response, Mapping) or "choices" not in response:
        response = entry.get("response")
    if isinstance(response, Mapping):
        if "choices" in response:
            return [_choice(choice) for choice in _list(response, "choices")]
        if "role" in response or "content" in response:
            return [spoken(response)]
    if isinstance(response, list) and response and isinstance(response[0], Mapping):
        return _streamed(response)
    return [_text(entry, "response")]


def _choice(choice: object) -> Text:
    if not isinstance(choice, Mapping):
        raise LogError(f"a choice must be an object, got {short(choice)}")
    if isinstance(choice.get("token_ids"), list):
        return _ids(choice, "token_ids")
    if isinstance(choice.get("message"), Mapping):
        return spoken(choice["message"])
    return _text(choice, "text")


def _streamed(chunks: list[Any]) -> list[Text]:
    """The answers of which these are the chunks."""
    parts: dict[int, list[str]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or () if isinstance(chunk, Mapping) else ():
            delta = choice.get("delta") or {}
            pieces = [choice.get("text"), delta.get("reasoning_content"), delta.get("content")]
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                pieces += [function.get("name"), function.get("arguments")]
            known = parts.setdefault(int(choice.get("index", 0)), [])
            known += [piece for piece in pieces if isinstance(piece, str)]
    if not parts:
        raise LogError("field 'response' is a list of chunks without any choice")
    return [encodable("".join(parts[index])) for index in sorted(parts)]


def _list(entry: Entry, name: str) -> list[Any]:
    if not isinstance(entry[name], list) or not entry[name]:
        raise LogError(f"field {name!r} must be a list with an entry, got {short(entry[name])}")
    return list(entry[name])


def _text(entry: Entry, name: str) -> str:
    if not isinstance(entry.get(name), str):
        found = short(entry[name]) if name in entry else "no such field"
        raise LogError(f"field {name!r} must be a string, got {found}")
    return encodable(entry[name])


def _ids(entry: Entry, name: str) -> list[int]:
    value = entry[name]
    if not isinstance(value, list) or not all(type(part) is int for part in value):
        raise LogError(f"field {name!r} must be a list of token ids, got {short(value)}")
    return value
