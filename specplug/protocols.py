"""What a proposer and a controller must and may do.

A proposer guesses, a controller decides how many guesses are worth verifying, the target decides which of
them are true. Nothing a proposer does can change what the model says: a wrong guess costs time only.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specplug.types import (
    Capabilities,
    DraftBuffers,
    IntArray,
    Observed,
    ProbArray,
    Request,
    TokenArray,
)


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

    A proposer that stops by itself where more drafts would not pay may have a method ``set_verify_cost(cost: float)``:
    the session tells it before every ``propose`` what one more draft token costs, as a fraction of a plain step.
    """

    capabilities: Capabilities

    def start(self, slot: int, request: Request, history: TokenArray) -> None:
        """A request takes ``slot``; ``history`` (int32 ``[n]``) is its prompt and any output it has already.

        Must copy what it keeps. Must forget whatever the slot held before. May defer the indexing of
        a long history to later calls.
        """

    def observe(self, observed: Observed) -> None:
        """Tokens became certain for some slots. Must accept any number of tokens per slot, none included.

        The caller's arrays are overwritten at its next call.
        """

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
    """Decides, every step and for every request, how many drafts are worth verifying.

    One that does not care how drafts fare may have an attribute ``learns = False``: then :meth:`observe` is not called.
    It is read once, as is the attribute ``verify_cost``, a method of one that tells proposers what verifying costs.
    """

    def plan(self, slots: IntArray, limits: IntArray, ceilings: IntArray) -> None:
        """Write into ``ceilings`` (int32 ``[B]``) at most ``limits[i]`` (int32 ``[B]``) draft tokens per row.

        May depend on the past and on the clock, never on what the target will draw in this step.
        """

    def observe(self, slots: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """How the last drafts of these slots fared: int32 ``[B]`` each; called for drafted rows only."""


@runtime_checkable
class TrimmingController(Controller, Protocol):
    """A controller that also looks at the drafts, and cuts them to what pays.

    Only for drafts that are a deterministic function of the past (chains, not drawn): then what is cut is one too.
    The session refuses it for proposers with ``capabilities.sampled``: drawn tokens must not decide what is proposed.
    Per step and slot the order is ``plan``, ``trim``, and, when the target has answered, ``compare``, ``observe``.
    """

    trims: bool

    def begin(self, slot: int, request: Request) -> None:
        """A request takes ``slot``; what was learned about the one before must be forgotten."""

    def trim(self, slots: IntArray, survival: ProbArray, lengths: IntArray) -> None:
        """Shorten ``lengths`` (int32 ``[B]``); ``survival`` is that of the draft buffers, float64 ``[B, K]``."""

    def compare(self, slots: IntArray, tested: IntArray, agreed: IntArray) -> None:
        """What the target said about the offered drafts, cut or not: int32 ``[B]`` each.

        The first ``tested`` tokens of a row's offer could be judged, the first ``agreed`` of them were what the
        target emitted (``tested`` is ``agreed`` or one more). The target's own token judges one position more than
        was verified.
        """


@runtime_checkable
class PassPlanner(Protocol):
    """A controller that also decides how many passes of a model are made to draft, before each of them.

    A proposer with ``capabilities.passes`` and a method ``use_planner(planner)`` is given its controller, if that is
    one. During ``propose`` it asks :meth:`first_pass`, then :meth:`next_pass` after each pass, and tells
    :meth:`passed` how long they took together. An engine's adapter may ask the proposer ``rests()`` before a step, and
    leave the session alone if so; the proposer asks :meth:`rests`.
    """

    def first_pass(
        self, slots: IntArray, limits: IntArray, text: tuple[IntArray, ProbArray, IntArray]
    ) -> bool:
        """Whether a pass pays, or is worth a try, for ``slots`` (int32 ``[B]``) with room for ``limits`` tokens.

        Args:
            text: rows of the same step with drafts that took no pass: slots int32 ``[T]``, survival float64 ``[T, K]``,
                lengths int32 ``[T]``.
        """

    def next_pass(self, rows: NDArray[np.int64], survival: ProbArray) -> bool:
        """Whether one more pays.

        Args:
            rows: int64 ``[R]``, those of :meth:`first_pass` with room for it, as places in its ``slots``.
            survival: float64 ``[R, n]``, of the ``n`` tokens that each of them has, as in the draft buffers.
        """

    def passed(self, slots: IntArray, passes: int, seconds: float) -> None:
        """``passes`` were made for ``slots`` (int32 ``[B]``) and took ``seconds`` together."""

    def rests(self) -> bool:
        """Whether no pass will be made in this step, whatever it is like; called once per step."""
