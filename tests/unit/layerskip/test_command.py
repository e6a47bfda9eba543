"""``specplug fit-exit`` where it cannot run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specplug import cli


def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert cli.main(["fit-exit", str(tmp_path), "--quiet", "--out", str(tmp_path / "heads")]) == 1
    said = capsys.readouterr().err
    assert "fitting exit heads needs the package 'transformers', which is not installed" in said
    assert not (tmp_path / "heads").exists()
