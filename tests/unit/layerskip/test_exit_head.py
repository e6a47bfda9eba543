"""Exit heads: the closed form against least squares, and files that are refused when they do not fit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from specplug.errors import ExitHeadError
from specplug.layers.exit_file import MAGIC, load_heads, read_facts, save_heads
from specplug.layers.exit_head import ExitHead, Moments

D = 6


def states(tokens: int = 400, seed: int = 0, rank: int = D) -> tuple[np.ndarray, np.ndarray]:
    """Final states that are the shallow ones, a linear map of ``rank`` and a constant further on."""
    generator = np.random.default_rng(seed)
    shallow = generator.normal(size=(tokens, D)) + 1.0
    slope = generator.normal(size=(D, rank)) @ generator.normal(size=(rank, D))
    return shallow, shallow + shallow @ slope + generator.normal(size=D)


def moments(shallow: np.ndarray, final: np.ndarray, pieces: int = 3) -> Moments:
    found = Moments(D)
    for one, other in zip(
        np.array_split(shallow, pieces), np.array_split(final, pieces), strict=True
    ):
        found.add(one, other)
    return found


def test_the_fit_is_ridge_regression_whatever_the_pieces() -> None:
    """The slow way: least squares with the penalty as further rows."""
    shallow, final = states()
    final = final + np.random.default_rng(1).normal(size=final.shape)
    ridge = 0.3
    inputs = np.concatenate([shallow, np.ones((len(shallow), 1))], axis=1)
    penalty = ridge * (inputs**2).sum() / (D + 1)
    rows = np.concatenate([inputs, np.sqrt(penalty) * np.eye(D, D + 1)])
    change = np.concatenate([final - shallow, np.zeros((D, D))])
    ref_head = np.linalg.lstsq(rows, change, rcond=None)[0]
    for pieces in (1, 7):
        got_head = moments(shallow, final, pieces).fit(ridge)
        np.testing.assert_allclose(got_head, ref_head, rtol=1e-4, atol=1e-4)


def test_a_linear_relation_is_found_exactly() -> None:
    shallow, final = states()
    found = moments(shallow, final)
    solved = found.fit(1e-9)
    head = ExitHead.from_fit(2, solved)
    np.testing.assert_allclose(head.apply(shallow), final, atol=1e-3)
    assert found.explained(solved) == pytest.approx(1.0, abs=1e-5)
    assert found.tokens == 400


def test_an_endless_penalty_leaves_the_raw_exit_up_to_a_constant() -> None:
    shallow, final = states()
    head = ExitHead.from_fit(1, moments(shallow, final).fit(1e12))
    np.testing.assert_allclose(head.slope[0], 0.0, atol=1e-6)
    np.testing.assert_allclose(head.constant, (final - shallow).mean(0), atol=1e-3)


def test_a_low_rank_relation_needs_no_more_than_its_rank() -> None:
    shallow, final = states(rank=2)
    solved = moments(shallow, final).fit(1e-9, rank=2)
    head = ExitHead.from_fit(1, solved, rank=2)
    assert head.rank == 2
    assert len(head.slope) == 2
    np.testing.assert_allclose(head.apply(shallow), final, atol=1e-3)


def test_a_cut_keeps_the_mean_and_the_largest_directions() -> None:
    shallow, final = states()
    found = moments(shallow, final)
    shares = [found.explained(found.fit(1e-9, rank)) for rank in range(1, D + 1)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=1e-5)
    cut = ExitHead.from_fit(1, found.fit(1e-9, 1), 1)
    np.testing.assert_allclose(cut.apply(shallow).mean(0), final.mean(0), atol=1e-3)
    # Reduced-rank regression: the best there is, by the singular values of the fitted values.
    centred = (final - shallow) - (final - shallow).mean(0)
    sizes = np.linalg.svd(centred, compute_uv=False) ** 2
    residual = ((cut.apply(shallow) - final) ** 2).sum()
    assert residual == pytest.approx(sizes[1:].sum(), rel=1e-3)


def test_what_cannot_be_fitted_is_refused() -> None:
    found = Moments(D)
    with pytest.raises(ExitHeadError, match="at least 2 tokens, got 0"):
        found.fit()
    with pytest.raises(ExitHeadError, match=r"final must be \[tokens, 6\] for both, got \[3, 6\]"):
        found.add(np.ones((2, D)), np.ones((3, D)))
    with pytest.raises(ExitHeadError, match="shallow holds a value that is not finite"):
        found.add(np.full((2, D), np.nan), np.ones((2, D)))
    assert found.tokens == 0
    found.add(*states(10))
    with pytest.raises(ExitHeadError, match="ridge must be a number above 0, got 0"):
        found.fit(0.0)
    with pytest.raises(ExitHeadError, match="rank must lie between 1 and 6, got 7"):
        found.fit(rank=7)
    with pytest.raises(ExitHeadError, match="at least 1, got 0"):
        Moments(0)


# --- Files ----------------------------------------------------------------------------------------


@pytest.fixture
def heads() -> list[ExitHead]:
    shallow, final = states()
    found = moments(shallow, final)
    return [ExitHead.from_fit(2, found.fit(0.1)), ExitHead.from_fit(4, found.fit(0.1, 2), 2)]


def test_a_file_gives_back_what_was_saved(tmp_path: Path, heads: list[ExitHead]) -> None:
    path = tmp_path / "model.exits"
    size = save_heads(path, heads, "abc", {"tokens": 400})
    assert size == path.stat().st_size
    assert os.listdir(tmp_path) == ["model.exits"]
    loaded = load_heads(path, "abc", D, 8)
    assert sorted(loaded) == [2, 4]
    for head in heads:
        got = loaded[head.exit_layer]
        assert got.rank == head.rank
        x = np.random.default_rng(5).normal(size=(20, D))
        np.testing.assert_allclose(got.apply(x), head.apply(x), rtol=0.01, atol=0.02)
    assert read_facts(path)["facts"] == {"tokens": 400}


def test_facts_with_numbers_as_keys_do_not_damage_the_file(
    tmp_path: Path, heads: list[ExitHead]
) -> None:
    """Numbers sort as 4, 12 and the words that JSON makes of them as "12", "4": the checksum once differed."""
    save_heads(tmp_path / "h", heads, "abc", {"agreement": {4: 0.2, 12: 0.3}})
    assert sorted(load_heads(tmp_path / "h", "abc", D, 8)) == [2, 4]


def test_half_precision_keeps_the_file_small(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    solved = generator.normal(size=(577, 576))
    size = save_heads(tmp_path / "a", [ExitHead.from_fit(4, solved)], "abc")
    assert size < 577 * 576 * 2 + 500
    cut = ExitHead.from_fit(4, solved, 64)
    assert save_heads(tmp_path / "b", [cut], "abc") < 150_000


@pytest.mark.parametrize(
    ("fingerprint", "hidden", "layers", "message"),
    [
        ("xyz", D, 8, "fingerprint 'abc', but this one has 'xyz'"),
        (
            "abc",
            D + 1,
            8,
            r"heads of size 6 after layers \[2, 4\] do not fit a model of 8 layers of size 7",
        ),
        ("abc", D, 4, r"after layers \[4\] do not fit a model of 4 layers"),
    ],
)
def test_heads_of_another_model_are_refused(
    tmp_path: Path, heads: list[ExitHead], fingerprint: str, hidden: int, layers: int, message: str
) -> None:
    save_heads(tmp_path / "h", heads, "abc")
    with pytest.raises(ExitHeadError, match=message):
        load_heads(tmp_path / "h", fingerprint, hidden, layers)


def test_every_damaged_byte_is_noticed(tmp_path: Path, heads: list[ExitHead]) -> None:
    path = tmp_path / "h"
    save_heads(path, heads, "abc")
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(ExitHeadError, match=str(path)):
            load_heads(path, "abc", D, 8)
    for cut in (0, 10, len(MAGIC) + 4, 100, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ExitHeadError, match=str(path)):
            load_heads(path, "abc", D, 8)


def test_a_newer_version_and_a_missing_file_are_refused(
    tmp_path: Path, heads: list[ExitHead]
) -> None:
    path = tmp_path / "h"
    with pytest.raises(ExitHeadError, match="cannot be read"):
        load_heads(path, "abc", D, 8)
    save_heads(path, heads, "abc")
    header = read_facts(path)
    old = json.dumps(header).encode()
    new = json.dumps({**header, "version": 3}).encode()
    path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(ExitHeadError, match="version 3 of exit heads, this specplug reads 2"):
        load_heads(path, "abc", D, 8)


def test_what_cannot_be_saved_leaves_the_old_file(tmp_path: Path, heads: list[ExitHead]) -> None:
    path = tmp_path / "h"
    save_heads(path, heads, "abc")
    before = path.read_bytes()
    huge = ExitHead(1, (np.full((D, D), 1e6),), np.zeros(D))
    with pytest.raises(ExitHeadError, match="after layer 1 has numbers beyond half precision"):
        save_heads(path, [huge], "abc")
    with pytest.raises(ExitHeadError, match=r"one per exit layer, got layers \[2, 2\]"):
        save_heads(path, [heads[0], heads[0]], "abc")
    with pytest.raises(ExitHeadError, match="cannot be written"):
        save_heads(tmp_path / "nowhere" / "h", heads, "abc")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["h"]
