"""The report is one file that fetches nothing and is the same every time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specplug.cli import main


def entries() -> list[dict[str, str]]:
    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in rng.integers(0, 50, 60)]
    return [
        {"prompt": " ".join(words), "response": " ".join(words[i : i + 40]), "kind": f"<k{i % 2}>"}
        for i in range(12)
    ]


@pytest.fixture
def page(write_log: Any, tokenizer_file: Path, tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    arguments = ["--quiet", "--tag", "kind", "--proposer", "suffix", "--proposer", "null"]
    log = write_log(*entries(), "nonsense")
    given = ["replay", str(log), "--tokenizer", str(tokenizer_file), "--html", str(path)]
    assert main([*given, *arguments]) == 0
    return path.read_text(encoding="utf-8")


def test_every_plot_is_a_picture_in_the_page(page: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) == 2 + 2 * 3
    for picture in pictures:
        assert ElementTree.fromstring(picture).tag.endswith("svg")
        assert "<path" in picture
    for words in ("position in the draft", "stood earlier", "share of the steps", "speedup"):
        assert words in page


def test_nothing_is_fetched(page: str) -> None:
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "<script" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\"'\s<]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }, "only the names of formats"


def test_what_a_log_says_is_text_and_never_markup(page: str) -> None:
    assert "&lt;k0&gt;" in page
    assert "<k0>" not in page
    assert "not JSON" in page, "malformed lines are shown"


def test_the_same_document_gives_the_same_page(
    write_log: Any, tokenizer_file: Path, tmp_path: Path
) -> None:
    import json

    from specplug.replay.html_report import page as render

    path = tmp_path / "r.json"
    log = write_log(*entries())
    given = ["replay", str(log), "--tokenizer", str(tokenizer_file), "--quiet", "--no-oracle"]
    assert main([*given, "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert render(document) == render(document)
    assert "stood earlier" not in render(document), "unknown without the oracle"


def test_a_missing_library_is_said_before_the_replay(
    write_log: Any,
    tokenizer_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    log = write_log(*entries())
    given = ["replay", str(log), "--tokenizer", str(tokenizer_file)]
    assert main([*given, "--html", str(tmp_path / "x.html")]) == 1
    out, err = capsys.readouterr()
    assert "pip install 'specplug[report]'" in err
    assert out == ""
