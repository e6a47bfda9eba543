"""What vLLM and SGLang write about requests into their own logs, as entries of :mod:`specplug.replay.forms`.

vLLM (``VLLM_LOGGING_LEVEL=DEBUG``, ``--enable-log-requests --enable-log-outputs``) writes the prompt when a request
arrives and the output when it ends, on lines that share the request's id. SGLang (``--log-requests
--log-requests-level 3``) writes both on one line when it ends, as JSON or as Python would print it. The wording is that
of vLLM 0.32 and SGLang 0.5.23.
"""

from __future__ import annotations

import ast
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from specplug.errors import LogError

#: Requests that wait for their output; the oldest is given up when there are more (it was aborted).
MOST_WAITING = 1 << 14

#: What every line of these logs has: a level and a time, or a time in brackets.
_PREFIX = re.compile(
    r"(?:\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b[: ]\s*(?:(\d\d-\d\d \d\d:\d\d:\d\d) )?)"
    r"|(?:\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\]]*\] )"
)
_PROMPT = re.compile(
    r"Request (\S+) details: prompt: (.*), prompt_token_ids: (None|\[[\d, ]*\]), prompt_embeds shape: "
)
_OUTPUT_IDS = re.compile(
    r"Generated response (\S+?)( \(streaming delta\)| \(streaming complete\))? details: "
    r"output_token_ids: (?:None|[\[(]([\d, ]*)[\])])"
)
_RECEIVED = re.compile(r"Received request (\S+): params: SamplingParams\(n=(\d+),")
_OUTPUT = re.compile(
    r"Generated response (\S+?)( \(streaming delta\)| \(streaming complete\))?: "
    r"output: (.*), finish_reason: (\S+)\s*$"
)
_FINISH = "Finish: obj="
#: What SGLang puts between the halves of what it cuts at level 2, and how long those are together.
_CUT_AT = 2048
_CUT = re.compile(r"""['"\]] \.\.\. ['"\[]""")
_HOW_VLLM = (
    "vLLM writes prompts and outputs with VLLM_LOGGING_LEVEL=DEBUG "
    "and --enable-log-requests --enable-log-outputs"
)
_HOW_SGLANG = "SGLang writes prompts and outputs whole with --log-requests --log-requests-level 3"


class EngineLog:
    """Reads lines of an engine's log in order and gives the requests that are complete.

    Attributes:
        seen: lines that an engine wrote, of whatever kind.
        hint: what to change at the server, if its log leaves out what is needed; else "".
    """

    def __init__(self) -> None:
        self.seen = 0
        self.hint = ""
        self._waiting: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def feed(self, line: str) -> list[Mapping[str, Any]] | None:
        """The entries that a line completes; None if no engine wrote it.

        Raises:
            LogError: it is about a request, but something in it is missing or cut off.
        """
        prefix = _PREFIX.search(line)
        if prefix is None:
            return None
        self.seen += 1
        moment = _moment(prefix.group(1), prefix.group(2))
        body = line[prefix.end() :]
        if "Generated response " in body:
            return self._vllm_output(body)
        if "Request " in body and " details: prompt: " in body:
            self._vllm_prompt(body, moment)
        elif "Received request " in body:
            self._vllm_received(body)
        elif body.startswith("{"):
            return self._sglang_json(body)
        elif _FINISH in body:
            return self._sglang_text(body[body.index(_FINISH) + len(_FINISH) :], moment)
        return []

    def _vllm_prompt(self, body: str, moment: float | None) -> None:
        found = _PROMPT.search(body)
        if found is None:
            raise LogError("the prompt of a request cannot be read from this line of vLLM")
        name, prompt, ids = found.groups()
        entry: dict[str, Any] = {"arrived": moment, "ids": []}
        if ids != "None":
            entry["prompt_token_ids"] = json.loads(ids)
        elif prompt != "None":
            entry["prompt"] = _literal(prompt)
        self._waiting[name] = entry
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popitem(last=False)

    def _vllm_received(self, body: str) -> None:
        found = _RECEIVED.search(body)
        entry = None if found is None else self._of(found.group(1))
        if entry is None:
            self.hint = self.hint or _HOW_VLLM
        elif found is not None and found.group(2) != "1":
            entry["several"] = True

    def _vllm_output(self, body: str) -> list[Mapping[str, Any]]:
        ids = _OUTPUT_IDS.search(body)
        if ids is not None:
            entry = self._of(ids.group(1))
            if entry is not None and ids.group(3) is not None:
                new = [int(part) for part in ids.group(3).split(",") if part.strip()]
                entry["ids"] = [*entry["ids"], *new] if ids.group(2) else new
            return []
        found = _OUTPUT.search(body)
        if found is None:
            raise LogError("the output of a request cannot be read from this line of vLLM")
        name, kind, text, _ = found.groups()
        entry = self._of(name)
        if kind == " (streaming delta)":
            return []
        if entry is None:
            self.hint = self.hint or _HOW_VLLM
            raise LogError(f"the output of request {name}, whose prompt is not in the log")
        ids_said, entry["ids"] = entry["ids"], []
        if kind and entry.get("several"):
            ids_said = []  # the pieces of several answers come mixed
        found_entry = {k: v for k, v in entry.items() if k not in ("ids", "several")}
        if ids_said and "prompt_token_ids" in entry:
            return [{**found_entry, "token_ids": ids_said}]
        answer = _literal(text)
        if "prompt_token_ids" in entry:
            # The two halves of an entry may differ in kind: ids as they were sent, an answer as text.
            found_entry["prompt"] = found_entry.pop("prompt_token_ids")
        return [{**found_entry, "response": answer}]

    def _of(self, name: str) -> dict[str, Any] | None:
        """The request of an id. On the lines of prompts the number of the prompt may stand behind it."""
        for key in (name, f"{name}-0", f"{name}_0"):
            if key in self._waiting:
                self._waiting.move_to_end(key)
                return self._waiting[key]
        return None

    def _sglang_json(self, body: str) -> list[Mapping[str, Any]]:
        try:
            event = json.loads(body)
        except ValueError as error:
            raise LogError(f"not JSON: {error}") from None
        return self.event(event) or []

    def event(self, event: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
        """The entries in a JSON event of SGLang; None if it is something else."""
        kind = event.get("event")
        if not isinstance(kind, str) or not kind.startswith("request."):
            return None
        self.seen += 1
        if kind != "request.finished":
            return []
        given, said = event.get("obj"), event.get("out")
        if not isinstance(given, Mapping) or said is None:
            raise LogError("a finished request without 'obj' or 'out'")
        arrived = event.get("timestamp")
        outs = said if isinstance(said, list) else [said]
        return [self._sglang(given, out, arrived) for out in outs]

    def _sglang_text(self, body: str, moment: float | None) -> list[Mapping[str, Any]]:
        fields = top_level_fields(body)
        if any(_CUT.search(fields.get(n, "")) for n in ("text", "input_ids", "out")):
            self.hint = _HOW_SGLANG
            raise LogError(f"the request was cut at {_CUT_AT} characters; {_HOW_SGLANG}")
        given: dict[str, Any] = {
            n: _literal(fields[n]) for n in ("text", "input_ids") if n in fields
        }
        out = fields.get("out")
        if out is None:
            raise LogError("the output of a request cannot be read from this line of SGLang")
        inner = top_level_fields(out)
        said: dict[str, Any] = {n: _literal(inner[n]) for n in ("text", "output_ids") if n in inner}
        return [self._sglang(given, said, moment)]

    def _sglang(
        self, given: Mapping[str, Any], said: Mapping[str, Any], arrived: object
    ) -> dict[str, Any]:
        entry: dict[str, Any] = {"arrived": arrived}
        for value in (given.get("text"), said.get("text")):
            if isinstance(value, str) and len(value) == _CUT_AT + 3 and value[1024:1027] == "...":
                self.hint = _HOW_SGLANG
                raise LogError(f"the text was cut at {_CUT_AT} characters; {_HOW_SGLANG}")
        if isinstance(given.get("input_ids"), list):
            entry["prompt"] = given["input_ids"]
        elif isinstance(given.get("text"), str):
            entry["prompt"] = given["text"]
        if isinstance(said.get("output_ids"), list) and isinstance(entry.get("prompt"), list):
            return {
                "arrived": arrived,
                "prompt_token_ids": entry["prompt"],
                "token_ids": said["output_ids"],
            }
        if "prompt" not in entry or not isinstance(said.get("text"), str):
            self.hint = _HOW_SGLANG
            raise LogError(f"a finished request without its text; {_HOW_SGLANG}")
        return {**entry, "response": said["text"]}


def top_level_fields(text: str) -> dict[str, str]:
    """``name=value`` and ``'name': value`` of a printed object, as written; strings and brackets inside are skipped.

    Also what follows the object, up to the end of the line, as in ``Name(a=1), out={'b': 2}``.
    """
    fields: dict[str, str] = {}
    for part in _split(text):
        inner = part[part.index("(") + 1 : -1] if re.match(r"\w+\(", part) else None
        if inner is None and part.startswith("{"):
            inner = part[1:-1]
        for piece in [part] if inner is None else _split(inner):
            found = re.match(r"(?:'(\w+)': |(\w+)=)", piece)
            if found:
                fields[found.group(1) or found.group(2)] = piece[found.end() :]
    return fields


def _split(text: str) -> list[str]:
    """At the commas that stand outside of strings and brackets."""
    parts: list[str] = []
    start = depth = position = 0
    while position < len(text):
        char = text[position]
        if char in "'\"":
            position += 1
            while position < len(text) and text[position] != char:
                position += 2 if text[position] == "\\" else 1
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
        position += 1
    return [*parts, text[start:].strip()]


def _literal(text: str) -> Any:
    """A printed string or list, as the value it was."""
    try:
        return json.loads(text) if text.startswith("[") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise LogError(f"not a printed string or list of ids: {text[:60]!r}") from None


def _moment(month_first: str | None, year_first: str | None) -> float | None:
    """Seconds since 1970. vLLM writes no year; a leap year stands for all, since only differences count."""
    if month_first:
        moment = datetime.strptime(f"2024-{month_first}", "%Y-%m-%d %H:%M:%S")
        return moment.timestamp()
    if year_first:
        return datetime.strptime(year_first, "%Y-%m-%d %H:%M:%S").timestamp()
    return None
