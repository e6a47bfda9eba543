"""Drafts from a corpus: what documents, code or logged answers in a datastore say after the same words.

The datastore is built by ``specplug datastore build``. The method follows REST (He et al. 2023, arXiv 2311.08252); how
look-ups work is described in :mod:`specplug.kernels.lookup`, how occurrences become a draft in
:mod:`specplug.kernels.merging`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specplug.errors import DatastoreError, SettingsError
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

    from specplug.index.contest import ContestProposer
    from specplug.index.rest import RestIndex
    from specplug.proposers.suffix import SuffixProposer

#: Children per node of a tree, at most; with three a wide choice of first tokens is cut too early.
BRANCHES = 8

DATASTORE_HELP = (
    "Folder of the datastore; several are separated by commas. 'NAME=FOLDER' serves the namespace NAME only; "
    "{namespace} in a folder stands for the namespace of the request."
)


@dataclass(frozen=True)
class RestSettings:
    """Options of ``specplug.rest``."""

    datastore: str = option("", help=DATASTORE_HELP)
    verify_cost: float = option(
        0.03,
        minimum=0.0,
        maximum=10.0,
        help="What verifying one more draft token costs, as a fraction of a plain decoding step. "
        "Larger values draft less.",
    )
    tree: bool = option(
        False,
        help="Draft trees instead of chains; one datastore only, and an engine that verifies trees.",
    )
    refresh_s: float = option(
        2.0,
        minimum=0.0,
        maximum=86_400.0,
        help="Seconds between two looks for a new version of the datastore.",
    )

    def preflight(self, vocab_size: int = 0, tokenizer: Callable[[], str] | None = None) -> None:
        """Refuse what a server could not start with, see :func:`specplug.registry.preflight`."""
        count = len(folders(self.datastore))
        if count == 0:
            raise SettingsError(
                "specplug.rest: option 'datastore' must name a folder that `specplug datastore build` made, "
                f"got {self.datastore!r}"
            )
        if self.tree and count > 1:
            raise SettingsError(
                f"specplug.rest: option 'tree' goes with one datastore, got {count}; merge them with "
                "`specplug datastore merge`, or draft chains"
            )
        preflight("specplug.rest", self.datastore, vocab_size, tokenizer)


def preflight(where: str, value: str, vocab_size: int, tokenizer: Callable[[], str] | None) -> None:
    """Read the headers of the datastores in an option, without compiling anything; those of namespaces may come later.

    Args:
        where: what messages begin with.
        value: of the option ``datastore``.
        vocab_size: of the model; 0 if it is not known yet.
        tokenizer: digest of the model's vocabulary; asked only if a datastore names one.

    Raises:
        SettingsError: one is missing, damaged, of a later version, or does not fit the model.
    """
    from specplug.index.datastore_format import PLACEHOLDER, check_header, file_of, read_header

    digest: str | None = None
    for _, folder in folders(value):
        if PLACEHOLDER in folder:
            continue
        try:
            header = read_header(folder)
            if header.vocabulary and digest is None:
                digest = "" if tokenizer is None else tokenizer()
            if vocab_size:
                check_header(header, str(file_of(folder)), vocab_size, digest or "")
        except DatastoreError as error:
            raise SettingsError(f"{where}: option 'datastore': {error}") from error


def folders(value: str) -> list[tuple[str | None, str]]:
    """Namespace (None: all) and folder of every datastore in an option.

    >>> folders("docs, acme=/data/acme")
    [(None, 'docs'), ('acme', '/data/acme')]
    """
    found: list[tuple[str | None, str]] = []
    for part in filter(None, (part.strip() for part in value.split(","))):
        name, equals, folder = part.partition("=")
        found.append((name.strip(), folder.strip()) if equals else (None, part))
    return found


def sources(
    context: Context, value: str, cost: float, refresh: float, branches: int = 1
) -> list[tuple[str, RestIndex]]:
    """A source per datastore of the option ``datastore``, under the name that the user wrote."""
    from specplug.index.rest import RestIndex

    return [
        (
            folder if namespace is None else f"{namespace}={folder}",
            RestIndex(
                *(context, folder),
                namespace=namespace,
                cost=cost,
                branches=branches,
                refresh=refresh,
            ),
        )
        for namespace, folder in folders(value)
    ]


class Forwarding:
    """A proposer whose work is done by another one, chosen when it is built."""

    inner: RestIndex | ContestProposer | SuffixProposer

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.inner.start(slot, request, history)

    def observe(self, observed: Observed) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.inner.observe(observed)

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.inner.propose(slots, ceilings, out)

    def finish(self, slot: int, keep: bool) -> None:
        """See :class:`specplug.protocols.Proposer`."""
        self.inner.finish(slot, keep)

    @property
    def source_names(self) -> tuple[str, ...]:
        """What :attr:`draft_sources` numbers."""
        return self.inner.source_names

    @property
    def draft_sources(self) -> NDArray[np.uint8] | None:
        """By slot, where each token of the last draft came from; None where there is one source."""
        return self.inner.draft_sources

    def set_verify_cost(self, cost: float) -> None:
        """What verifying one more draft token costs from now on, as a fraction of a plain step."""
        self.inner.set_verify_cost(cost)

    def state_digest(self) -> bytes:
        """Of all that later drafts depend on besides the files, for :mod:`specplug.checksum`."""
        return self.inner.state_digest()


class RestProposer(Forwarding):
    """See the module. Built with :class:`RestSettings`; all kernels are compiled before it returns."""

    Settings = RestSettings

    def __init__(self, context: Context, settings: RestSettings) -> None:
        from specplug.index.contest import ContestProposer as Contest

        settings.preflight(context.vocab_size, context.tokenizer)
        trees = settings.tree and context.trees
        found = sources(
            *(context, settings.datastore, settings.verify_cost, settings.refresh_s),
            BRANCHES if trees else 1,
        )
        self.capabilities = Capabilities(trees=trees)
        self.inner: RestIndex | ContestProposer = (
            found[0][1] if len(found) == 1 else Contest(context, found, settings.verify_cost)
        )
