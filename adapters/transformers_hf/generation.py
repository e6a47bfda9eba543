"""Decoding in which the model drafts for itself: draft with a plan, verify with all layers, keep what holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplug import verify
from specplug.adapters.transformers_hf.cache import crop
from specplug.adapters.transformers_hf.decoder import Decoder, as_numpy
from specplug.adapters.transformers_hf.probe import WINDOW, ModelProbe
from specplug.adapters.transformers_hf.text import TextDrafts
from specplug.errors import InvalidRequestError, SkipPlanError
from specplug.layers.exit_head import ExitHead, Moments
from specplug.layers.policy import Feedback, LayerPolicy, StopRule
from specplug.types import PROB_DTYPE, TOKEN_DTYPE, ProbArray

#: From a law (float64 ``[V]``) to a token.
Draw: TypeAlias = Callable[[ProbArray], int]
#: From the target's laws (float ``[n + 1, V]``), the drafts' laws (``[n, V]``) and the drafts to the tokens emitted.
Judge: TypeAlias = Callable[[NDArray[Any], NDArray[Any], list[int]], list[int]]


@dataclass
class Report:
    """One sequence, and what it took.

    Attributes:
        tokens: of the output, the stop token included.
        steps: verifications, one token or more each.
        drafted_steps: those that verified a draft.
        drafted, accepted: draft tokens of the model.
        text_drafted, text_accepted: draft tokens from text; such steps count among ``drafted_steps`` too.
        draft_passes: of parts of the model, one token each.
        seconds: per activity: ``prefill``, ``draft``, ``verify``, ``policy``.
    """

    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    drafted_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    text_drafted: int = 0
    text_accepted: int = 0
    draft_passes: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("prefill", "draft", "verify", "policy"), 0.0)
    )

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the tokens that the model drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mal(self) -> float:
        """Mean acceptance length: tokens per step, with a draft or without."""
        return len(self.tokens) / self.steps if self.steps else 0.0

    @property
    def mal_drafted(self) -> float:
        """The same over steps that verified a draft."""
        accepted = self.accepted + self.text_accepted
        return 1.0 + accepted / self.drafted_steps if self.drafted_steps else 0.0


class SelfSpeculation:
    """Self-speculative decoding of single sequences.

    Args:
        model: a causal language model of transformers, or a :class:`Decoder` of one.
        policy: what a draft pass runs.
        stop: how far a draft goes.
        max_draft: the most draft tokens per step.
        heads: fitted exit heads by exit layer, see :func:`specplug.layers.exit_file.load_heads`.
        window: output tokens that a policy's trials look at.
        collect: moments by exit layer, fed with the states of every verified token: exit heads can be fitted
            (:meth:`Moments.fit`) while the model serves. A product of ``d * d`` numbers per token and exit.
        text: drafts from text, which come first: layers are skipped only where it has none.

    Raises:
        SkipPlanError: the model is not supported, or the policy is for another number of layers.
    """

    def __init__(
        self,
        model: Any,
        policy: LayerPolicy,
        stop: StopRule,
        *,
        max_draft: int = 4,
        heads: dict[int, ExitHead] | None = None,
        window: int = WINDOW,
        collect: dict[int, Moments] | None = None,
        text: TextDrafts | None = None,
    ) -> None:
        self.decoder = model if isinstance(model, Decoder) else Decoder(model)
        if policy.layers != self.decoder.layers:
            raise SkipPlanError(
                f"the policy is for {policy.layers} layers, {self.decoder.name} has {self.decoder.layers}; build it "
                f"with {self.decoder.layers}"
            )
        if max_draft < 0:
            raise SkipPlanError(f"max_draft must be at least 0, got {max_draft}")
        self.policy = policy
        self.stop = stop
        self.max_draft = max_draft
        self.heads = heads or {}
        self.collect = collect or {}
        self.text = text
        wrong = [k for k in self.collect if not 1 <= k < self.decoder.layers]
        if wrong:
            raise SkipPlanError(
                f"collect: exits must lie between 1 and {self.decoder.layers - 1}, got {wrong[0]}"
            )
        self.probe = ModelProbe(self.decoder, self.heads, window)

    def generate(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        params: verify.SamplingParams | None = None,
        *,
        stop_token_ids: Collection[int] = (),
        seed: int = 0,
        draw: Draw | None = None,
        judge: Judge | None = None,
    ) -> Report:
        """Continue ``prompt``.

        Args:
            prompt: token ids, at least one.
            max_new_tokens: the most output tokens.
            params: how tokens are drawn; greedy by default.
            stop_token_ids: the output ends with the first of these.
            seed: of everything that is drawn at random.
            draw, judge: for proofs: what draws draft tokens and what verifies them, instead of uniforms from ``seed``
                and :mod:`specplug.verify`.

        Raises:
            InvalidRequestError: an empty prompt, an id outside of the vocabulary, or a limit below 1.
        """
        _check(prompt, max_new_tokens, self.decoder.vocab_size)
        run = _Run(self, params or verify.SamplingParams(temperature=0.0), seed, draw, judge)
        return run.complete(
            [int(token) for token in prompt], max_new_tokens, frozenset(stop_token_ids)
        )


class _Run:
    """One sequence. ``cache`` holds all tokens but the last whenever a step begins."""

    def __init__(
        self,
        owner: SelfSpeculation,
        params: verify.SamplingParams,
        seed: int,
        draw: Draw | None,
        judge: Judge | None,
    ) -> None:
        self.owner, self.decoder, self.params = owner, owner.decoder, params
        self.plain = params == verify.SamplingParams(temperature=0.0)
        self.coins = np.random.default_rng(seed)
        self.draw = draw or self._draw
        self.judge = judge or self._judge
        self.report = Report()
        self.cache = self.decoder.new_cache()
        self.prompt: list[int] = []
        self.name = ""

    def complete(self, prompt: list[int], limit: int, stops: frozenset[int]) -> Report:
        """Prefill, then steps until the end."""
        self.prompt = prompt
        text = self.owner.text
        if text is not None:
            self.name = text.begin(prompt, limit, stops, self.params.temperature)
        try:
            if len(prompt) > 1:
                self._timed("prefill", self.decoder.fill, prompt[:-1], self.cache)
            while len(self.report.tokens) < limit:
                if self._step(limit, stops):
                    break
        finally:
            if text is not None:
                text.end(self.name)
        return self.report

    def _step(self, limit: int, stops: frozenset[int]) -> bool:
        """One verification; whether it ended the output."""
        report = self.report
        # The last token of a step is the target's own, so a draft may leave room for it.
        room = limit - len(report.tokens) - 1
        passes, before = report.draft_passes, dict(report.seconds)
        drafts, laws = self._timed("draft", self._from_text, room)
        from_text, confidences = len(drafts), []
        if not drafts:
            room = min(self.owner.max_draft, room)
            drafts, laws, confidences = self._timed("draft", self._drafts, room)
        emitted = self._timed("verify", self._verify, drafts, laws)
        kept = len(emitted) - 1
        report.steps += 1
        report.drafted_steps += bool(drafts)
        if from_text:
            report.text_drafted += from_text
            report.text_accepted += kept
        else:
            report.drafted += len(drafts)
            report.accepted += kept
        over = next((i + 1 for i, token in enumerate(emitted) if token in stops), len(emitted))
        report.tokens += emitted[:over]
        if over < len(emitted) or emitted[over - 1] in stops:
            return True
        if not from_text:
            self._tell_times(report.draft_passes - passes, before)
            self._timed("policy", self._observe, Feedback(tuple(confidences), kept))
        return False

    def _tell_times(self, passes: int, before: dict[str, float]) -> None:
        """Rules that weigh drafts against their time may have a method ``timed``."""
        timed = getattr(self.owner.stop, "timed", None)
        if timed is not None and passes > 0:
            seconds = self.report.seconds
            timed(
                (seconds["draft"] - before["draft"]) / passes, seconds["verify"] - before["verify"]
            )

    def _from_text(self, room: int) -> tuple[list[int], list[ProbArray]]:
        """Drafts from text, as draws from laws that know no other token."""
        text = self.owner.text
        drafts = [] if text is None else text.draft(self.name, self._history())[: max(0, room)]
        laws = np.zeros((len(drafts), self.decoder.vocab_size))
        laws[np.arange(len(drafts)), drafts] = 1.0
        return drafts, list(laws)

    def _drafts(self, room: int) -> tuple[list[int], list[ProbArray], list[float]]:
        """Draft tokens, the laws they were drawn from, and their confidences; the cache is as before afterwards."""
        drafts: list[int] = []
        laws: list[ProbArray] = []
        confidences: list[float] = []
        stop = self.owner.stop
        stop.begin()
        plan = self.owner.policy.plan()
        head = None if plan.exit_layer is None else self.owner.heads.get(plan.exit_layer)
        history = self._history()
        with self.decoder.running(plan, head):
            while len(drafts) < room and stop.runs():
                last = drafts[-1] if drafts else history[-1]
                scores = self.decoder.logits([last], self.cache)
                self.report.draft_passes += 1
                confidence = _confidence(scores[0])
                if not stop.proposes(confidence):
                    break
                law = self._laws(scores[None], drafts, [])[0]
                drafts.append(int(law.argmax()) if self.plain else self.draw(law))
                laws.append(law)
                confidences.append(confidence)
        crop(self.cache, len(history) - 1)
        return drafts, laws, confidences

    def _verify(self, drafts: list[int], laws: list[ProbArray]) -> list[int]:
        """One pass of the whole model; the cache then holds all that is certain but the last token."""
        history = self._history()
        blocks = self.decoder.blocks
        with self.decoder.watching_inputs() as first, self.decoder.watching(blocks) as seen:
            scores = self.decoder.logits([history[-1], *drafts], self.cache)
        target = self._laws(scores[None], [], drafts)
        stacked = np.stack(laws) if laws else np.zeros((0, self.decoder.vocab_size))
        emitted = self.judge(target, stacked, drafts)
        kept = len(emitted) - 1
        crop(self.cache, len(history) + kept)
        self.trace = [as_numpy(states[kept]) for states in (*first, *seen)]
        self._collect(seen, kept + 1)
        return emitted

    def _collect(self, seen: list[Any], certain: int) -> None:
        """Feed the moments with the states of the first ``certain`` positions of a verification."""
        if not self.owner.collect:
            return
        final = self.decoder.normed(seen[-1][:certain])
        for layer, moments in self.owner.collect.items():
            moments.add(self.decoder.normed(seen[layer - 1][:certain]), final)

    def _observe(self, feedback: Feedback) -> None:
        owner = self.owner
        owner.probe.update(self.cache, self._history(), len(self.report.tokens), self.trace)
        owner.stop.observe(feedback)
        owner.policy.observe(feedback, owner.probe)

    def _laws(self, scores: NDArray[Any], before: list[int], drafts: list[int]) -> ProbArray:
        """The law (or, greedy without any transformation, the scores) at each position: float64 ``[n + 1, V]``."""
        if self.plain:
            return np.asarray(scores[0], PROB_DTYPE)
        past = verify.Past(self.prompt, [*self.report.tokens, *before])
        tokens = np.array([drafts], TOKEN_DTYPE).reshape(1, len(drafts))
        found = verify.target_probs(scores, [self.params], [past], tokens, np.array([len(drafts)]))
        return np.asarray(found[0], PROB_DTYPE)

    def _history(self) -> list[int]:
        return [*self.prompt, *self.report.tokens]

    def _draw(self, law: ProbArray) -> int:
        sums = np.cumsum(law)
        token = int(np.searchsorted(sums, self.coins.random() * sums[-1], side="right"))
        # Rounding can leave the coin behind the last sum; the last token that can be drawn takes it.
        return min(token, int(np.flatnonzero(law)[-1]))

    def _judge(self, target: NDArray[Any], laws: NDArray[Any], drafts: list[int]) -> list[int]:
        tokens, lengths = np.array([drafts], TOKEN_DTYPE).reshape(1, -1), [len(drafts)]
        if self.plain:
            return verify.greedy(target[None], tokens, lengths).row(0)
        uniforms = self.coins.random((1, len(drafts) + 1))
        return verify.reject_sampled(target[None], laws[None], tokens, lengths, uniforms).row(0)

    def _timed(self, what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            self.report.seconds[what] += time.perf_counter() - start


def _confidence(scores: NDArray[Any]) -> float:
    """The largest probability before any transformation."""
    return float(1.0 / np.exp(scores - scores.max()).sum())


def _check(prompt: Sequence[int], max_new_tokens: int, vocab_size: int) -> None:
    if len(prompt) == 0:
        raise InvalidRequestError("the prompt is empty; give it at least one token")
    wrong = [token for token in prompt if not 0 <= token < vocab_size]
    if wrong:
        raise InvalidRequestError(
            f"the prompt holds id {wrong[0]}, the model's ids are 0 to {vocab_size - 1}"
        )
    if max_new_tokens < 1:
        raise InvalidRequestError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
