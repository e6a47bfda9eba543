"""Tiny models of many architectures, random but always the same: four layers, written as checkpoints that engines load.

Their answers mean nothing. Weights are large enough that the best token is well ahead, and that every sublayer matters.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LAYERS, HIDDEN, HEADS, GROUPS, INNER, VOCABULARY = 4, 128, 4, 2, 192, 2048

#: Weights of the last two layers, beside those of others: drafts without them are right now and then.
LATE = 0.5


class Family(NamedTuple):
    """One architecture of transformers.

    Attributes:
        name: its ``model_type``.
        more: of the configuration, beside the sizes that all have.
    """

    name: str
    more: Mapping[str, Any] = {}


_EXPERTS = {"moe_intermediate_size": INNER, "num_experts": 4, "num_experts_per_tok": 2}
_FULL = ["full_attention"] * LAYERS
_MIXED = ["sliding_attention", "full_attention"] * 2
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}
#: Of families without grouped queries: vLLM reads this wherever it stands.
_ALL: dict[str, Any] = {"num_key_value_heads": HEADS}
#: What is expected to draft.
FAMILIES = {
    family.name: family
    for family in (
        Family("llama"),
        Family("qwen2"),
        Family("qwen3"),
        Family("mistral", {"sliding_window": None}),
        Family("phi3", {"pad_token_id": 0, "sliding_window": None}),
        Family("gemma", {"head_dim": 32}),
        Family("olmo2"),
        Family("smollm3", {"pad_token_id": 0}),
        Family("granite", {"attention_multiplier": 0.2, "residual_multiplier": 0.7}),
        Family("stablelm", {"use_parallel_residual": False}),
        Family("gpt_neox", {**_ALL, "use_parallel_residual": True}),
        Family("cohere"),
        Family(
            "falcon", {"new_decoder_architecture": True, "num_kv_heads": GROUPS, "alibi": False}
        ),
        Family("phi", _ALL),
        Family("starcoder2", {"sliding_window": None}),
        Family("nemotron"),
        Family("glm4", {"head_dim": 32, "pad_token_id": 0}),
        Family("gpt2", _ALL),
        Family("opt", {**_ALL, "word_embed_proj_dim": HIDDEN, "ffn_dim": INNER}),
        Family("bloom", {**_ALL, "tie_word_embeddings": True}),
        Family("mixtral", {"num_local_experts": 4, "sliding_window": None}),
        Family("qwen2_moe", {**_EXPERTS, "shared_expert_intermediate_size": INNER}),
        Family("qwen3_moe", _EXPERTS),
        Family("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
        Family("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
        Family("gemma2", {"head_dim": 32, "sliding_window": 64, "tie_word_embeddings": True}),
        Family("gemma3_text", {"head_dim": 32, "sliding_window": 64, "layer_types": _MIXED}),
        Family("cohere2", {"sliding_window": 64}),
        Family("exaone4", {"sliding_window": None, "layer_types": _FULL}),
        Family("gpt_oss", {"head_dim": 32, "num_local_experts": 4, "sliding_window": 64}),
    )
}
#: What keeps recurrent state.
RECURRENT = {
    family.name: family
    for family in (
        Family(
            "mamba2",
            {"num_heads": 8, "head_dim": 32, "n_groups": 1, "state_size": 16, "chunk_size": 16},
        ),
        Family("falcon_h1", {**_MAMBA, "mamba_d_ssm": 256}),
        Family(
            "jamba",
            {
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "num_experts": 1,
                "use_mamba_kernels": False,
            },
        ),
        Family(
            "granitemoehybrid",
            {
                **_MAMBA,
                "layer_types": ["mamba", "attention"] * 2,
                "num_local_experts": 0,
                "shared_intermediate_size": INNER,
                "position_embedding_type": "rope",
            },
        ),
        Family(
            "lfm2",
            {
                "layer_types": ["conv", "full_attention"] * 2,
                "block_ff_dim": INNER,
                "block_auto_adjust_ff_dim": False,
            },
        ),
    )
}


def build(family: Family, seed: int = 0) -> Any:
    """The model of transformers, in float32."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(
        family.name,
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": GROUPS,
            "intermediate_size": INNER,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **family.more,
        },
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    coins = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "conv" not in name:
                draw = torch.randn(weight.shape, generator=coins) * weight.shape[-1] ** -0.5
                weight.copy_(draw * (LATE if ".2." in name or ".3." in name else 1.0))
            elif "norm" not in name and name.endswith("bias"):
                weight.copy_(torch.randn(weight.shape, generator=coins) * 0.1)
    return model.eval()


def save(family: Family, folder: Path, tokenizer: str, seed: int = 0) -> str:
    """Write the checkpoint; prompts must be given as token ids below :data:`VOCABULARY`. Returns the folder.

    Args:
        family: see there.
        folder: is made.
        tokenizer: the folder of a model, whose tokenizer is copied in.
        seed: of the weights.
    """
    build(family, seed).save_pretrained(folder)
    for path in Path(tokenizer).iterdir():
        if path.suffix in (".json", ".jinja") and not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)
    (folder / "generation_config.json").write_text(
        json.dumps({"bos_token_id": 1, "eos_token_id": 2})
    )
    return str(folder)
