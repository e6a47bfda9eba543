"""Prompts of ``specplug check-engine``: short, and apt to be drafted for without leaving nothing to chance."""

from __future__ import annotations

import json
from pathlib import Path

from specplug.errors import SettingsError

PROMPTS: dict[str, str] = {
    "story": "Once upon a time, there was a little",
    "list": "Shopping list: apples, bread, apples, milk, apples, eggs, apples,",
    "weather": "Monday: rain. Tuesday: sun. Wednesday: rain. Thursday: sun. Friday: rain. Saturday:",
    "code": "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n    return",
    "records": '{"name": "Ada", "city": "Oslo"}\n{"name": "Ben", "city": "Rome"}\n{"name": "',
    "echo": "The red boat left the harbour. The blue boat left the harbour. The green boat left the",
    "question": "Question: What is your favourite colour?\nAnswer: My favourite colour is",
    "song": "Row the boat, row the boat, gently down the river. Row the boat, row the",
}


def read_prompts(path: Path) -> dict[str, str]:
    """Read prompts from a file: one per line, as JSON strings or ``{"name", "prompt"}`` objects if it ends in
    ``.jsonl``, else as plain text.

    Raises:
        SettingsError: the file cannot be read, has no prompt, a malformed line, or two prompts of one name.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the file of prompts {path} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name, prompt = f"line {number}", line
        if path.suffix == ".jsonl":
            name, prompt = _record(line, name, f"{path}, line {number}")
        if name in found:
            raise SettingsError(f"{path}, line {number}: a second prompt of the name {name!r}")
        found[name] = prompt
    if not found:
        raise SettingsError(f"{path} has no prompts; write one per line")
    return found


def _record(line: str, name: str, where: str) -> tuple[str, str]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SettingsError(f"{where}: not JSON: {error}") from None
    if isinstance(value, str):
        return name, value
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return str(value.get("name", name)), value["prompt"]
    raise SettingsError(
        f'{where}: expected a string or an object with "prompt" and optionally "name", got {line[:80]!r}'
    )
