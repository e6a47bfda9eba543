"""Host symbols are found in sources without importing them, and the verdict explains itself."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from specplug import _host
from specplug._host import HostSymbol, SymbolReport, check_symbols
from specplug.adapters import vllm_v1
from specplug.adapters.common.host import HostRequirements
from specplug.adapters.vllm_v1.report import report
from specplug.adapters.vllm_v1.requirements import HOST
from specplug.errors import HostMismatchError, SettingsError
from specplug.testing.stub_host import stub_vllm

SOURCE = """
raise RuntimeError("must not be imported")

import os
from elsewhere import borrowed as lent

CONSTANT = 1

def function(first, second, *, option=None): ...

class Thing:
    field: int
    other = 2

    def __init__(self, a):
        self.made = a
        self.typed: int = 3

    def method(self, x, y=0): ...
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package `fakehost` on the path that would fail if anything imported it."""
    package = tmp_path / "fakehost"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "deep" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "deep" / "module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    _host._module_names.cache_clear()
    return "fakehost.deep.module"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("function", ("first", "second")),
        ("function", ()),
        ("CONSTANT", ()),
        ("lent", ()),
        ("Thing", ()),
        ("Thing.field", ()),
        ("Thing.other", ()),
        ("Thing.made", ()),
        ("Thing.typed", ()),
        ("Thing.method", ("x",)),
    ],
)
def test_symbols_are_found(host: str, name: str, parameters: tuple[str, ...]) -> None:
    (found,) = check_symbols([HostSymbol(host, name, parameters)])
    assert found.problem == ""
    assert "fakehost" not in sys.modules


@pytest.mark.parametrize(
    ("symbol", "problem"),
    [
        (("fakehost.deep.module", "absent"), "has no absent"),
        (("fakehost.deep.module", "Thing.absent"), "has no Thing.absent"),
        (("fakehost.deep.nothing", "x"), "module fakehost.deep.nothing was not found"),
        (("nowhere_at_all.x", "x"), "module nowhere_at_all.x was not found"),
        (("fakehost.deep.module", "function", ("second",)), "takes \\(first, second, option\\)"),
        (
            ("fakehost.deep.module", "Thing.method", ("x", "z")),
            "expected it to start with \\(x, z\\)",
        ),
    ],
)
def test_what_is_missing_is_named(host: str, symbol: Any, problem: str) -> None:
    (found,) = check_symbols([HostSymbol(*symbol)])
    assert found.problem
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(found.problem)


def _reports(problem: str = "", required: bool = True) -> tuple[SymbolReport, ...]:
    return (SymbolReport(HostSymbol("m", "n", required=required), problem),)


def test_a_tested_version_needs_no_words() -> None:
    assert HOST.verdict("0.32.0+cpu", _reports()) == (True, "")
    assert HOST.verdict("0.32.1", _reports("optional thing", required=False)) == (True, "")


def test_a_missing_symbol_is_a_refusal_with_versions() -> None:
    usable, reason = HOST.verdict("0.99.0", _reports("m has no n"))
    assert not usable
    for part in ("0.99.0", "m has no n", "0.32.x"):
        assert part in reason


def test_an_untested_version_works_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    variable = HOST.variable
    monkeypatch.delenv(variable, raising=False)
    usable, reason = HOST.verdict("0.99.0", _reports())
    assert usable
    assert "0.99.0 was not tested" in reason
    assert variable in reason
    monkeypatch.setenv(variable, "allow")
    assert HOST.verdict("0.99.0", _reports()) == (True, "")
    monkeypatch.setenv(variable, "refuse")
    assert HOST.verdict("0.99.0", _reports())[0] is False
    monkeypatch.setenv(variable, "perhaps")
    with pytest.raises(SettingsError, match="warn, allow, refuse, got 'perhaps'"):
        HOST.verdict("0.99.0", _reports())


def test_require_raises_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRequirements, "installed_version", lambda _self: "0.32.0")
    monkeypatch.setattr(HostRequirements, "examine", lambda _self: _reports("m has no n"))
    with pytest.raises(HostMismatchError, match="m has no n"):
        HOST.require()


def test_a_plugin_list_without_us_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRequirements, "installed_version", lambda _self: "0.32.0")
    monkeypatch.setattr(HostRequirements, "examine", lambda _self: _reports())
    monkeypatch.setenv("VLLM_PLUGINS", "other, specplug")
    assert report().active
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    found = report()
    assert not found.active
    assert "does not list 'specplug'" in found.reason


def test_register_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    with stub_vllm(), caplog.at_level(logging.ERROR):
        vllm_v1.register()  # the stub has no vllm.engine: importing it fails
        vllm_v1.register()
    assert "specplug inactive" in caplog.text


def test_a_vllm_without_the_method_is_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    class EngineArgs:
        pass

    module = types.ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = EngineArgs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.engine", types.ModuleType("vllm.engine"))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    monkeypatch.setattr(HostRequirements, "installed_version", lambda _self: "0.99.0")
    monkeypatch.setattr(
        HostRequirements, "examine", lambda _self: _reports("it has no such method")
    )
    with stub_vllm(), caplog.at_level(logging.ERROR):
        vllm_v1.register()
    assert "specplug inactive: vLLM 0.99.0 lacks" in caplog.text
    assert not hasattr(EngineArgs, "create_speculative_config")


def test_registering_twice_wraps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    class EngineArgs:
        def create_speculative_config(self) -> None:
            return None

    module = types.ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = EngineArgs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.engine", types.ModuleType("vllm.engine"))
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", module)
    with stub_vllm():
        vllm_v1.register()
        wrapped = EngineArgs.create_speculative_config
        vllm_v1.register()
    assert EngineArgs.create_speculative_config is wrapped
    assert hasattr(wrapped, "__wrapped__")
