"""``specplug.layerskip`` in vLLM: what is translated, what is refused, and where a draft may write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.common.host import HostRequirements
from specplug.adapters.vllm_v1 import install as installer
from specplug.adapters.vllm_v1 import layer_probe, layers, lookahead, sublayers
from specplug.adapters.vllm_v1.options import translate, unpack
from specplug.errors import HostMismatchError, SettingsError, SkipPlanError
from specplug.layers.plan import Plan


def config(**options: Any) -> dict[str, Any]:
    return {"method": layers.METHOD, "num_speculative_tokens": 3, "specplug": options}


def test_the_method_is_translated_with_its_options() -> None:
    translated = translate(config(exit_layer=4))
    choice = unpack(translated["model"].rpartition(".")[2])
    assert choice is not None
    assert (choice.name, choice.options["exit_layer"]) == ("layerskip", 4)
    assert choice.control is not None


def test_a_wrong_option_is_called_as_the_user_calls_it() -> None:
    with pytest.raises(
        SettingsError,
        match=r"^specplug\.layerskip: unknown option 'exit'; .*valid names: .*exit_layer",
    ):
        translate(config(exit=4))


@pytest.mark.parametrize(
    ("changed", "v2", "message"),
    [
        ({"tensor_parallel_size": 2}, False, "not with tensor_parallel_size 2"),
        ({"pipeline_parallel_size": 2}, False, "not with pipeline_parallel_size 2"),
        ({"data_parallel_size": 4}, False, "not with data_parallel_size 4"),
        ({"enable_lora": True}, False, "not with enable_lora"),
        ({"kv_transfer_config": object()}, False, "not with kv_transfer_config"),
        ({"kv_offloading_size": 4.0}, False, "not with kv_offloading_size"),
        ({}, True, "V2 model runner so far; set VLLM_USE_V2_MODEL_RUNNER=0"),
    ],
)
def test_what_the_passes_cannot_do_is_refused(
    changed: dict[str, Any], v2: bool, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "check_symbols", lambda symbols: [])
    layers.refuse(SimpleNamespace(tensor_parallel_size=1, enable_lora=False), False)
    with pytest.raises(SettingsError, match=message):
        layers.refuse(SimpleNamespace(**changed), v2)


def test_a_vllm_without_the_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = SimpleNamespace(problem="vllm.forward_context has no set_forward_context")
    fine = SimpleNamespace(problem="")
    monkeypatch.setattr(layers, "check_symbols", lambda symbols: [fine, gone])
    with pytest.raises(HostMismatchError, match=r"specplug\.layerskip: vLLM lacks .* has no set_f"):
        layers.refuse(SimpleNamespace(), False)


def runner(spec: str = "FullAttentionSpec", groups: int = 1, **changed: Any) -> Any:
    """As much of vLLM's runner as can be had without it; blocks of 16 tokens."""
    table = SimpleNamespace(block_size=16, num_blocks_per_row=np.array([1, 2, 4, 0]))
    batch = SimpleNamespace(
        block_table=[table],
        req_id_to_index={"a": 0, "b": 1, "c": 2},
        num_tokens_no_spec=np.array([13, 33, 50, 0]),
    )
    kind = type(spec, (), {})
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=kind())] * groups)
    config = {
        "parallel_config": SimpleNamespace(world_size=1, data_parallel_size=1),
        "lora_config": None,
        "kv_transfer_config": None,
        **changed.pop("config", {}),
    }
    return SimpleNamespace(
        input_batch=batch,
        max_model_len=52,
        kv_cache_config=cache,
        vllm_config=SimpleNamespace(**config),
        **changed,
    )


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(layers, "take_apart", lambda runner, model: [object()] * 3)

    def build(**changed: Any) -> layers.LayerExecutor:
        return layers.LayerExecutor(runner(model=None, **changed))

    return build


def test_a_draft_writes_only_where_the_request_owns_a_slot(built: Any) -> None:
    """The newest token itself is not in the cache yet: 13 of 16 tokens leave places 12 to 15.

    Request ``b`` needs a third block for its newest token and has two; ``c`` is near the end of the context.
    """
    executor = built()
    assert executor.layers == 3
    assert executor.rooms(["a", "b", "c"]).tolist() == [4, 0, 2]


def test_caches_that_cannot_be_written_twice_are_refused(built: Any) -> None:
    with pytest.raises(SkipPlanError, match=r"consists of \['MambaSpec'\] in 1 groups"):
        built(spec="MambaSpec")
    with pytest.raises(SkipPlanError, match="in 2 groups"):
        built(groups=2)
    with pytest.raises(SkipPlanError, match=r"not with multi-head latent attention \(MLA\) so far"):
        built(spec="MLAAttentionSpec")
    with pytest.raises(SkipPlanError, match="positions of several dimensions"):
        built(uses_mrope=True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"parallel_config": SimpleNamespace(world_size=2)}, "not with world_size 2 so far"),
        (
            {"parallel_config": SimpleNamespace(world_size=1, data_parallel_size=2)},
            "not with data_parallel_size 2 so far",
        ),
        ({"lora_config": object()}, "not with lora_config so far"),
        ({"kv_transfer_config": object()}, "not with kv_transfer_config so far"),
    ],
)
def test_layers_are_not_lent_where_the_early_refusal_was_passed_by(
    built: Any, config: dict[str, Any], message: str
) -> None:
    """By a proposer of another package, or by what vLLM makes of its arguments."""
    with pytest.raises(SkipPlanError, match=message):
        built(config=config)


@pytest.fixture(params=layers.NAMES)
def create(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``create_speculative_config`` as it is wrapped, on a vLLM that has everything, by either name of the method."""
    monkeypatch.setattr(layers, "check_symbols", lambda symbols: [])
    monkeypatch.setattr(HostRequirements, "require", lambda _self: "")
    monkeypatch.setattr(installer.salts, "carry", lambda load=False: None)
    monkeypatch.setattr(installer.metrics, "offer", lambda: None)
    wrapped = installer.wrap(lambda self, target_model_config: self.speculative_config)
    arguments: list[Any] = []

    def call(model: dict[str, Any] | None = None, engine: Any = None, **options: Any) -> Any:
        text = SimpleNamespace(num_hidden_layers=30)
        found = SimpleNamespace(
            **{"hf_text_config": text, "get_vocab_size": lambda: 100, **(model or {})}
        )
        given = {**config(**options), "method": request.param}
        args = SimpleNamespace(speculative_config=given, **(engine or {}))
        arguments.append(args)
        return wrapped(args, target_model_config=found)

    call.arguments = arguments  # type: ignore[attr-defined]
    return call


def test_arguments_that_were_refused_keep_no_scheduler_of_ours(create: Any) -> None:
    """Used again with a method that brings its own, they were refused for it."""
    with pytest.raises(SettingsError, match="cannot be read"):
        create(exit_layer=4, heads="no.exits")
    assert getattr(create.arguments[-1], "scheduler_cls", None) is None
    create(exit_layer=4)
    assert create.arguments[-1].scheduler_cls == lookahead.PATH


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exit_layer": 400}, "after 1 to 29 of 30 layers, got 400"),
        ({"skip": "0"}, "must run the attention of layer 0"),
        ({"skip": "-3,99"}, "there is no layer -3; the model has layers 0 to 29"),
        ({"skip": "3,99"}, "there is no layer 99"),
        ({"skip": "3,0a"}, "must run the attention of layer 0"),
        ({"exit_layer": 4, "heads": "no.exits"}, r"heads: no\.exits: cannot be read"),
    ],
)
def test_layers_that_the_model_does_not_have_are_refused_before_it_loads(
    create: Any, options: dict[str, Any], message: str
) -> None:
    assert create(exit_layer=29)["method"] == "custom_class"
    assert create(skip="1,29a,0m")["method"] == "custom_class"
    for policy in ("swift", "clasp", "conflayers"):
        assert create(policy=policy)["method"] == "custom_class"
    with pytest.raises(SettingsError, match=rf"^specplug\.layerskip: .*{message}"):
        create(**options)


def test_a_model_with_too_few_layers_to_search_is_refused(create: Any) -> None:
    shallow = {"hf_text_config": SimpleNamespace(num_hidden_layers=2)}
    with pytest.raises(SettingsError, match="between the first and the last"):
        create(shallow, policy="swift")


def test_slots_are_reserved_unless_the_user_has_a_scheduler() -> None:
    for given in (None, lookahead.PATH):
        arguments = SimpleNamespace(scheduler_cls=given)
        lookahead.reserve(arguments)
        assert arguments.scheduler_cls == lookahead.PATH
    theirs = SimpleNamespace(scheduler_cls="their.Scheduler")
    lookahead.reserve(theirs)
    assert theirs.scheduler_cls == "their.Scheduler"
    with pytest.raises(AttributeError, match="no attribute 'Scheduler'"):
        lookahead.Scheduler  # noqa: B018


LLAMA = sublayers.Call(1, 2, 2)


def test_sublayers_that_are_not_built_as_llamas_cannot_be_left_out_alone() -> None:
    parts = [
        sublayers.Parts(object(), object(), None, LLAMA),
        sublayers.Parts(object(), None, None, LLAMA),
    ]
    sublayers.check(Plan.skipping(2, [1], [1]), parts)
    with pytest.raises(
        SkipPlanError, match=r"the attention of layer 1 .* cannot be left out alone"
    ):
        sublayers.check(Plan.skipping(2, [1]), parts)
    with pytest.raises(SkipPlanError, match="the plan is for 3 layers, the model has 2"):
        sublayers.check(Plan.full(3), parts)
    kept = SimpleNamespace(kv_cache_config=SimpleNamespace(num_blocks=4), kv_caches=[])
    with pytest.raises(SkipPlanError, match=r"layer 0 .* cannot be searched"):
        layer_probe.check(kept, parts[1:])
    kept.kv_caches = [np.zeros((2, 4, 16))]
    with pytest.raises(SkipPlanError, match=r"shape \(2, 4, 16\), expected a multiple of 4 blocks"):
        layer_probe.check(kept, [parts[0]._replace(mlp=object())])


def test_a_model_whose_depth_is_not_known_is_judged_when_it_is_there(create: Any) -> None:
    assert create({"hf_text_config": SimpleNamespace()}, exit_layer=400)["method"] == "custom_class"


@pytest.mark.parametrize(
    ("trait", "message"),
    [
        ("use_mla", r"not with multi-head latent attention \(MLA\) so far"),
        ("is_hybrid", "keeps recurrent state"),
        ("is_attention_free", "keeps recurrent state"),
        ("uses_mrope", "positions of several dimensions"),
    ],
)
def test_models_that_are_known_not_to_work_are_refused_before_they_load(
    create: Any, trait: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        create({trait: True}, exit_layer=4)


def test_the_dotted_name_is_refused_where_the_short_one_is(create: Any) -> None:
    with pytest.raises(SettingsError, match="not with tensor_parallel_size 2"):
        create(engine={"tensor_parallel_size": 2}, exit_layer=4)


def test_a_misspelt_name_is_told_of_this_method() -> None:
    with pytest.raises(SettingsError, match=r"did you mean 'layerskip'\? valid names: .*layerskip"):
        translate({**config(exit_layer=4), "method": "specplug.layerskipp"})
