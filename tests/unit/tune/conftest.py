"""The logs and the tokenizer of the replay's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write_log(tmp_path: Path) -> Callable[..., Path]:
    """``write_log(entry, ..., name=...)`` writes dictionaries (as JSON) and strings (as they are), one per line."""

    def write(*entries: dict[str, Any] | str, name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        lines = [e if isinstance(e, str) else json.dumps(e) for e in entries]
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json of the words w0, w1, ...; anything else is ``<unk>``."""
    model = {
        "type": "WordLevel",
        "vocab": {"<unk>": 0, **{f"w{i}": i + 1 for i in range(200)}},
        "unk_token": "<unk>",
    }
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    )
    return path
