"""The data that travels between an engine adapter, the session and a proposer.

Array conventions, used everywhere in the package:

* ``B`` rows (requests in this step), ``K`` draft positions (the ceiling of the step), ``V`` vocabulary size;
* token ids are ``int32`` (:data:`TOKEN_DTYPE`), lengths and slots ``int32``, probabilities ``float64``;
* an id below zero or at least ``V`` is no token of the vocabulary: it is a *separator*, which no match
  crosses and no draft contains (multimodal placeholders arrive this way);
* ragged data is a flat array plus ``offsets`` of length ``B + 1``; row ``i`` is ``flat[offsets[i]:offsets[i + 1]]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specplug.errors import InvalidRequestError

TOKEN_DTYPE = np.int32
LENGTH_DTYPE = np.int32
PROB_DTYPE = np.float64

#: The separator that the session writes in place of ids outside the vocabulary.
SEPARATOR = -1

#: Value of ``parents`` for a draft node that hangs on the last committed token.
ROOT = -1

TokenArray: TypeAlias = NDArray[np.int32]
IntArray: TypeAlias = NDArray[np.int32]
ProbArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer does, declared so that adapters and the test kit need not guess.

    Attributes:
        trees: drafts may branch; ``parents`` of the draft buffers is written.
        sampled: tokens are drawn from ``draft_probs``, which is written too; otherwise every draft token is a
            deterministic function of what was observed (a one-hot draft distribution).
        shares_requests: what one request said can appear in the drafts of another.
        target_states: needs the target's hidden states, which not every adapter can give.
        passes: drafts cost passes of a model, which a controller may plan; see
            :class:`specplug.protocols.PassPlanner`.
    """

    trees: bool = False
    sampled: bool = False
    shares_requests: bool = False
    target_states: bool = False
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """The fixed facts of one engine process, given to a proposer when it is built.

    Attributes:
        vocab_size: number of real token ids, padding of the embedding matrix excluded.
        max_length: the most tokens (prompt and output) that a request can ever hold.
        max_draft: the most draft tokens per request and step.
        max_requests: the most requests alive at once; slots are ``0 .. max_requests - 1``.
        threads: the most threads that look-ups may use; 1 means none besides the caller's.
        tokenizer: computes :func:`specplug.vocabulary.vocabulary_digest` of the model's tokenizer ("" if that cannot
            be had), for proposers that read or write files of token ids; None where there is no tokenizer.
        saves: whether this process may write files that outlive it: false on all but one of several ranks that see
            the same requests.
        trees: whether the engine verifies trees; where it does not, a proposer that could draft them drafts chains.
    """

    vocab_size: int
    max_length: int
    max_draft: int
    max_requests: int = 256
    threads: int = 1
    tokenizer: Callable[[], str] | None = None
    saves: bool = True
    trees: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "max_length", "max_draft", "max_requests", "threads"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidRequestError(
                    f"Context.{name} must be an integer of at least 1, got {value!r}"
                )
        if self.vocab_size > 2**31 - 1:
            raise InvalidRequestError(
                f"Context.vocab_size must fit in int32 (at most 2147483647), got {self.vocab_size}"
            )


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of one request when it starts.

    Attributes:
        request_id: the engine's name for it; state is keyed by it and by nothing else.
        prompt_length: tokens of the history that are prompt; the rest is output.
        stop_token_ids: ids that end the output (end of sequence, stop tokens); nothing is drafted after one.
        max_output: the most output tokens the request may have, or None.
        draft_limit: the most draft tokens per step for this request, or None for the engine's ceiling; 0 opts out.
        namespace: requests share text only within a namespace (tenant, adapter of a multi-LoRA server).
        shares: whether its text may serve other requests of its namespace.
        temperature: of the target's sampling; 0 is greedy. A hint for acceptance estimates, never for correctness.
    """

    request_id: str
    prompt_length: int
    stop_token_ids: frozenset[int] = field(default_factory=frozenset)
    max_output: int | None = None
    draft_limit: int | None = None
    namespace: str = ""
    temperature: float = 0.0
    shares: bool = True

    def __post_init__(self) -> None:
        if self.prompt_length < 0:
            raise InvalidRequestError(
                f"Request.prompt_length must be at least 0, got {self.prompt_length!r} for request {self.request_id!r}"
            )


class Observed(NamedTuple):
    """Tokens that became certain since the last step, for several requests at once.

    They include every token the target emitted (accepted drafts and its own), never a rejected draft. Valid during the
    call: the session overwrites the arrays at its next step.

    Attributes:
        slots: int32 ``[B]``, each at most once.
        offsets: int64 ``[B + 1]`` into ``tokens``.
        tokens: int32 ``[offsets[B]]``; separators are :data:`SEPARATOR`.
    """

    slots: IntArray
    offsets: NDArray[np.int64]
    tokens: TokenArray


class DraftBuffers(NamedTuple):
    """Where a proposer writes its drafts. The caller owns the arrays and has set ``lengths`` to 0.

    Attributes:
        tokens: int32 ``[B, K]``; row ``i`` holds ``lengths[i]`` ids, what lies behind is undefined.
        lengths: int32 ``[B]``, at most the row's ceiling; 0 is a normal answer (plain decoding).
        survival: float64 ``[B, K]``; the proposer's estimate of the probability that this token *and all its
            ancestors* are accepted, not increasing along a path. One scale for every proposer.
        parents: int32 ``[B, K]`` for trees (index of the parent node in the same row, smaller than the node's own
            index, or :data:`ROOT`); None for chains.
        draft_probs: float64 ``[B, K, V]``, the distribution each token was drawn from; None for one-hot drafts.
    """

    tokens: TokenArray
    lengths: IntArray
    survival: ProbArray
    parents: IntArray | None = None
    draft_probs: ProbArray | None = None


def draft_shapes(
    rows: int, width: int, vocab_size: int, capabilities: Capabilities
) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Shape and dtype of each draft buffer, for a host that wants to own the memory."""
    shapes: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        "tokens": ((rows, width), TOKEN_DTYPE),
        "lengths": ((rows,), LENGTH_DTYPE),
        "survival": ((rows, width), PROB_DTYPE),
    }
    if capabilities.trees:
        shapes["parents"] = ((rows, width), TOKEN_DTYPE)
    if capabilities.sampled:
        shapes["draft_probs"] = ((rows, width, vocab_size), PROB_DTYPE)
    return shapes


def allocate_drafts(
    rows: int, width: int, vocab_size: int = 1, capabilities: Capabilities | None = None
) -> DraftBuffers:
    """Fresh, zeroed draft buffers for ``rows`` requests and at most ``width`` draft tokens each."""
    shapes = draft_shapes(rows, width, vocab_size, capabilities or Capabilities())
    arrays: dict[str, Any] = {
        name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()
    }
    return DraftBuffers(**arrays)
