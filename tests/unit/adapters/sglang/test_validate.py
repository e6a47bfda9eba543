"""What is refused before a model loads, with the reason; and where options come from."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specplug._host import HostSymbol, SymbolReport
from specplug.adapters.common.host import HostRequirements
from specplug.adapters.sglang_srt import options, validate
from specplug.adapters.sglang_srt.report import blocked_reason
from specplug.errors import HostMismatchError, SettingsError


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRequirements, "require", lambda self: "")


def arguments(**fields: Any) -> Any:
    base = {
        "speculative_num_draft_tokens": None,
        "speculative_num_steps": None,
        "max_running_requests": None,
        "device": "cuda",
        "disable_overlap_schedule": False,
        "enable_mixed_chunk": True,
    }
    return SimpleNamespace(**{**base, **fields})


@pytest.mark.usefixtures("fits")
def test_defaults_are_set() -> None:
    given = arguments()
    validate.validate(given, name="suffix")
    assert given.speculative_num_draft_tokens == validate.DEFAULT_WIDTH
    assert given.speculative_num_steps == validate.DEFAULT_WIDTH - 1
    assert given.speculative_eagle_topk == 1
    assert given.max_running_requests == validate.DEFAULT_REQUESTS
    assert given.enable_mixed_chunk is False
    assert given.disable_overlap_schedule is False


@pytest.mark.usefixtures("fits")
def test_what_the_user_says_stays() -> None:
    given = arguments(speculative_num_draft_tokens=8, max_running_requests=3)
    validate.validate(given, name="suffix")
    assert (given.speculative_num_draft_tokens, given.max_running_requests) == (8, 3)
    assert given.speculative_num_steps == 7
    steps = arguments(speculative_num_steps=5)
    validate.validate(steps, name="suffix")
    assert steps.speculative_num_draft_tokens == 6


@pytest.mark.usefixtures("fits")
def test_overlap_is_off_on_the_cpu_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(device="cpu")
    validate.validate(given, name="suffix")
    assert given.disable_overlap_schedule is True
    monkeypatch.setenv(options.OVERLAP_VARIABLE, "1")
    given = arguments(device="cpu")
    validate.validate(given, name="suffix")
    assert given.disable_overlap_schedule is False


@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speculative_draft_model_path": "m"}, "--speculative-draft-model-path 'm'"),
        ({"pp_size": 2}, "--pp-size 2"),
        ({"enable_dp_attention": True}, "--enable-dp-attention"),
        ({"enable_watermark": True}, "--enable-watermark"),
        ({"speculative_eagle_topk": 4}, "--speculative-eagle-topk 4"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode 'decode'"),
        ({"speculative_num_draft_tokens": 1}, "from 2 to 129"),
        ({"speculative_num_draft_tokens": 200}, "got 200"),
        ({"speculative_num_draft_tokens": 8, "speculative_num_steps": 3}, "does not fit"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=r"specplug\.suffix") as caught:
        validate.validate(arguments(**fields), name="suffix")
    assert words in str(caught.value)


@pytest.mark.usefixtures("fits")
def test_a_wrong_option_fails_before_the_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.VARIABLE, '{"verify_cst": 1}')
    with pytest.raises(SettingsError, match="did you mean 'verify_cost'"):
        validate.validate(arguments(), name="suffix")


def test_options_come_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"store_mb": 8}))
    assert options.checked("suffix", str(file)).options["store_mb"] == 8
    monkeypatch.setenv(options.VARIABLE, '{"store_mb": 16}')
    assert options.checked("suffix").options["store_mb"] == 16
    with pytest.raises(SettingsError, match="given twice"):
        options.read(str(file))


def test_the_controller_is_chosen_beside_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.checked("suffix").control["name"] == "goodput"
    monkeypatch.setenv(options.VARIABLE, '{"controller": {"name": "fixed", "length": 3}}')
    assert options.checked("suffix").control == {"name": "fixed", "length": 3}
    monkeypatch.setenv(options.VARIABLE, '{"controller": "godput"}')
    with pytest.raises(SettingsError, match="goodput"):
        options.checked("suffix")


@pytest.mark.parametrize("text", ["{", "[1]", "3", '"a"'])
def test_options_that_are_no_object_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(options.VARIABLE, text)
    with pytest.raises(SettingsError, match=options.VARIABLE):
        options.read()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.json"):
        options.read(str(tmp_path / "nothing.json"))


def requirements(**fields: Any) -> HostRequirements:
    base: dict[str, Any] = {
        "host": "SGLang",
        "package": "sglang",
        "distributions": ("sglang",),
        "tested": ("0.5.23",),
        "symbols": (),
        "variable": "SPECPLUG_TEST_UNTESTED",
        "default_policy": "refuse",
    }
    return HostRequirements(**{**base, **fields})


def test_an_untested_release_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = requirements()
    assert needs.verdict("0.5.23", ()) == (True, "")
    assert needs.verdict("0.5.23+cpu", ())[0]
    usable, reason = needs.verdict("0.5.24", ())
    assert not usable
    assert "SPECPLUG_TEST_UNTESTED=warn" in reason
    monkeypatch.setenv("SPECPLUG_TEST_UNTESTED", "warn")
    usable, reason = needs.verdict("0.5.24", ())
    assert usable
    assert "was not tested" in reason
    monkeypatch.setenv("SPECPLUG_TEST_UNTESTED", "allow")
    assert needs.verdict("0.5.24", ()) == (True, "")
    monkeypatch.setenv("SPECPLUG_TEST_UNTESTED", "perhaps")
    with pytest.raises(SettingsError, match="perhaps"):
        needs.verdict("0.5.24", ())


def test_a_missing_symbol_is_named() -> None:
    symbol = HostSymbol("sglang.x", "y")
    usable, reason = requirements().verdict("0.5.23", (SymbolReport(symbol, "sglang.x has no y"),))
    assert not usable
    assert "sglang.x has no y" in reason


def test_a_host_that_does_not_fit_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostRequirements, "installed_version", lambda self: "9")
    with pytest.raises(HostMismatchError, match="SGLang 9"):
        requirements().require()


def test_the_doctor_knows_when_sglang_skips_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", "other")
    assert "SGLANG_PLUGINS" in blocked_reason()
    monkeypatch.setenv("SGLANG_PLUGINS", "other, specplug")
    assert not blocked_reason()
    monkeypatch.delenv("SGLANG_PLUGINS")
    assert not blocked_reason()


@pytest.mark.usefixtures("fits")
def test_a_datastore_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "none"
    monkeypatch.setenv(options.VARIABLE, json.dumps({"datastore": str(missing)}))
    with pytest.raises(SettingsError, match=f"specplug.hybrid: option 'datastore': no .*{missing}"):
        validate.validate(arguments(), name="hybrid")
