"""What tests of layer skipping do inside vLLM's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams

from specplug.adapters.vllm_v1 import active, sublayers
from specplug.errors import SpecplugError
from specplug.layers.plan import Plan
from specplug.proposers.layerskip.clasp import Clasp
from specplug.proposers.layerskip.conflayers import layer_confidences
from specplug.proposers.layerskip.searching import POLICIES, Search


@contextmanager
def with_search(search: Any) -> Iterator[Any]:
    """The proposer, with another search and without drafts from text, which knows the prompts of earlier tests."""
    proposer = active()[-1].session.proposer
    kept, text = proposer.search, proposer._text
    proposer.search = search
    if text is not None:
        text.propose = lambda *arguments: None
    try:
        yield proposer
    finally:
        proposer.search = kept
        if text is not None:
            del text.propose


def serve(llm: Any, prompts: list[list[int]], tokens: int, **more: Any) -> list[list[int]]:
    """Greedy answers."""
    served = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0.0, max_tokens=tokens, **more),
        use_tqdm=False,
    )
    return [list(one.outputs[0].token_ids) for one in served]


def draft_states(
    llm: Any, prompt: list[int], attention: list[bool], mlp: list[bool], exit_layer: int | None
) -> dict[str, Any]:
    """The first draft after ``prompt`` with a plan: the tokens that entered its passes, and the states in front of the
    LM head, ``[passes, d]``."""
    tokens: list[int] = []
    states: list[list[float]] = []
    plan = Plan(tuple(attention), tuple(mlp), exit_layer)
    serve(llm, [prompt], 2)  # layers are lent at the first step
    with with_search(Search.fixed(plan)) as proposer:
        executor = proposer._executor
        model, run = executor._model, executor.run
        score = model.compute_logits

        def record(hidden: Any, *more: Any) -> Any:
            states.append(hidden[0].tolist())
            return score(hidden, *more)

        def passing(plan: Plan, ids: Any, entering: Any, place: int) -> Any:
            if place != len(tokens):  # the first draft is over
                return run(plan, ids, entering, place)
            tokens.append(int(entering[0]))
            model.compute_logits = record
            try:
                return run(plan, ids, entering, place)
            finally:
                del model.compute_logits

        executor.run = passing
        try:
            serve(llm, [prompt], 6)
        finally:
            del executor.run
    return {"tokens": tokens, "states": states}


def overflow(llm: Any, prompt: list[int], attention: list[bool], mlp: list[bool]) -> dict[str, Any]:
    """Serve with draft passes that overflow where a sublayer is left out: is the cache finite afterwards?

    The engine cannot foresee the end of the request, a stop token, so it ends when the next draft has been made.
    """
    kept = sublayers._zeros
    [expected] = serve(llm, [prompt], 12)
    with with_search(Search.fixed(Plan(tuple(attention), tuple(mlp)))) as proposer:
        executor = proposer._executor
        sublayers._zeros = lambda *given, **named: kept(*given, **named) + float("inf")
        try:
            [answer] = serve(llm, [prompt], 40, stop_token_ids=expected[-1:])
        finally:
            sublayers._zeros = kept
    caches = executor._runner.kv_caches
    return {
        "finite": all(bool(torch.isfinite(cache).all()) for cache in caches),
        "overflowed": executor._overflowed,
        "expected": expected[: expected.index(expected[-1]) + 1],
        "answer": answer,
    }


def use_heads(llm: Any, path: str) -> dict[str, Any]:
    """Apply the exit heads of a file, or none; which exits have one, or why it was refused."""
    executor = active()[-1].session.proposer._executor
    if not path:
        executor.heads = None
        return {"exits": [], "error": ""}
    try:
        return {"exits": sorted(executor.use_heads(Path(path))), "error": ""}
    except SpecplugError as error:
        return {"exits": [], "error": str(error)}


def rooms(llm: Any, prompts: list[list[int]], tokens: int) -> list[int]:
    """Slots from the newest token on that each request owned whenever a draft could be made."""
    found: list[int] = []
    serve(llm, prompts[:1], 2)
    executor = active()[-1].session.proposer._executor
    known = executor.rooms

    def asking(ids: Any) -> Any:
        owned = known(ids)
        found.extend(owned.tolist())
        return owned

    executor.rooms = asking
    try:
        serve(llm, prompts, tokens, ignore_eos=True)
    finally:
        del executor.rooms
    return found


def exits_with_heads(llm: Any) -> dict[str, Any]:
    """Which exits have a head, by the engine's own options."""
    heads = active()[-1].session.proposer._executor.heads
    return {"exits": [] if heads is None else sorted(heads.heads)}


class _Look:
    """In place of a search: asks about a request that has 20 tokens of output."""

    def __init__(self, prompt: int, plan: Plan, skips: int) -> None:
        self.prompt, self.tried, self.skips = prompt, plan, skips
        self.found: dict[str, Any] = {}

    def plan(self) -> None:
        """Nothing is drafted."""

    def look(self, executor: Any, ids: Any) -> None:
        """Ask everything."""
        batch = executor._runner.input_batch
        known = int(batch.num_tokens_no_spec[0])
        if known != self.prompt + 20:
            return
        caches = executor._runner.kv_caches
        ratio = caches[0].shape[0] // executor._runner.kv_cache_config.num_blocks
        before = [cache[ratio:].clone() for cache in caches]
        probe = executor.probe(*ids)
        trial = probe.try_plan(self.tried)
        self.found = {
            "tokens": batch.token_ids_cpu[0, :known].tolist(),
            "span": probe.span,
            "trial": list(trial),
            "confidences": layer_confidences(*probe.outputs()).tolist(),
            "states": probe.states().tolist(),
            "chosen": Clasp(probe.layers, self.skips).choose(probe).tolist(),
            "unchanged": all(
                torch.equal(cache[ratio:], old) for cache, old in zip(caches, before, strict=True)
            ),
        }


def ask(
    llm: Any, prompt: list[int], attention: list[bool], mlp: list[bool], skips: int
) -> dict[str, Any]:
    """What a probe answers about the first 20 tokens after ``prompt``, and whether the cache is as before."""
    look = _Look(len(prompt), Plan(tuple(attention), tuple(mlp)), skips)
    with with_search(look):
        serve(llm, [prompt], 24, ignore_eos=True)
    return look.found


def search(llm: Any, policy: str, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Serve with a policy that may ask after every step; what it found, and the answers."""
    layers = active()[-1].session.proposer.search.policy.layers
    with with_search(Search(POLICIES[policy](layers, 0.2), 1e9)) as proposer:
        found = proposer.search
        answers = serve(llm, prompts, tokens)
    return {
        "looks": found.looks,
        "skips": found.policy.plan().skips,
        "answers": answers,
    }


class _Nothing:
    """In place of a search: never has a plan."""

    def plan(self) -> None:
        """Nothing is drafted."""

    def look(self, executor: Any, ids: Any) -> None:
        """Nothing is asked."""


def answers(
    llm: Any, prompts: list[list[int]], tokens: int, plan: list[Any] | None = None
) -> dict[str, Any]:
    """Greedy answers with drafts by ``plan`` (attention, MLP, exit layer), without one plainly; and why layers were not
    lent, if so."""
    serve(llm, prompts[:1], 2)  # layers are lent at the first step
    search = (
        _Nothing() if plan is None else Search.fixed(Plan(tuple(plan[0]), tuple(plan[1]), plan[2]))
    )
    with with_search(search) as proposer:
        executor = proposer._executor
        if executor is None:
            return {"refused": True, "answers": []}
        refused = ""
        if plan is not None:
            try:
                executor.check(search.policy.plan())
            except SpecplugError as error:
                refused = str(error)
        found = [] if refused else serve(llm, prompts, tokens, ignore_eos=True)
    return {"refused": refused, "answers": found}
