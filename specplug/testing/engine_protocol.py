"""What a test, a demo or a benchmark asks of a serving engine, whichever engine it is.

Everything here is plain data that survives JSON, because the engine runs in a process of its own. Sampling
parameters carry the names of the OpenAI API and of vLLM (``temperature``, ``top_p``, ``max_tokens``,
``stop``, ``seed``, ``n``, ``logprobs``, ...), plus ``json_schema``; the process that hosts another engine translates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

#: A text, a list of token ids, or a chat (a list of ``{"role": ..., "content": ...}``).
Prompt = str | list[int] | list[dict[str, str]]
#: Sampling parameters by their OpenAI names.
Params = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One engine step of one request: what was to be verified and what the engine sampled.

    ``sampled`` is the accepted part of ``draft`` and one token more. It may run past the request's end, because the
    verifier does not know about stop conditions; :attr:`Completion.token_ids` is what was delivered.
    """

    draft: tuple[int, ...]
    sampled: tuple[int, ...]

    @property
    def accepted(self) -> int:
        """How many drafted tokens the target confirmed."""
        return max(0, len(self.sampled) - 1) if self.draft else 0


@dataclass(frozen=True)
class Completion:
    """One finished sequence."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    #: For every token the log-probabilities (nats) of the sampled token and of the best ones, by token id.
    logprobs: tuple[dict[int, float], ...] | None = None
    #: Filled by drivers that see the scheduler; prefill steps that sampled nothing are left out.
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Result:
    """The answer to one prompt; ``n`` completions where the parameters asked for ``n``."""

    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    cached_tokens: int = 0

    @property
    def only(self) -> Completion:
        """The completion of a request that asked for one."""
        if len(self.completions) != 1:
            raise ValueError(f"this request has {len(self.completions)} completions, not one")
        return self.completions[0]


@dataclass(frozen=True)
class Batch:
    """The answers to prompts that were submitted together, in their order."""

    results: tuple[Result, ...]
    #: From the first submission to the last token, inside the engine's process.
    seconds: float
    #: Engine steps that the batch took.
    engine_steps: int

    @property
    def generated_tokens(self) -> int:
        """Delivered tokens of all completions."""
        return sum(len(c.token_ids) for r in self.results for c in r.completions)

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        """The token ids of every completion, requests in order."""
        return [c.token_ids for r in self.results for c in r.completions]


@dataclass(frozen=True)
class Counters:
    """Totals since the engine started; subtract two snapshots with ``-``."""

    drafted_steps: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    generated_tokens: int = 0
    preemptions: int = 0
    #: What the speculation plugin counts itself, if it says.
    own: dict[str, Any] = field(default_factory=dict)

    def __sub__(self, before: Counters) -> Counters:
        """The counts between two snapshots; ``own`` is the later one."""
        padded = (*before.accepted_per_position, *[0] * len(self.accepted_per_position))
        positions = zip(self.accepted_per_position, padded, strict=False)
        return Counters(
            drafted_steps=self.drafted_steps - before.drafted_steps,
            draft_tokens=self.draft_tokens - before.draft_tokens,
            accepted_tokens=self.accepted_tokens - before.accepted_tokens,
            accepted_per_position=tuple(late - early for late, early in positions),
            generated_tokens=self.generated_tokens - before.generated_tokens,
            preemptions=self.preemptions - before.preemptions,
            own=self.own,
        )

    @property
    def mal_per_drafted_step(self) -> float:
        """Mean acceptance length (tokens) over request-steps that had a draft; 1.0 if there were none."""
        return 1.0 + self.accepted_tokens / self.drafted_steps if self.drafted_steps else 1.0

    @property
    def mal_per_step(self) -> float:
        """Mean tokens per decode step of a request, steps without a draft counted.

        Every decode step emits one token of its own beside the accepted ones, so the number of steps is the number of
        emitted tokens less the accepted ones. Tokens that the target sampled past a request's end make this a
        slight underestimate.
        """
        steps = self.generated_tokens - self.accepted_tokens
        return self.generated_tokens / steps if steps > 0 else 1.0


class Driver(Protocol):
    """A running engine. Every method blocks until the engine has answered."""

    @property
    def log_tail(self) -> str:
        """The last lines of the engine's own log."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: Params | Sequence[Params],
        *,
        abort_after: Mapping[int, int] | None = None,
        raw_seed: int | None = None,
    ) -> Batch:
        """Submit all prompts at once and serve them to the end.

        Args:
            prompts: one request each.
            params: for all of them, or one per prompt.
            abort_after: cancel request ``i`` in mid-flight as soon as it has this many tokens.
            raw_seed: reseed the engine's global generator first (requests without a ``seed``
                draw from it), so that a statistical test gives the same answer every time.

        Raises:
            EngineRequestError: the engine refused a request; the engine lives on.
            EngineProcessError: the engine died or ran out of time.
        """

    def tokenize(self, prompt: Prompt) -> list[int]:
        """The token ids that the engine makes of a prompt."""

    def metrics(self) -> Counters:
        """Totals since the start."""

    def info(self) -> dict[str, Any]:
        """Engine and model: ``versions``, ``vocab_size``, ``eos_token_id``, ``start_seconds``, ..."""

    def close(self) -> None:
        """End the engine and everything it started. Safe to call twice."""


class EngineRequestError(ValueError):
    """The engine refused a request with a message of its own; ``kind`` is its exception's class."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class EngineProcessError(RuntimeError):
    """The engine's process did not start, died, or did not answer in time."""
