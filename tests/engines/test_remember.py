"""The memory of the plain engine gives every request its own answer, and asks for nothing twice."""

from __future__ import annotations

from typing import Any

from specplug.testing.engine_protocol import Batch, Completion, Result

from .remember import Remembering


class Echo:
    """Answers a prompt with the prompt's length and ``max_tokens``; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []

    def generate(self, prompts: Any, params: Any, **more: Any) -> Batch:
        each = [params] * len(prompts) if isinstance(params, dict) else params
        self.asked.append(list(prompts))
        results = tuple(
            Result((), (Completion((len(p), own["max_tokens"]), "", "length", None),))
            for p, own in zip(prompts, each, strict=True)
        )
        return Batch(results, 1.0, 1)

    def tokenize(self, prompt: str) -> list[int]:
        return [len(prompt)]


def test_greedy_answers_are_asked_for_once() -> None:
    engine = Echo()
    plain = Remembering(engine)  # type: ignore[arg-type]
    greedy = {"temperature": 0, "max_tokens": 4}
    assert plain.generate(["a", "bb", "a"], greedy).tokens == [(1, 4), (2, 4), (1, 4)]
    other = [greedy, {**greedy, "max_tokens": 5}, greedy]
    assert plain.generate(["ccc", "a", "bb"], other).tokens == [(3, 4), (1, 5), (2, 4)]
    assert plain.generate(["bb"], greedy).tokens == [(2, 4)]
    assert engine.asked == [["a", "bb"], ["ccc", "a"]]
    assert plain.tokenize("four") == [4]


def test_everything_else_is_passed_on() -> None:
    engine = Echo()
    plain = Remembering(engine)  # type: ignore[arg-type]
    for _ in range(2):
        plain.generate(["a"], {"temperature": 1.0, "max_tokens": 1})
        plain.generate(["a"], {"max_tokens": 1})
        plain.generate(["a"], {"temperature": 0, "max_tokens": 1}, abort_after={0: 1})
        plain.generate(["a"], {"temperature": 0, "max_tokens": 1}, raw_seed=3)
    assert engine.asked == [["a"]] * 8
