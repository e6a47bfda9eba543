"""Runs parts of the target model between two steps of vLLM's V1 model runner, on its weights and its KV cache.

A draft pass writes keys and values only into slots that the request owns already: the scheduler reserves them
(:mod:`specplug.adapters.vllm_v1.lookahead`), the block table says how many, and where there are fewer, a draft is
shorter. The verification computes all of these positions again with all layers before anything reads them, and blocks
are shared with other requests only when they are full of certain tokens. What the verification does not come to,
because the request ends or the draft is cut, stays behind the end of the text, where attention may still multiply it by
0: harmless as long as it is finite, and :meth:`LayerExecutor.run` sees to that. Passes run eagerly, whatever the engine
compiles or captures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug import registry
from specplug._host import HostSymbol, check_symbols
from specplug.adapters.common import host_logger
from specplug.adapters.vllm_v1 import layer_probe
from specplug.adapters.vllm_v1.exit_heads import ExitHeads
from specplug.adapters.vllm_v1.looking import take_apart
from specplug.adapters.vllm_v1.passes import DraftStep, forward_context
from specplug.adapters.vllm_v1.sublayers import check, stubs
from specplug.errors import HostMismatchError, SettingsError, SkipPlanError
from specplug.layers.plan import Plan
from specplug.layers.policy import Probe
from specplug.layers.swapping import swapped
from specplug.types import LENGTH_DTYPE, TOKEN_DTYPE, IntArray

log = host_logger("vllm")

METHOD = "specplug.layerskip"
#: The registered form of the proposer that needs this.
PROPOSER = registry.of_layers()[METHOD][0]
#: What users may call it.
NAMES = (METHOD, f"specplug.{PROPOSER}")
#: Of vLLM's ModelConfig, and what is wrong where it is true.
_PROBLEMS = {
    "use_mla": "not with multi-head latent attention (MLA) so far, whose cache was never tried",
    "is_hybrid": "the model keeps recurrent state, which cannot be rolled back after a draft",
    "is_attention_free": "the model keeps recurrent state, which cannot be rolled back after a draft",
    "uses_mrope": "not with positions of several dimensions",
}

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_BATCH = "vllm.v1.worker.gpu_input_batch"
#: The names of vLLM that only this method needs; it alone is refused where one is missing.
SYMBOLS = (
    HostSymbol(
        "vllm.forward_context",
        "set_forward_context",
        ("attn_metadata", "vllm_config", "num_tokens"),
        purpose="called: a draft pass",
    ),
    HostSymbol(
        "vllm.v1.attention.backend", "CommonAttentionMetadata", purpose="built: a draft pass"
    ),
    HostSymbol(_RUNNER, "GPUModelRunner.attn_groups", purpose="read: builders of metadata"),
    HostSymbol(
        "vllm.v1.worker.utils",
        "AttentionGroup.build_metadata",
        ("common_attn_metadata",),
        purpose="called: metadata of a draft pass",
    ),
    HostSymbol(_RUNNER, "GPUModelRunner.kv_cache_config", purpose="read: the kind of cache"),
    HostSymbol(_RUNNER, "GPUModelRunner.kv_caches", purpose="written: the placeholder block"),
    HostSymbol(_BATCH, "InputBatch.num_prompt_tokens", purpose="read: where output begins"),
    HostSymbol(_RUNNER, "GPUModelRunner.get_model", purpose="called: the target model"),
    HostSymbol(
        "vllm.v1.worker.block_table", "BlockTable.num_blocks_per_row", purpose="read: slots owned"
    ),
    HostSymbol("vllm.v1.worker.block_table", "BlockTable.block_table", purpose="read: slots"),
    HostSymbol(
        "vllm.v1.core.sched.scheduler",
        "Scheduler.num_lookahead_tokens",
        purpose="overridden: slots for drafts",
    ),
)


def refuse(engine_args: Any, v2: bool) -> None:
    """Refuse what the passes cannot do, before the model loads.

    Raises:
        SettingsError: the V2 model runner, several ranks, LoRA, or a KV cache that is sent or kept elsewhere.
        HostMismatchError: this vLLM lacks a name that the passes need.
    """
    missing = [report.problem for report in check_symbols(SYMBOLS) if report.problem]
    if missing:
        raise HostMismatchError(f"{METHOD}: vLLM lacks what it relies on: {'; '.join(missing)}")
    if v2:
        raise SettingsError(
            f"{METHOD}: not in vLLM's V2 model runner so far; set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = int(getattr(engine_args, name, 1) or 1)
        if value > 1:
            raise SettingsError(
                f"{METHOD}: not with {name} {value} so far, because only one rank drafts; set it to 1, or use "
                "specplug.suffix"
            )
    for name in ("enable_lora", "kv_transfer_config", "kv_offloading_size"):
        if getattr(engine_args, name, None):
            raise SettingsError(f"{METHOD}: not with {name} so far; use specplug.suffix")


def refuse_model(options: Mapping[str, Any], model_config: Any) -> None:
    """Refuse what this model cannot do, as far as its configuration tells, before it loads.

    Whether windows of attention get a cache of their own is decided later, by vLLM, and what its layers are called is
    known when they are there: see :class:`LayerExecutor`.

    Args:
        options: of the proposer, checked.
        model_config: vLLM's, of the target.

    Raises:
        SettingsError: layers that the model does not have, or a cache or positions of another kind.
    """
    for problem in _PROBLEMS:
        if getattr(model_config, problem, False):
            raise SettingsError(f"{METHOD}: {_PROBLEMS[problem]}; use specplug.suffix")
    layers = getattr(getattr(model_config, "hf_text_config", None), "num_hidden_layers", None)
    settings = registry.load(PROPOSER).settings_type
    if not isinstance(layers, int) or settings is None:
        return
    try:
        settings(**options).plan(layers)
    except SkipPlanError as error:
        raise SettingsError(f"{METHOD}: {error}") from None


class LayerExecutor:
    """See :class:`specplug.layers.policy.BatchExecutor`.

    Attributes:
        heads: fitted exit heads, if there are any.

    Args:
        runner: vLLM's model runner, its model loaded and its KV cache allocated.

    Raises:
        SkipPlanError: a model that is not taken apart, a cache that cannot be written twice, or what :func:`refuse`
            would have refused had it been asked.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._model = runner.get_model() if hasattr(runner, "get_model") else runner.model
        self._check_place()
        self.heads: ExitHeads | None = None
        self._step: DraftStep | None = None
        self._overflowed = False
        self._check_cache()
        self._parts = take_apart(runner, self._model)

    @property
    def layers(self) -> int:
        """Of the model."""
        return len(self._parts)

    def check(self, plan: Plan) -> None:
        """Refuse a plan that this model cannot run."""
        check(plan, self._parts)

    def use_heads(self, path: Path) -> frozenset[int]:
        """Of the file, for the checkpoint that vLLM has loaded."""
        self.heads = ExitHeads(path, self._runner.vllm_config, self.layers)
        return frozenset(self.heads.heads)

    def check_search(self) -> None:
        """Refuse a model that a probe cannot look at."""
        layer_probe.check(self._runner, self._parts)

    def probe(self, request_id: str) -> Probe | None:
        """About the text in the last block of the request's cache."""
        row = self._runner.input_batch.req_id_to_index[request_id]
        found = layer_probe.LayerProbe(self._runner, self._model, self._parts, self.heads, row)
        return found if found.span >= layer_probe.LEAST else None

    def rooms(self, request_ids: Sequence[str]) -> IntArray:
        """Slots that each request owns from its newest token on."""
        batch = self._runner.input_batch
        table = batch.block_table[0]
        rooms = np.zeros(len(request_ids), LENGTH_DTYPE)
        for i, request_id in enumerate(request_ids):
            row = batch.req_id_to_index[request_id]
            known = int(batch.num_tokens_no_spec[row])
            owned = int(table.num_blocks_per_row[row]) * int(table.block_size)
            last = min(owned, int(self._runner.max_model_len) - 1)
            rooms[i] = max(0, last - (known - 1))
        return rooms

    def run(
        self, plan: Plan, request_ids: Sequence[str], tokens: IntArray, place: int
    ) -> tuple[IntArray, NDArray[np.float64]]:
        """One token per request through the layers of ``plan``; where that overflows, the same token at chance 0."""
        import torch

        if place == 0 or self._step is None or self._step.request_ids != tuple(request_ids):
            self._step = DraftStep(self._runner, request_ids)
        common = self._step.at(place)
        ids = torch.as_tensor(np.ascontiguousarray(tokens), dtype=torch.int32)
        ids = ids.to(self._runner.device)
        with torch.inference_mode(), self._running(plan), forward_context(self._runner, common):
            states = self._forward(ids, common)
            if self.heads is not None:
                states = self.heads.apply(plan.exit_layer, states)
            scores = self._model.compute_logits(states).float()
            best = scores.max(dim=-1)
            chances = torch.exp(best.values - torch.logsumexp(scores, dim=-1)).cpu().numpy()
        found: IntArray = best.indices.cpu().numpy().astype(TOKEN_DTYPE)
        finite = np.isfinite(chances)
        if not finite.all():
            self._mend(ids, common)
            found = np.where(finite, found, tokens).astype(TOKEN_DTYPE)
        return found, np.where(finite, chances, 0.0).astype(np.float64)

    def _forward(self, ids: Any, common: Any) -> Any:
        return self._model(
            input_ids=ids,
            positions=common.positions,
            intermediate_tensors=None,
            inputs_embeds=None,
        )

    def _mend(self, ids: Any, common: Any) -> None:
        """A pass has overflowed: write its keys and values anew with all layers.

        Should the request end now, nobody else would, and infinity times 0 makes NaN of whoever gets the block next.
        """
        import torch

        with torch.inference_mode(), forward_context(self._runner, common):
            self._forward(ids, common)
        if not self._overflowed:
            self._overflowed = True
            log.warning(
                "%s: draft passes overflow with the layers that are left out; their tokens are worth nothing "
                "(answers are not affected)",
                METHOD,
            )

    def _running(self, plan: Plan) -> AbstractContextManager[None]:
        return swapped(stubs(plan, self._parts))

    def _check_place(self) -> None:
        """Once more where the layers are lent: proposers of other packages may ask for them, and vLLM may add to what
        was configured."""
        config = self._runner.vllm_config
        parallel = config.parallel_config
        for name in ("world_size", "data_parallel_size"):
            value = int(getattr(parallel, name, 1))
            if value > 1:
                raise SkipPlanError(
                    f"{METHOD}: not with {name} {value} so far, because only one rank drafts; use specplug.suffix"
                )
        for name in ("lora_config", "kv_transfer_config"):
            if getattr(config, name, None) is not None:
                raise SkipPlanError(f"{METHOD}: not with {name} so far; use specplug.suffix")

    def _check_cache(self) -> None:
        groups = self._runner.kv_cache_config.kv_cache_groups
        kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
        if len(groups) == 1 and "MLA" in kinds[0]:
            raise SkipPlanError(f"{METHOD}: {_PROBLEMS['use_mla']}; use specplug.suffix")
        if len(groups) != 1 or kinds != ["FullAttentionSpec"]:
            raise SkipPlanError(
                f"{METHOD}: the model's cache consists of {kinds} in {len(groups)} groups; only full attention can be "
                "written twice at one position, recurrent state and sliding windows cannot; use specplug.suffix, or, "
                "where only windows differ, vLLM's option disable_hybrid_kv_cache_manager"
            )
        if getattr(self._runner, "uses_mrope", False):
            raise SkipPlanError(
                f"{METHOD}: not with positions of several dimensions; use specplug.suffix"
            )
