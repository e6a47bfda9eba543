"""A model of one layer and few words, random but always the same: for engines that are slow by the word.

Triton's interpreter takes half a second for a token of a vocabulary of 49,152 that is sampled in vLLM's V2 runner.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCABULARY = 64
HIDDEN, HEAD, HEADS, INNER = 128, 64, 2, 192


def make_tiny(model: str, folder: Path, seed: int = 3) -> str:
    """Write the model; tokenizer and settings are those of ``model``, whose architecture it has. Returns the folder.

    Prompts must be given as token ids below :data:`VOCABULARY`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in Path(model).iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, folder / path.name)
    config = json.loads((folder / "config.json").read_text())
    config.update(
        hidden_size=HIDDEN,
        head_dim=HEAD,
        num_attention_heads=HEADS,
        num_key_value_heads=1,
        num_hidden_layers=1,
        intermediate_size=INNER,
        vocab_size=VOCABULARY,
        dtype="float32",
    )
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(seed)

    def random(rows: int, columns: int, scale: float) -> np.ndarray:
        return rng.normal(scale=scale, size=(rows, columns)).astype(np.float32)

    layer = "model.layers.0."
    weights = {
        # Tied to the output: logits differ by some two nats, so a few of the words are likely, none is certain.
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN, 0.16),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        layer + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
        layer + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        layer + "self_attn.q_proj.weight": random(HEADS * HEAD, HIDDEN, 0.1),
        layer + "self_attn.k_proj.weight": random(HEAD, HIDDEN, 0.1),
        layer + "self_attn.v_proj.weight": random(HEAD, HIDDEN, 0.1),
        layer + "self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD, 0.1),
        layer + "mlp.gate_proj.weight": random(INNER, HIDDEN, 0.1),
        layer + "mlp.up_proj.weight": random(INNER, HIDDEN, 0.1),
        layer + "mlp.down_proj.weight": random(HIDDEN, INNER, 0.1),
    }
    save_file(weights, folder / "model.safetensors")
    return str(folder)
