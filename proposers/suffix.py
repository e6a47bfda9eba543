"""Drafts from text: what this request, or another one, said after the same words.

Where nothing is found nothing is drafted. How candidates are found and ranked is described in
:mod:`specplug.kernels.candidates`, :mod:`specplug.kernels.ranking` and :mod:`specplug.kernels.drafting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specplug.settings import option
from specplug.types import (
    Capabilities,
    Context,
    DraftBuffers,
    IntArray,
    Observed,
    Request,
    TokenArray,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from specplug.index.keeper import StoreKeeper
    from specplug.index.suffix import SuffixIndex


@dataclass(frozen=True)
class SuffixSettings:
    """Options of ``specplug.suffix``."""

    store_mb: float = option(
        64.0,
        minimum=0.0,
        maximum=1_000_000.0,
        help="Memory for the outputs of finished requests, in MB (2**20 bytes), 47,000 to 55,000 tokens each; "
        "0 keeps none, so that requests share nothing.",
        tune=(0.0, 16.0, 64.0, 256.0),
    )
    verify_cost: float = option(
        0.03,
        minimum=0.0,
        maximum=10.0,
        help="What verifying one more draft token costs, as a fraction of a plain decoding step. "
        "Larger values draft less. The controller 'goodput' starts from it and goes on with what it measures.",
    )
    share_prompts: bool = option(
        False,
        help="Keep the prompts of finished requests too, not only what was answered. They fill the store faster.",
    )
    share_running: bool = option(
        True,
        help="Draft from answers that other requests are still writing too, not only from finished ones.",
    )
    common: str | None = option(
        None,
        help="Namespace whose outputs serve requests of all namespaces, beside those of their own, such as "
        "'namespace=docs'; '' is that of the requests without one.",
    )
    tree: bool = option(
        False,
        help="Draft trees instead of chains: what else may come, beside the most probable. "
        "For an engine that verifies trees.",
    )
    store_path: str | None = option(
        None,
        help="File that keeps the store over restarts: loaded at the start, saved now and then and at the end.",
    )
    store_save_seconds: float = option(
        60.0,
        minimum=0.0,
        maximum=86400.0,
        help="The most seconds until new text is saved to store_path, if no quiet one comes before; 0 never saves.",
    )


class SuffixProposer:
    """See the module. Built with :class:`SuffixSettings`; all kernels are compiled before it returns."""

    Settings = SuffixSettings
    #: What :attr:`draft_sources` numbers: the request's prompt, its own output, other requests.
    source_names = ("prompt", "output", "store")

    def __init__(self, context: Context, settings: SuffixSettings) -> None:
        from specplug.index.suffix import SuffixIndex

        self.capabilities = Capabilities(
            trees=settings.tree and context.trees, shares_requests=settings.store_mb > 0
        )
        self._keep = settings.store_mb > 0
        self._keeps_prompts = settings.share_prompts
        self._stops: dict[int, frozenset[int]] = {}
        self.index: SuffixIndex = SuffixIndex(
            *(context, int(settings.store_mb * 2**20), settings.verify_cost),
            *(settings.common, settings.share_running),
        )
        self.keeper: StoreKeeper | None = None
        if settings.store_path and self._keep:
            self.keeper = _keeper(self.index, context, settings)

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self._stops[slot] = request.stop_token_ids
        self.index.start(slot, request.namespace, request.prompt_length, history, request.shares)

    def observe(self, observed: Observed) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.index.observe(observed)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.index.draft(slots, ceilings, out)

    @property
    def draft_sources(self) -> NDArray[np.uint8]:
        """By slot, where each token of the last draft came from: uint8 ``[max_requests, max_draft]``, a view."""
        return self.index.state.log.sources

    def set_verify_cost(self, cost: float) -> None:
        """What verifying one more draft token costs from now on, as a fraction of a plain step."""
        self.index.cost = float(cost)

    def finish(self, slot: int, keep: bool) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        stops = self._stops.pop(slot, frozenset())
        self.index.finish(slot, keep and self._keep, stops, self._keeps_prompts)

    def close(self) -> None:
        """The engine shuts down: what is new in the store is saved, if there is a file for it."""
        if self.keeper is not None:
            self.keeper.close()

    def memory(self) -> dict[str, int]:
        """Bytes and tokens of the running requests and of the shared store; the ranking tables are constant."""
        index = self.index
        return {
            "request_bytes": index.live_bytes,
            "request_tokens": index.live_tokens,
            "store_bytes": index.store_bytes,
            "store_tokens": index.stored_tokens,
            "store_capacity": index.store_capacity,
            "store_evicted": index.evicted_tokens,
        }

    def state_digest(self) -> bytes:
        """Of all that later drafts depend on, for :mod:`specplug.checksum`; reads the whole state."""
        return self.index.state_digest()

    def check_invariants(self) -> str:
        """ "" or a sentence naming the first broken invariant; reads the whole state."""
        return self.index.check_invariants()


def _keeper(index: SuffixIndex, context: Context, settings: SuffixSettings) -> StoreKeeper:
    from specplug.index.keeper import StoreKeeper
    from specplug.index.store_file import Vocabulary

    digest = context.tokenizer() if context.tokenizer is not None else ""
    assert settings.store_path is not None
    return StoreKeeper(
        index,
        Path(settings.store_path).expanduser().absolute(),
        settings.store_save_seconds if context.saves else 0.0,
        Vocabulary(context.vocab_size, digest),
    )
