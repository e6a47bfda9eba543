"""``specplug.layerskip`` in vLLM: what is translated, what is refused, and where a draft may write."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specplug.adapters.vllm_v1 import layers
from specplug.adapters.vllm_v1.options import translate, unpack
from specplug.errors import HostMismatchError, SettingsError, SkipPlanError


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
        SettingsError, match=r"^specplug\.layerskip: unknown option 'exit'; valid names: exit_layer"
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
    return SimpleNamespace(input_batch=batch, max_model_len=52, kv_cache_config=cache, **changed)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(layers, "_stack", lambda model: [object()] * 3)

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
    with pytest.raises(SkipPlanError, match="positions of several dimensions"):
        built(uses_mrope=True)
