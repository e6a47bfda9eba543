"""The SGLang adapter's verification in torch equals the slow definitions in ``specplug.reference``. Needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specplug.reference import accept as ref_accept
from specplug.reference import accept_tree as ref_tree
from specplug.verify import SGLANG, SGLANG_FLASHINFER, Past, SamplingParams, target_probs

torch = pytest.importorskip("torch")

from specplug.adapters.sglang_srt import accept, laws  # noqa: E402  torch first: without it there is nothing to test

pytestmark = pytest.mark.sglang

V = 7


def random_laws(rng: Any, shape: tuple[int, ...]) -> Any:
    """Peaked, flat and partly empty laws; some hold all mass in one token."""
    weights = rng.gamma(0.5, size=(*shape, V)) * rng.integers(0, 2, (*shape, V))
    certain = rng.random(shape) < 0.2
    weights[certain] = 0.0
    weights[..., 0] += 1e-3 * ~certain
    weights[certain, 3] = 1.0
    return weights / weights.sum(-1, keepdims=True)


def reference(function: Any, *arguments: Any) -> tuple[Any, Any]:
    rows, width = arguments[1].shape
    accepted = np.zeros(rows, np.int32)
    emitted = np.zeros((rows, width + 1), np.int32)
    function(*arguments, accepted, emitted)
    return accepted, emitted


def assert_same(got: accept.Kept, ref_accepted: Any, ref_emitted: Any) -> None:
    assert got.accepted.tolist() == ref_accepted.tolist()
    for row, kept in enumerate(ref_accepted.tolist()):
        assert got.tokens[row, : kept + 1].tolist() == ref_emitted[row, : kept + 1].tolist(), row


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("width", [0, 1, 4])
def test_rejection_equals_the_reference(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 6
    probs = random_laws(rng, (rows, width + 1))
    tokens = rng.integers(0, V, (rows, width)).astype(np.int32)
    lengths = rng.integers(0, width + 1, rows).astype(np.int32)
    coins = rng.choice([0.0, 0.5, 1 - 2**-53, -1.0], (rows, width + 1))
    coins = np.where(coins < 0, rng.random((rows, width + 1)), coins)
    ref_result = reference(ref_accept.accept_one_hot, probs, tokens, lengths, coins)
    packed = np.concatenate([probs[i, : n + 1] for i, n in enumerate(lengths)])
    starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
    got = accept.accept_one_hot(
        torch.from_numpy(packed),
        torch.from_numpy(starts.astype(np.int64)),
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)),
        torch.from_numpy(coins),
    )
    assert_same(got, *ref_result)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("width", [0, 1, 4])
def test_comparison_equals_the_reference(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 6
    scores = rng.integers(0, 3, (rows, width + 1, V)).astype(np.float64)  # ties are common
    tokens = scores[:, :width].argmax(2).astype(np.int32)
    tokens[rng.random((rows, width)) < 0.2] = 5
    lengths = rng.integers(0, width + 1, rows).astype(np.int32)
    ref_result = reference(ref_accept.accept_greedy, scores, tokens, lengths)
    samples = torch.from_numpy(scores).argmax(2)
    got = accept.accept_by_comparison(
        samples,
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)),
    )
    assert_same(got, *ref_result)
    # And with samples in place of maxima.
    probs = random_laws(rng, (rows, width + 1))
    coins = rng.random((rows, width + 1))
    ref_result = reference(ref_accept.accept_by_comparison, probs, tokens, lengths, coins)
    drawn = accept.draw(
        torch.from_numpy(probs.reshape(-1, V)), torch.from_numpy(coins.reshape(-1))
    ).view(rows, width + 1)
    got = accept.accept_by_comparison(
        drawn,
        torch.from_numpy(tokens.astype(np.int64)),
        torch.from_numpy(lengths.astype(np.int64)),
    )
    assert_same(got, *ref_result)


def random_tree(rng: Any, rows: int, width: int) -> tuple[Any, Any, Any]:
    tokens = rng.integers(0, 3, (rows, width)).astype(np.int32)
    parents = np.array(
        [[rng.integers(-1, j) if j else -1 for j in range(width)] for _ in range(rows)], np.int32
    ).reshape(rows, width)
    return tokens, parents, rng.integers(0, width + 1, rows).astype(np.int32)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("width", [0, 1, 6])
def test_trees_are_followed_like_the_reference(seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 5
    tokens, parents, lengths = random_tree(rng, rows, width)
    scores = rng.random((rows, width + 1, 3))
    emitted = np.zeros((rows, width + 1), np.int32)
    path = np.zeros((rows, width), np.int32)
    ref_tree.accept_tree_greedy(scores, tokens, parents, lengths, emitted, path)
    got = accept.accept_tree(
        torch.from_numpy(scores).argmax(2),
        *(torch.from_numpy(a.astype(np.int64)) for a in (tokens, parents, lengths)),
    )
    assert_same(got, (path >= 0).sum(1), emitted)
    for row in range(rows):
        kept = path[row][path[row] >= 0]
        expected = [0, *(kept + 1).tolist()]
        if not width:
            assert got.path is None, "plain decoding, nothing to move"
            continue
        assert got.path is not None
        found = got.path[row].tolist()
        assert found[: len(expected)] == expected, "the positions whose laws were used"
        assert set(found[len(expected) :]) <= {-1}


def test_a_token_is_never_drawn_from_weight_zero() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.0, 0.0]]).double()
    assert accept.draw(weights, torch.zeros(3)).tolist() == [1, -1, 0]
    assert accept.draw(weights, torch.full((3,), 1 - 2**-24)).tolist() == [1, -1, 0]


def rows_of_parameters(rng: Any, rows: int) -> list[SamplingParams]:
    return [
        SamplingParams(
            temperature=float(rng.choice([0.5, 1.0, 1.7])),
            top_k=int(rng.choice([0, 1, 3, 5])),
            top_p=float(rng.choice([1.0, 0.9, 0.4])),
            min_p=float(rng.choice([0.0, 0.1, 0.5])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
            frequency_penalty=float(rng.choice([0.0, 0.7])),
            presence_penalty=float(rng.choice([0.0, -0.4])),
            min_tokens=int(rng.choice([0, 3, 6])),
            stop_token_ids=frozenset({2, 4}),
        )
        for _ in range(rows)
    ]


def got_laws(
    logits: Any, params: Any, output: Any, draft: Any, parents: Any, renormalise: bool
) -> Any:
    scores = torch.from_numpy(logits.copy())
    penalties = laws.Penalties(
        params.frequency_penalty,
        params.presence_penalty,
        params.repetition_penalty,
        params.min_tokens,
        params.stop_token_ids,
    )
    laws.apply_penalties(scores, penalties, np.array(output, np.int32), draft, parents)
    positions = len(scores)
    filters = laws.Filters(
        torch.full((positions,), params.temperature),
        torch.full((positions,), params.top_k or 1 << 30),
        torch.full((positions,), params.top_p),
        torch.full((positions,), params.min_p),
    )
    return laws.laws(scores, filters, renormalise=renormalise, filtered=True).numpy()


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("order", [SGLANG, SGLANG_FLASHINFER], ids=lambda o: o.name)
@pytest.mark.parametrize("trees", [False, True], ids=["chain", "tree"])
def test_laws_equal_those_of_specplug_verify(seed: int, order: Any, trees: bool) -> None:
    rng = np.random.default_rng(seed)
    rows, width = 3, 4
    logits = rng.normal(0, 2, (rows, width + 1, V)).astype(np.float32)
    params = rows_of_parameters(rng, rows)
    tokens, parents, lengths = random_tree(rng, rows, width)
    if not trees:
        parents = np.tile(np.arange(-1, width - 1, dtype=np.int32), (rows, 1))
    pasts = [
        Past(rng.integers(0, V, 3).tolist(), rng.integers(0, V, int(rng.integers(0, 5))).tolist())
        for _ in range(rows)
    ]
    ref_laws = target_probs(
        logits, params, pasts, tokens, lengths, parents=parents if trees else None, order=order
    )
    for row in range(rows):
        n = int(lengths[row])
        got = got_laws(
            logits[row, : n + 1],
            params[row],
            pasts[row].output,
            tokens[row, :n],
            parents[row, :n] if trees else None,
            order is SGLANG_FLASHINFER,
        )
        np.testing.assert_allclose(got, ref_laws[row, : n + 1], atol=2e-6, err_msg=str(params[row]))


def test_without_filters_the_law_is_softmax() -> None:
    logits = torch.randn(4, V)
    ones = torch.ones(4)
    filters = laws.Filters(ones, torch.full((4,), 1 << 30), ones, 0 * ones)
    plain = laws.laws(logits, filters, renormalise=False, filtered=False)
    sorted_out = laws.laws(logits, filters, renormalise=True, filtered=True)
    torch.testing.assert_close(plain, torch.softmax(logits, 1))
    torch.testing.assert_close(sorted_out, plain)


@pytest.mark.parametrize("seed", range(10))
def test_looking_at_the_likeliest_tokens_first_changes_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large vocabularies, peaked and flat rows: some need the whole order, some do not."""
    rng = np.random.default_rng(seed)
    rows, vocab_size = 12, 3 * laws.LEADING
    logits = torch.from_numpy(rng.normal(0, 1, (rows, vocab_size)).astype(np.float32))
    logits *= torch.tensor(rng.choice([0.1, 1.0, 6.0], (rows, 1)).astype(np.float32))
    filters = laws.Filters(
        torch.from_numpy(rng.choice([0.5, 1.0], rows)),
        torch.from_numpy(rng.choice([3, 600, 1 << 30], rows)),
        torch.from_numpy(rng.choice([0.5, 0.95, 1.0], rows)),
        torch.from_numpy(rng.choice([0.0, 0.05], rows)),
    )
    got = laws.laws(logits, filters, renormalise=False, filtered=True)
    monkeypatch.setattr(laws, "LEADING", vocab_size)
    ref = laws.laws(logits, filters, renormalise=False, filtered=True)
    torch.testing.assert_close(got, ref, rtol=1e-5, atol=1e-9)
