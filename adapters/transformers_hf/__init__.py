"""Self-speculative decoding with Hugging Face transformers: the model drafts with some of its layers left out.

:class:`SelfSpeculation` decodes one sequence at a time, for research and for people without a server. Nothing of torch
or transformers is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specplug.adapters.transformers_hf.decoder import Decoder
    from specplug.adapters.transformers_hf.generation import SelfSpeculation
    from specplug.adapters.transformers_hf.text import TextDrafts

_HOME = {"Decoder": "decoder", "SelfSpeculation": "generation", "TextDrafts": "text"}

__all__ = ["Decoder", "SelfSpeculation", "TextDrafts"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"specplug.adapters.transformers_hf.{_HOME[name]}"), name)
    raise AttributeError(
        f"module 'specplug.adapters.transformers_hf' has no attribute {name!r}; public names: {', '.join(__all__)}"
    )
