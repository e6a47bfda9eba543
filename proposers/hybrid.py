"""The request's own text, finished outputs and datastores together: whichever promises most drafts.

Made of :mod:`specplug.proposers.suffix` and one :mod:`specplug.proposers.rest` per datastore; how their drafts
compete is described in :mod:`specplug.kernels.contest`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specplug.errors import SettingsError
from specplug.proposers.rest import (
    DATASTORE_HELP,
    Forwarding,
    RestSettings,
    folders,
    preflight,
    sources,
)
from specplug.proposers.suffix import SuffixProposer, SuffixSettings
from specplug.settings import option
from specplug.types import Context

if TYPE_CHECKING:
    from specplug.index.contest import ContestProposer


@dataclass(frozen=True)
class HybridSettings(SuffixSettings):
    """Options of ``specplug.hybrid``: those of ``specplug.suffix``, and the datastores."""

    datastore: str = option(
        "", help=DATASTORE_HELP + " Without one, only the text of requests is used."
    )
    refresh_s: float = option(
        RestSettings.refresh_s,
        minimum=0.0,
        maximum=86_400.0,
        help="Seconds between two looks for a new version of a datastore.",
    )

    def preflight(self, vocab_size: int = 0, tokenizer: Callable[[], str] | None = None) -> None:
        """Refuse what a server could not start with, see :func:`specplug.registry.preflight`."""
        if self.tree and folders(self.datastore):
            raise SettingsError(
                "specplug.hybrid: option 'tree' goes without a datastore, got "
                f"datastore={self.datastore!r}; drop one of the two, or draft trees with specplug.suffix"
            )
        preflight("specplug.hybrid", self.datastore, vocab_size, tokenizer)


class HybridProposer(Forwarding):
    """See the module. Built with :class:`HybridSettings`; all kernels are compiled before it returns."""

    Settings = HybridSettings

    def __init__(self, context: Context, settings: HybridSettings) -> None:
        from specplug.index.contest import ContestProposer as Contest

        settings.preflight(context.vocab_size, context.tokenizer)
        suffix = SuffixProposer(context, settings)
        stores = sources(context, settings.datastore, settings.verify_cost, settings.refresh_s)
        self.capabilities = suffix.capabilities
        self.suffix = suffix
        self.contest: ContestProposer | None = None
        self.inner: SuffixProposer | ContestProposer = suffix
        if stores:
            self.inner = self.contest = Contest(
                context, [("suffix", suffix), *stores], settings.verify_cost
            )

    def close(self) -> None:
        """See :meth:`specplug.proposers.suffix.SuffixProposer.close`."""
        self.inner.close()

    def memory(self) -> dict[str, int]:
        """See :meth:`specplug.proposers.suffix.SuffixProposer.memory`; a datastore lies in the page cache."""
        return self.suffix.memory()

    def check_invariants(self) -> str:
        """ "" or a sentence naming the first broken invariant; reads the whole state."""
        return self.suffix.check_invariants()
