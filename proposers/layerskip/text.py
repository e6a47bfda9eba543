"""Text before layers: another proposer is asked first, and passes are made where it has nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug import registry
from specplug.errors import SettingsError
from specplug.types import Context, DraftBuffers, IntArray

#: What drafts of the layers are called among the sources.
LAYERS = "layers"


class Text:
    """A proposer of chains in front of layer skipping; its slots are those of the session.

    Args:
        context: limits of the engine process.
        name: registered, such as ``"suffix"``.
        options: of that proposer.

    Attributes:
        inner: the proposer.
        names, sources: as :class:`specplug.sources.DraftSources` wants them; the last name is :data:`LAYERS`.

    Raises:
        SettingsError: a proposer of trees or of drawn drafts, or one that needs passes itself.
    """

    def __init__(self, context: Context, name: str, options: Mapping[str, Any]) -> None:
        self.inner = registry.build(name, context, options)
        does = self.inner.capabilities
        if does.trees or does.sampled or does.passes:
            raise SettingsError(
                f"specplug.layerskip: option 'text' names a proposer of chains that follow from the text, such as "
                f"'suffix', got {name!r}"
            )
        self.shares = does.shares_requests
        inner: Any = self.inner
        names = tuple(map(str, getattr(inner, "source_names", ()) or ())) or (name,)
        self._own: NDArray[np.uint8] | None = inner.draft_sources if len(names) > 1 else None
        self.names = (*names, LAYERS)
        self.sources = np.zeros((context.max_requests, context.max_draft), np.uint8)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Drafts from text for all rows; most often for some of them."""
        self.inner.propose(slots, ceilings, out)
        np.minimum(out.lengths, ceilings, out=out.lengths)
        self.sources[slots] = 0 if self._own is None else self._own[slots, : self.sources.shape[1]]

    def mark(self, slots: IntArray) -> None:
        """These slots are drafted by layers in this step."""
        self.sources[slots] = len(self.names) - 1

    def set_verify_cost(self, cost: float) -> None:
        """What verifying costs, for a proposer that wants to know."""
        tell = getattr(self.inner, "set_verify_cost", None)
        if tell is not None:
            tell(cost)

    def close(self) -> None:
        """The process ends."""
        end = getattr(self.inner, "close", None)
        if end is not None:
            end()

    def memory(self) -> dict[str, int]:
        """Bytes, as the proposer names them."""
        ask = getattr(self.inner, "memory", None)
        return dict(ask()) if ask is not None else {}
