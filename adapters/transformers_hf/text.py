"""Drafts from text, for steps at which there are any: suffix index, datastores, any registered proposer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specplug import registry
from specplug.adapters.transformers_hf.decoder import Decoder
from specplug.errors import SkipPlanError
from specplug.session import Session
from specplug.types import TOKEN_DTYPE, Context, Request


class TextDrafts:
    """A proposer that drafts from text, asked before any layer is run; where it has nothing, the model drafts.

    Which of the two drafts depends on the past alone, so the law of the output stays what it is. Text that one sequence
    has said serves the next.

    Args:
        decoder: the model; its configuration says how long a sequence may get.
        name: of a registered proposer, such as ``"suffix"`` or ``"rest"``.
        options: of the proposer, as in an engine's configuration.
        max_draft: the most tokens of a draft.

    Raises:
        UnknownProposerError, InvalidProposerError, SettingsError: see :func:`specplug.registry.build`.
        SkipPlanError: a proposer of trees or of drawn drafts.
    """

    def __init__(
        self,
        decoder: Decoder,
        name: str = "suffix",
        options: Mapping[str, Any] | None = None,
        max_draft: int = 16,
    ) -> None:
        config = decoder.model.config.get_text_config()
        context = Context(
            vocab_size=decoder.vocab_size,
            max_length=int(getattr(config, "max_position_embeddings", 1 << 15)),
            max_draft=max_draft,
            max_requests=1,
            trees=False,
        )
        proposer = registry.build(name, context, options)
        if proposer.capabilities.trees or proposer.capabilities.sampled:
            raise SkipPlanError(
                f"{name} drafts trees or draws its drafts; text drafts beside layer skipping are chains that follow "
                "from the text, as those of specplug.suffix"
            )
        self.session = Session(proposer, context)
        self._sequences = 0

    def begin(
        self, prompt: list[int], limit: int, stops: frozenset[int], temperature: float
    ) -> str:
        """A sequence starts; returns its name."""
        self._sequences += 1
        name = str(self._sequences)
        request = Request(
            name,
            prompt_length=len(prompt),
            stop_token_ids=stops,
            max_output=limit,
            temperature=temperature,
        )
        self.session.begin(request, np.array(prompt, TOKEN_DTYPE))
        return name

    def draft(self, name: str, history: list[int]) -> list[int]:
        """What the text suggests after ``history`` (prompt and output); often nothing."""
        out = self.session.step([name], [np.array(history, TOKEN_DTYPE)])
        drafts: list[int] = out.tokens[0, : out.lengths[0]].tolist()
        return drafts

    def end(self, name: str) -> None:
        """The sequence is over; what it said is kept for the next ones."""
        self.session.finish(name, keep=True)
