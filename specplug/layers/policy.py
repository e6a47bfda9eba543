"""What an executor of layer skipping and the policies that steer it owe each other.

The executor asks a policy for the plan of the next draft, drafts while a stop rule lets it, has the target verify, and
tells both what came of it. A policy may then ask the executor, through a :class:`Probe`, for what only the model can
answer. Policies and rules decide from the past alone, so none of them can change what the model says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplug.layers.plan import Plan
from specplug.types import IntArray

States: TypeAlias = NDArray[np.float64]


class Feedback(NamedTuple):
    """What came of the draft of one request in one step.

    Attributes:
        confidences: of the drafted tokens, in order; see :meth:`StopRule.proposes`.
        accepted: how many of them were right.
        verified: drafted tokens that the target verified, if a controller cut the draft; None: all. One more than these
            can be known to be right, by the target's own token, without having gained anything.
    """

    confidences: tuple[float, ...]
    accepted: int
    verified: int | None = None

    @property
    def gained(self) -> int:
        """Tokens that the draft added to the step."""
        return self.accepted if self.verified is None else min(self.accepted, self.verified)

    @property
    def drafted(self) -> int:
        """Drafted tokens."""
        return len(self.confidences)


class Trial(NamedTuple):
    """How a plan would have drafted the text that the model has already said.

    Attributes:
        matched: tokens that it would have got right.
        tested: tokens that it was tried on; 0 if there is no text yet.
        similarity: mean cosine between its final hidden states and the model's own, between -1 and 1.
    """

    matched: int
    tested: int
    similarity: float


class Probe(Protocol):
    """What a policy may ask of the model, about text that is certain. ``d`` is the hidden size, ``L`` the layers."""

    @property
    def layers(self) -> int:
        """``L``."""

    def states(self) -> States:
        """Hidden states of the last verified token, float64 ``[L + 1, d]``: before layer 0, then after each layer."""

    def run_layer(self, layer: int, states: States) -> States:
        """One layer of the model at the position of the last verified token, on ``n`` states: float64 ``[n, d]``."""

    def try_plan(self, plan: Plan) -> Trial:
        """Draft the recent text with ``plan``, all tokens at once: one pass over them, and one of all layers."""

    def outputs(self) -> tuple[States, States]:
        """What the attention and the MLP sublayers add in the recent text: float64 ``[L, n, d]`` each, ``n`` tokens."""


class LayerPolicy(Protocol):
    """Chooses what a draft pass runs."""

    @property
    def layers(self) -> int:
        """Of the model that it was built for."""

    def plan(self) -> Plan:
        """For the next draft of the whole batch; cheap."""

    def observe(self, feedback: Feedback, probe: Probe) -> None:
        """One request was verified. May use the probe, whose answers cost passes of the model."""


class StopRule(Protocol):
    """Decides how far a draft goes.

    Sampled drafts keep the target's law only if the decision whether a position is proposed sees the law ``q`` that its
    token will be drawn from, never the token. Both questions are asked before the token is drawn, so any answer is
    safe; for greedy drafts the token is a function of ``q`` anyway.
    """

    def begin(self) -> None:
        """A new draft."""

    def runs(self) -> bool:
        """Whether one more draft pass is worth its time; asked before it runs."""

    def proposes(self, confidence: float) -> bool:
        """Whether the position is proposed, by the largest probability in its ``q``; false ends the draft."""

    def observe(self, feedback: Feedback) -> None:
        """One request was verified; a draft that ended before its first token counts too.

        Called any number of times per :meth:`begin`, once for each request of the batch, also for requests that had no
        room for a draft.
        """


class BatchExecutor(Protocol):
    """An engine that can run parts of its model for some of its requests, on its own weights and KV cache.

    A draft is made pass by pass, one token per request and pass; what the passes write into the KV cache is written
    again when the whole model verifies.
    """

    @property
    def layers(self) -> int:
        """Decoder layers of the model."""

    def check(self, plan: Plan) -> None:
        """Refuse a plan that the model cannot run.

        Raises:
            SkipPlanError: it leaves out parts that the executor cannot leave out, or is for another model.
        """

    def use_heads(self, path: Path) -> frozenset[int]:
        """Apply the exit heads of a file from now on, at exits that have one; returns these exits.

        Raises:
            ExitHeadError: no file of heads, or heads of another model.
        """

    def check_search(self) -> None:
        """Refuse a model that :meth:`probe` cannot look at.

        Raises:
            SkipPlanError: what is in the way.
        """

    def probe(self, request_id: str) -> Probe | None:
        """Answers about a request until its next step; None while it has too little text. Changes nothing of it."""

    def rooms(self, request_ids: Sequence[str]) -> IntArray:
        """The most draft passes for which each request has a place in the KV cache: int32 ``[B]``."""

    def run(
        self, plan: Plan, request_ids: Sequence[str], tokens: IntArray, place: int
    ) -> tuple[IntArray, NDArray[np.float64]]:
        """One pass; ``tokens`` (int32 ``[B]``) stand ``place`` positions after the newest certain token.

        Returns:
            The most likely next token of each request, int32 ``[B]``, and its probability, float64 ``[B]``.
        """
