"""What users write in speculative_config, and what vLLM gets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.common.host import HostRequirements
from specplug.adapters.vllm_v1 import door
from specplug.adapters.vllm_v1 import install as installer
from specplug.adapters.vllm_v1.options import DOOR, Choice, pack, translate, unpack
from specplug.control import options as control
from specplug.datastore.writer import Writer
from specplug.errors import HostMismatchError, SettingsError

GOOD = {"method": "specplug.null", "num_speculative_tokens": 4}


def test_a_method_of_ours_becomes_a_custom_class() -> None:
    found = translate({**GOOD, "num-speculative-tokens-per-batch-size": [[1, 8, 4]]})
    assert found["method"] == "custom_class"
    assert found["num_speculative_tokens"] == 4
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 8, 4]]
    assert set(found) == {
        "method",
        "model",
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
    }
    module, _, name = found["model"].rpartition(".")
    assert module == DOOR
    assert name.isidentifier(), "vLLM would take it for a model path"
    assert unpack(name) == Choice("null", {}, control.check("goodput"))


def test_hyphens_in_keys_are_underscores() -> None:
    assert translate({"method": "specplug.null", "num-speculative-tokens": 4}) == translate(GOOD)


def test_the_users_dictionary_is_not_changed() -> None:
    given = dict(GOOD)
    translate(given)
    assert given == GOOD


def test_options_are_complete_and_survive_the_journey() -> None:
    options = {"text": 'ä "quoted" __ name', "number": -1.5, "nothing": None, "flag": True}
    for name in ("null", "my_module.sub:Factory", "a__b", "with-hyphen"):
        path = pack(Choice(name, options))
        assert all(part.isidentifier() for part in path.split("."))
        assert unpack(path.rpartition(".")[2]) == Choice(name, options)


@pytest.mark.parametrize("name", ["suffix", "p_null", "p_null__xyz", "p_null__0", "__path__", ""])
def test_other_names_are_not_ours(name: str) -> None:
    assert unpack(name) is None
    with pytest.raises(AttributeError, match="no attribute"):
        door.__getattr__(name)


@pytest.mark.parametrize(
    "config",
    [
        None,
        {},
        {"method": "ngram", "num_speculative_tokens": 3},
        {"model": "x"},
        "text",
        {"method": 3},
    ],
)
def test_everything_else_passes_through(config: Any) -> None:
    assert translate(config) is config


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"method": "specplug.nul"}, "did you mean 'null'"),
        (
            {"method": "specplug"},
            'write "method": "specplug.<name>"; available: specplug.hybrid, specplug.layerskip, specplug.null',
        ),
        ({"method": "specplug."}, 'write "method": "specplug.<name>"'),
        ({"specplug": {"x": 1}}, "unknown option 'x'"),
        ({"specplug": [1]}, "must be an object of options, got \\[1\\]"),
        ({"num_speculative_tokens": None}, 'needs "num_speculative_tokens" \\(1 to 128\\)'),
        ({"num_speculative_tokens": 0}, "from 1 to 128, got 0"),
        ({"num_speculative_tokens": 129}, "from 1 to 128, got 129"),
        ({"num_speculative_tokens": True}, "from 1 to 128, got True"),
        ({"num_speculative_tokens": "4"}, "from 1 to 128, got '4'"),
        ({"model": "some/draft"}, "remove \"model\": 'some/draft'"),
        ({"num_speculative_token": 4}, "did you mean 'num_speculative_tokens'"),
        ({"prompt_lookup_max": 4}, "key 'prompt_lookup_max', which it does not use"),
        ({"max_depth": 4}, 'options of the proposer go into "specplug"'),
        (
            {"method": "ngram", "specplug": {}},
            'needs "method": "specplug.<name>", got method \'ngram\'',
        ),
    ],
)
def test_mistakes_are_explained(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        translate({**GOOD, **config})
    assert isinstance(caught.value, SettingsError)


class EngineArgs(SimpleNamespace):
    """As much of vLLM's class as the wrapper sees."""

    def __init__(self, **given: Any) -> None:
        super().__init__(
            **{
                "speculative_config": None,
                "spec_method": None,
                "spec_tokens": None,
                "spec_model": None,
            }
            | given
        )

    def create_speculative_config(self, target_model_config: Any, **_: Any) -> Any:
        return target_model_config, self.speculative_config, self.spec_method, self.spec_tokens


@pytest.fixture
def create(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The wrapped method, on a vLLM that has everything."""
    monkeypatch.setattr(HostRequirements, "require", lambda _self: "")
    wrapped = installer.wrap(EngineArgs.create_speculative_config)
    return lambda **given: wrapped(EngineArgs(**given), target_model_config="target")


def test_the_wrapper_translates(create: Any) -> None:
    target, config, method, tokens = create(speculative_config=GOOD)
    assert target == "target"
    assert config == translate(GOOD)
    assert (method, tokens) == (None, None)


def test_the_wrapper_leaves_others_alone(create: Any) -> None:
    given = {"method": "ngram"}
    assert create(speculative_config=given, spec_tokens=3)[1:] == (given, None, 3)
    assert create()[1] is None


def test_single_arguments_are_merged(create: Any) -> None:
    expected = translate(GOOD)
    assert create(spec_method="specplug.null", spec_tokens=4)[1:] == (expected, None, None)
    assert (
        create(speculative_config={"specplug": {}}, spec_method="specplug.null", spec_tokens=4)[1]
        == expected
    )
    assert create(speculative_config={"method": "specplug.null"}, spec_tokens=4)[1] == expected


def test_arguments_given_twice_are_refused(create: Any) -> None:
    with pytest.raises(ValueError, match="'num_speculative_tokens' is given twice"):
        create(speculative_config=GOOD, spec_tokens=4)
    with pytest.raises(ValueError, match="remove \"model\": 'm'"):
        create(speculative_config=GOOD, spec_model="m")


def test_translating_twice_changes_nothing(create: Any) -> None:
    once = create(speculative_config=GOOD)[1]
    assert create(speculative_config=once)[1] is once


def test_an_unfit_vllm_is_refused_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: HostRequirements) -> str:
        raise HostMismatchError("vLLM 9 lacks a thing")

    monkeypatch.setattr(HostRequirements, "require", refuse)
    wrapped = installer.wrap(EngineArgs.create_speculative_config)
    assert wrapped(EngineArgs(speculative_config={"method": "ngram"}), "t")[1] == {
        "method": "ngram"
    }
    with pytest.raises(HostMismatchError, match="lacks a thing"):
        wrapped(EngineArgs(speculative_config=GOOD), "t")


@pytest.mark.parametrize(
    ("written", "understood"),
    [
        ("fixed", {"name": "fixed", "length": None}),
        ({"name": "fixed", "length": 3}, {"name": "fixed", "length": 3}),
        ({"name": "table", "lengths": "1:8,4:0"}, {"name": "table", "lengths": "1:8,4:0"}),
    ],
)
def test_a_controller_can_be_chosen(written: Any, understood: dict[str, Any]) -> None:
    found = translate({**GOOD, "specplug": {"controller": written}})
    choice = unpack(found["model"].rpartition(".")[2])
    assert choice == Choice("null", {}, understood)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("gootput", "unknown controller 'gootput'; did you mean 'goodput'"),
        (3, "expected a name or an object"),
        ({"name": "goodput", "mod": "latency"}, "did you mean 'mode'"),
        ({"name": "goodput", "mode": "fast"}, "'throughput' or 'latency'"),
        ({"name": "goodput", "slo_ms": 0}, "slo_ms"),
        ({"name": "table"}, "1:16,4:4"),
        ({"name": "table", "lengths": "0:3"}, "batch sizes from 1"),
        ({"name": "table", "lengths": "1:3,x"}, "1:3,x"),
    ],
)
def test_a_wrong_controller_is_refused_with_what_would_be_right(written: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        translate({**GOOD, "specplug": {"controller": written}})


@pytest.mark.parametrize("method", ["specplug.rest", "specplug.hybrid"])
def test_a_datastore_is_looked_at_before_the_model_loads(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostRequirements, "require", lambda _self: "")
    wrapped = installer.wrap(EngineArgs.create_speculative_config)
    with Writer(tmp_path / "docs", 1000) as writer:
        writer.add(np.arange(50, dtype=np.int32))
        writer.publish({})

    def create(folder: str, size: int) -> Any:
        config = {**GOOD, "method": method, "specplug": {"datastore": str(tmp_path / folder)}}
        model = SimpleNamespace(get_vocab_size=lambda: size)
        return wrapped(EngineArgs(speculative_config=config), target_model_config=model)

    assert create("docs", 1000)[1]["method"] == "custom_class"
    with pytest.raises(SettingsError, match=f"{method}: .*1000 token ids, the model has 900"):
        create("docs", 900)
    with pytest.raises(SettingsError, match=r"no datastore at .*specplug datastore build"):
        create("none", 1000)
