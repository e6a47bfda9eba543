"""Registration with a stand-in for SGLang's registry."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

from specplug.adapters import sglang_srt
from specplug.adapters.sglang_srt.install import algorithm_names
from specplug.errors import SettingsError


class CustomSpecAlgo:
    def __init__(self, name: str, factory: Any, **more: Any) -> None:
        self.name, self.factory, self.more = name, factory, more

    def is_ngram(self) -> bool:
        return False


def stand_in() -> Any:
    """A fresh registry, since ours marks the class that it wrapped."""

    class SpeculativeAlgorithm:
        found: dict[str, CustomSpecAlgo]
        refuses = ""

        @classmethod
        def register(cls, name: str, *, spec_class: Any, **more: Any) -> Any:
            if cls.refuses and cls.refuses in name:
                raise ValueError("reserved")

            def decorator(factory: Any) -> Any:
                cls.found[name.upper()] = spec_class(name.upper(), factory, **more)
                return factory

            return decorator

        @classmethod
        def from_string(cls, name: str) -> Any:
            if name.upper() in cls.found:
                return cls.found[name.upper()]
            raise ValueError(f"Unknown speculative algorithm name: {name}")

    SpeculativeAlgorithm.found = {}
    return SpeculativeAlgorithm


@pytest.fixture
def algorithms(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = stand_in()
    for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    info = types.ModuleType("sglang.srt.speculative.spec_info")
    info.SpeculativeAlgorithm = made  # type: ignore[attr-defined]
    registry = types.ModuleType("sglang.srt.speculative.spec_registry")
    registry.CustomSpecAlgo = CustomSpecAlgo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, info.__name__, info)
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    return made


def test_every_proposer_becomes_an_algorithm(algorithms: Any) -> None:
    sglang_srt.register()
    sglang_srt.register()
    assert set(algorithms.found) == set(algorithm_names())
    assert "SPECPLUG.SUFFIX" in algorithms.found
    algorithm = algorithms.found["SPECPLUG.SUFFIX"]
    assert algorithm.is_ngram()
    assert not algorithm.has_draft_kv()
    assert not algorithm.need_topk()
    assert algorithm.more["supports_overlap"] is True


def test_an_unknown_name_gets_the_nearest_one(algorithms: Any) -> None:
    sglang_srt.register()
    with pytest.raises(SettingsError, match=r"did you mean 'specplug\.suffix'"):
        algorithms.from_string("SPECPLUG.SUFFX")
    with pytest.raises(ValueError, match="Unknown speculative algorithm name: EGLE"):
        algorithms.from_string("EGLE")


def test_one_refused_name_costs_itself_only(
    algorithms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    algorithms.refuses = "NULL"
    with caplog.at_level(logging.ERROR, logger="specplug"):
        sglang_srt.register()
    assert "SPECPLUG.SUFFIX" in algorithms.found
    assert "null could not be registered" in caplog.text


def test_a_failing_plugin_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    with caplog.at_level(logging.ERROR, logger="specplug"):
        sglang_srt.register()
    (record,) = caplog.records
    assert "specplug doctor" in record.getMessage()
