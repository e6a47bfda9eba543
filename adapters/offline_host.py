"""What the processes that host an engine for tests and demos have in common: the JSON lines and the tokenizer.

Reads one JSON object per line from standard input and answers each with one line on standard output. The first
line holds the engine's options; its answer comes when the model is loaded. Everything else that is printed
goes to standard error. Ends at the end of its input. The other side is ``specplug.testing.engine_process``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol

COMMANDS = ("generate", "info", "metrics", "run", "tokenize")


class Host(Protocol):
    """An engine with one public method per command; each takes and returns plain data."""

    def generate(
        self,
        prompts: list[Any],
        params: list[dict[str, Any]],
        abort_after: dict[str, int],
        raw_seed: int | None,
    ) -> dict[str, Any]:
        """Serve all prompts together."""

    def info(self) -> dict[str, Any]:
        """Facts about the engine and its model."""

    def metrics(self) -> dict[str, Any]:
        """Totals since the start."""

    def run(self, target: str, **arguments: Any) -> dict[str, Any]:
        """Call ``module:function`` where the engine's scheduler lives."""

    def tokenize(self, prompt: Any) -> dict[str, Any]:
        """Token ids of a prompt."""


def token_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a text, of a chat (with the generation prompt), or of token ids (as they are)."""
    if isinstance(prompt, str):
        return [int(t) for t in tokenizer(prompt)["input_ids"]]
    if prompt and isinstance(prompt[0], dict):
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return [int(t) for t in tokenizer(text, add_special_tokens=False)["input_ids"]]
    return [int(t) for t in prompt]


def _command(engine: Host, name: str) -> Callable[..., dict[str, Any]]:
    if name not in COMMANDS:
        raise ValueError(f"unknown command {name!r}; there are {', '.join(COMMANDS)}")
    method: Callable[..., dict[str, Any]] = getattr(engine, name)
    return method


def _private_stdout() -> Any:
    """Keep standard output for answers; whatever else writes to it lands in the log."""
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def serve(start: Callable[[dict[str, Any]], Host]) -> None:
    """Answer commands until the input ends.

    Args:
        start: makes the engine of its options; what it raises is the answer to the first line.
    """
    answers = _private_stdout()
    engine: Host | None = None
    for line in sys.stdin:
        message = json.loads(line)
        answer: dict[str, Any]
        try:
            if engine is None:
                engine = start(message["options"])
                answer = {"result": engine.info()}
            else:
                answer = {"result": _command(engine, message.pop("command"))(**message)}
        # Whatever the engine raises is the caller's answer; the traceback stays in the log.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            answer = {"error": str(error), "kind": type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if engine is None:
            break
