"""What a proposer and a controller must and may do.

A proposer guesses, a controller decides how many guesses are worth verifying, the target decides which of
them are true. Nothing a proposer does can change what the model says: a wrong guess costs time only.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specplug.types import Capabilities, DraftBuffers, IntArray, Observed, Request, TokenArray


@runtime_checkable
class Proposer(Protocol):
    """Guesses the next tokens of a batch of requests.

    A proposer is built once per engine process, as ``factory(context, settings)`` with a
    :class:`~specplug.types.Context` and an instance of its ``Settings`` dataclass (``factory(context)`` where it
    declares none). It is called from one thread. The session calls it in this order, per slot:
    ``start`` once, then any number of ``observe`` and ``propose``, then ``finish`` once; the slot may then
    be started again for another request. Requests that are preempted are simply absent for a while.

    The rule of losslessness: a draft may depend on anything known before the target's coins of this step are
    drawn, never on those coins. With ``capabilities.sampled``, whether a position is proposed at all may depend on
    its distribution, never on the token that was drawn from it; and every token is drawn by an attribute ``draw``,
    a function from a law (float64 ``[V]``) to a token, which the test kit replaces to follow all draws.
    """

    capabilities: Capabilities

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """A request takes ``slot``; ``history`` (int32 ``[n]``) is its prompt and any output it has already.

        Must copy what it keeps. Must forget whatever the slot held before. May defer the indexing of
        a long history to later calls.
        """

    def observe(self, observed: Observed) -> None:
        """Tokens became certain for some slots. Must accept any number of tokens per slot, none included."""

    def propose(self, slots: IntArray, ceilings: IntArray, out: DraftBuffers) -> None:
        """Write drafts for ``slots`` (int32 ``[B]``, each at most once) into ``out``.

        Must write at most ``ceilings[i]`` (int32 ``[B]``) tokens into row ``i``, and set ``out.lengths[i]``. May
        write none. Must not draft ids outside the vocabulary. Must give a row the same draft whatever other rows are in
        the batch, and in whatever order.
        """

    def finish(self, slot: int, keep: bool) -> None:
        """The request in ``slot`` is over. Must free its state; may keep its text for others only if ``keep``."""


@runtime_checkable
class Controller(Protocol):
    """Decides, every step and for every request, how many drafts are worth verifying."""

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """Write into ``ceilings`` (int32 ``[B]``) at most ``limits[i]`` (int32 ``[B]``) draft tokens per row.

        May depend on the past and on the clock, never on what the target will draw in this step.
        """

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """How the last drafts of these slots fared: int32 ``[B]`` each; called for drafted rows only."""
