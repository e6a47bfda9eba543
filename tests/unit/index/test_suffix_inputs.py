"""Kernels trust what they are given: wrong input is refused before, and every valid form reaches them as one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from specplug.errors import InvalidRequestError
from specplug.types import DraftBuffers, Observed, allocate_drafts


@pytest.mark.parametrize("slot", [-1, 4, 2**31])
def test_a_slot_out_of_range_is_refused_everywhere(lists: Any, slot: int) -> None:
    index = lists()
    slots = np.array([0, slot])
    calls = [
        lambda: index.start([1, 2], slot=slot),
        lambda: index.index.finish(slot, True, frozenset()),
        lambda: index.index.tokens(slot),
    ]
    if slot < 2**31:
        calls += [
            lambda: index.index.observe(Observed(slots, np.array([0, 1, 2]), np.array([1, 2]))),
            lambda: index.index.draft(slots, np.array([1, 1]), allocate_drafts(2, 8)),
        ]
    for call in calls:
        with pytest.raises(InvalidRequestError, match=rf"slot must lie in 0 \.\. 3 .*got {slot}"):
            call()
    assert index.index.check_invariants() == ""


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1], "must hold 3 ascending numbers from 0 to at most 3"),
        ([0, 1, 2, 3], "must hold 3 ascending numbers"),
        ([0, 1, 4], r"at most 3, got \[0, 1, 4\]"),
        ([-1, 1, 3], "from 0 to"),
        ([0, 3, 2], "must not descend"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(lists: Any, offsets: list[int], message: str) -> None:
    index = lists()
    index.start([1, 2], slot=0)
    index.start([1, 2], slot=1)
    observed = Observed(
        np.array([0, 1], np.int32), np.array(offsets), np.array([1, 2, 3], np.int32)
    )
    with pytest.raises(InvalidRequestError, match=message):
        index.index.observe(observed)
    assert index.index.tokens(0).tolist() == index.index.tokens(1).tolist() == [1, 2]


def test_tokens_along_two_axes_are_refused_where_they_come_in(lists: Any) -> None:
    """Compiled code takes their address for that of a row, and wrote beyond its own memory."""
    index = lists()
    index.start([1, 2], slot=1)
    square = np.ones((2, 2), np.int32)
    one, ends = np.array([1], np.int32), np.array([0, 2])
    calls = [
        (lambda: index.index.start(2, "", 2, square), "the history of a request"),
        (lambda: index.index.observe(Observed(one, ends, square)), "Observed.tokens"),
        (lambda: index.index.store_text("", square), "a text to be stored"),
    ]
    for call, name in calls:
        with pytest.raises(InvalidRequestError, match=rf"{name} must be .* one axis, .*\(2, 2\)"):
            call()
    assert index.index.tokens(1).tolist() == [1, 2]
    assert index.index.check_invariants() == ""


def test_text_beyond_the_length_limit_is_refused_before_it_is_written(lists: Any) -> None:
    index = lists(max_length=100)
    index.start([7] * 100, slot=1)
    index.start([5] * 100, slot=0)
    index.observe([6] * 40)  # a burst at the very end may exceed the limit a little
    with pytest.raises(
        InvalidRequestError, match=r"slot 0 would have 1\d\d\d tokens, .*max_length is 100"
    ):
        index.observe([6] * 900)
    with pytest.raises(InvalidRequestError, match="slot 2 would have 300 tokens"):
        index.start([5] * 300, slot=2)
    assert index.index.tokens(0).tolist() == [5] * 100 + [6] * 40
    assert index.index.tokens(1).tolist() == [7] * 100
    assert index.index.check_invariants() == ""


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("tokens", np.zeros((2, 8), np.int64)),
        ("tokens", np.zeros((2, 16), np.int32)[:, ::2]),
        ("tokens", np.zeros((1, 8), np.int32)),
        ("survival", np.zeros((2, 8), np.float32)),
        ("survival", np.zeros((2, 8)).T.copy().T),
        ("lengths", np.zeros(2, np.int64)),
        ("lengths", np.broadcast_to(np.int32(0), 2)),
    ],
)
def test_buffers_that_kernels_cannot_fill_are_refused(
    lists: Any, name: str, array: np.ndarray
) -> None:
    index = lists()
    out: DraftBuffers = allocate_drafts(2, 8)._replace(**{name: array})
    with pytest.raises(InvalidRequestError, match=f"draft buffer '{name}' must be a contiguous"):
        index.index.draft(np.array([0, 1], np.int32), np.array([8, 8], np.int32), out)


def test_a_missing_ceiling_is_refused(lists: Any) -> None:
    index = lists()
    with pytest.raises(InvalidRequestError, match="got 1 ceilings for 2 slots"):
        index.index.draft(np.array([0, 1]), np.array([8]), allocate_drafts(2, 8))


PROBE = """
import json
import numpy as np
from numba.core.dispatcher import Dispatcher
from specplug import registry
from specplug.kernels import candidates, drafting, learning, live, match, ranking, requests, store, streams
from specplug.session import Session
from specplug.types import Context, Observed, Request, allocate_drafts

def signatures():
    return {
        f"{module.__name__}.{name}": len(kernel.signatures)
        for module in (candidates, drafting, learning, live, match, ranking, requests, store, streams)
        for name, kernel in vars(module).items()
        if isinstance(kernel, Dispatcher)
    }

context = Context(vocab_size=50, max_length=5000, max_draft=4, max_requests=3)
proposer = registry.build("suffix", context, {"store_mb": 0.01})
before = signatures()

frozen = np.tile(np.arange(9), 9)
frozen.flags.writeable = False
forms = [
    lambda text: np.array(text, np.int32),
    lambda text: np.array(text, np.int64),
    lambda text: np.repeat(np.array(text, np.int32), 2)[::2],
    lambda text: np.array(text, ">i4"),
    lambda text: np.frombuffer(b"x" + np.array(text, np.int32).tobytes(), np.int32, offset=1),
    list,
    tuple,
]
session = Session(proposer, context, on_fault="raise")
text = frozen.tolist()
drafted = 0
for form in forms:
    session.begin(Request("a", np.int32(20), frozenset({np.int64(8)}), max_output=900), form(text[:20]))
    for length in (20, 21, 25, 60):
        out = session.step(["a", "b"], [form(text[:length]), form(text[1:length])])
        drafted += int(out.lengths.sum())
    session.finish_all(["a", "b"])
session.step([], [])
session.close()

index = proposer.index
for form in forms:
    index.start(np.int32(1), "x", np.int16(5), form(text))
    index.observe(Observed(form([1]), form([0, 3]), form([0, 1, 2])))
    assert index.tokens(1).tolist() == text + [0, 1, 2]
    index.draft(form([1]), form([4]), allocate_drafts(1, 4))
    index.finish(np.uint8(1), True, frozenset({3}))
index.start(0, "", 81, frozen)
index.start(1, "", 0, frozen[:0])
assert drafted > 100, drafted
assert index.check_invariants() == ""
print(json.dumps([before, signatures()]))
"""

ENTRIES = {
    "drafting.draft_batch",
    "learning.learn_batch",
    "learning.observe_batch",
    "requests.finish_request",
    "requests.start_request",
}


@pytest.mark.compiled
def test_nothing_is_compiled_once_the_proposer_is_built() -> None:
    """Compiling takes seconds, which a request would have to wait for."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROBE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert after == before
    entries = {f"specplug.kernels.{name}": 1 for name in ENTRIES}
    assert {name: after[name] for name in entries} == entries
