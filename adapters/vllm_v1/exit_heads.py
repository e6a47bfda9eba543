"""Exit heads beside a model of vLLM: which model it is, read from its checkpoint's files, and the maps as tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.adapters.common.torch_layers import apply_head, head_tensors, rows_of
from specplug.errors import ExitHeadError
from specplug.layers.exit_file import load_heads
from specplug.layers.exit_head import ExitHead
from specplug.layers.fingerprint import common_name, fingerprint

#: The file that says in which file each weight of a checkpoint lies.
INDEX = "model.safetensors.index.json"


class ExitHeads:
    """The heads of a file, for one model.

    The loaded model cannot be asked for its name: vLLM fuses matrices, and packs them so that they cannot be read.

    Args:
        path: of the file.
        vllm_config: vLLM's.
        layers: of the model.

    Raises:
        ExitHeadError: no file of heads, heads of another model, or a model whose files cannot be looked at.
    """

    def __init__(self, path: Path, vllm_config: Any, layers: int) -> None:
        model = vllm_config.model_config
        hidden = int(model.hf_text_config.hidden_size)
        name = checkpoint_fingerprint(_folder(model, vllm_config.load_config), layers)
        self.heads = load_heads(path, name, hidden, layers)
        self.bytes = 0
        self._tensors: dict[int, list[Any]] = {}

    def apply(self, exit_layer: int | None, states: Any) -> Any:
        """States behind the last norm, ``[n, d]``, as final ones; as they are where no head was fitted."""
        head = None if exit_layer is None else self.heads.get(exit_layer)
        if head is None or exit_layer is None:
            return states
        if exit_layer not in self._tensors:
            self._tensors[exit_layer] = self._move(head, states)
        return apply_head(self._tensors[exit_layer], states)

    def _move(self, head: ExitHead, states: Any) -> list[Any]:
        found = head_tensors(head, states.device, states.dtype)
        self.bytes += sum(part.numel() * part.element_size() for part in found)
        return found


def checkpoint_fingerprint(folder: Path, layers: int) -> str:
    """Of the safetensors files of a checkpoint; reads a few rows of each weight of its first ``layers`` layers.

    A checkpoint may hold layers that are no part of the model (for drafts of its own), and every weight once more
    under other names: only files that the index names count, if there is one.

    Raises:
        ExitHeadError: there are no such files, or they cannot be read.
    """
    try:
        paths = _files(folder)
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ExitHeadError(f"{folder / INDEX}: cannot be read: {error!r}") from error
    if not paths:
        raise ExitHeadError(
            f"{folder}: no safetensors files, by which exit heads know their model; drafts need the checkpoint that "
            "specplug fit-exit was given"
        )
    try:
        with ExitStack() as stack:
            weights = (weight for path in paths for weight in _weights(path, stack))
            return fingerprint(w for w in weights if _layer(w[0]) < layers)
    except OSError as error:
        raise ExitHeadError(f"{folder}: cannot be read: {error}") from error


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        return [
            folder / name
            for name in sorted({*json.loads(index.read_text())["weight_map"].values()})
        ]
    return [
        path for path in sorted(folder.glob("*.safetensors")) if "consolidated" not in path.name
    ]


def _layer(name: str) -> int:
    found = re.match(r"layers\.(\d+)\.", common_name(name))
    return int(found.group(1)) if found else -1


def _weights(
    path: Path, stack: ExitStack
) -> Iterator[tuple[str, tuple[int, ...], Callable[[int], NDArray[np.float32]]]]:
    # As tensors: numpy has no bfloat16.
    from safetensors import SafetensorError, safe_open

    try:
        opened = stack.enter_context(safe_open(path, framework="pt"))
        for name in opened.keys():  # noqa: SIM118  not a dictionary
            if common_name(name):
                part = opened.get_slice(name)
                yield name, tuple(part.get_shape()), rows_of(part)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error


def _folder(model: Any, load: Any) -> Path:
    """Where vLLM has loaded the model from."""
    if Path(model.model).is_dir():
        return Path(model.model)
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            model.model,
            revision=model.revision,
            cache_dir=getattr(load, "download_dir", None),
            local_files_only=True,
        )
    except (OSError, ValueError) as error:  # not in the cache, or no name of a repository
        raise ExitHeadError(
            f"{model.model}: its files were not found ({error}), by which exit heads know their model; give vLLM a "
            "folder"
        ) from error
    return Path(found)
