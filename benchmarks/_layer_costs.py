"""What a draft pass takes by the number of its layers, and where: runs inside an engine process.

The pass is timed as a whole and in parts: the model's forward call, the LM head, and the rest (arrays, attention
metadata, vLLM's forward context, the exchange of the layers' calls).
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any


class Timed:
    """The model, with a clock around its two calls."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.forward: list[float] = []
        self.head: list[float] = []

    def __call__(self, **arguments: Any) -> Any:
        """The model's forward call."""
        began = time.perf_counter()
        found = self._model(**arguments)
        self.forward.append(time.perf_counter() - began)
        return found

    def compute_logits(self, states: Any) -> Any:
        """The LM head."""
        began = time.perf_counter()
        found = self._model.compute_logits(states)
        self.head.append(time.perf_counter() - began)
        return found


def costs(llm: Any, prompt: list[int], exits: list[int], tokens: int, rounds: int) -> Any:
    """Milliseconds of a plain step, and of a pass by exit layer: medians over all passes of interleaved rounds.

    The engine drafts always. ``exits`` may name the number of layers: a pass of all of them.
    """
    from specplug.adapters.vllm_v1 import active
    from specplug.layers.plan import Plan

    _serve(llm, prompt, 8)  # the layers are lent in the first step
    proposer: Any = active()[-1].session.proposer  # type: ignore[union-attr]
    executor, whole = proposer._executor, proposer._executor._model
    steps: list[float] = []
    found: dict[int, dict[str, list[float]]] = {
        k: {"pass": [], "forward": [], "head": []} for k in exits
    }
    run = executor.run
    for _ in range(rounds):
        proposer._executor = None
        steps += _serve(llm, prompt, tokens)[2:]
        for layer in exits:
            layers = executor.layers
            plan = Plan.full(layers) if layer == layers else Plan.early_exit(layers, layer)
            timed, seconds = Timed(whole), found[layer]["pass"]

            def pass_(_: Any, *arguments: Any, plan: Any = plan, seconds: Any = seconds) -> Any:
                began = time.perf_counter()
                out = run(plan, *arguments)
                seconds.append(time.perf_counter() - began)
                return out

            executor._model, executor.run = timed, pass_
            proposer._executor = executor
            _serve(llm, prompt, tokens)
            found[layer]["forward"] += timed.forward
            found[layer]["head"] += timed.head
    executor._model, executor.run = whole, run
    return {
        "layers": executor.layers,
        "step": 1e3 * median(steps),
        "exits": {
            layer: {name: 1e3 * median(values) for name, values in parts.items()}
            for layer, parts in found.items()
        },
    }


def _serve(llm: Any, prompt: list[int], tokens: int) -> list[float]:
    """Seconds of each engine step of one greedy answer."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    llm.llm_engine.add_request("costs", {"prompt_token_ids": prompt}, params)
    seconds = []
    while llm.llm_engine.has_unfinished_requests():
        began = time.perf_counter()
        llm.llm_engine.step()
        seconds.append(time.perf_counter() - began)
    return seconds


def switched(llm: Any, prompts: list[list[int]], tokens: int, rounds: int) -> Any:
    """Seconds (clock and processors) per token of turns with and without our code, in turn, in one process.

    Two processes differ by more than what is measured here: in one, the weights lie where they lie. Without means that
    the adapter returns before it does anything; all the rest of the engine is the same.
    """
    from specplug.adapters.vllm_v1.proposer import VllmProposer

    propose, update = VllmProposer.propose, VllmProposer.after_update

    def nothing(_: Any, sampled: Any, *args: Any, **kwargs: Any) -> list[list[int]]:
        return [[] for _ in sampled]

    found: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for number in range(2 * rounds):
        ours = number % 2 == (number // 2) % 2
        VllmProposer.propose = propose if ours else nothing  # type: ignore[method-assign, assignment]
        VllmProposer.after_update = update if ours else lambda *args: None  # type: ignore[method-assign]
        began, busy, steps = time.perf_counter(), time.process_time(), 0
        steps = sum(len(_serve(llm, prompt, tokens)) for prompt in prompts)
        found["with" if ours else "without"].append(
            ((time.perf_counter() - began) / steps, (time.process_time() - busy) / steps)
        )
    VllmProposer.propose, VllmProposer.after_update = propose, update  # type: ignore[method-assign]
    return found
