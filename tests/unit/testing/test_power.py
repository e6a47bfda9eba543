"""The simulation behind the table in docs/checking-an-engine.md."""

from __future__ import annotations

import numpy as np
import pytest

from specplug.testing.power import SHAPES, biased_law, main, power, target_law


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("distance", [0.0, 0.02, 0.1])
def test_biased_laws_lie_at_the_stated_distance(shape: str, distance: float) -> None:
    law = target_law()
    other = biased_law(law, distance, shape)
    assert other.min() > 0
    assert other.sum() == pytest.approx(1.0)
    assert np.abs(other - law).sum() / 2 == pytest.approx(distance)


def test_a_law_cannot_give_more_than_it_has() -> None:
    with pytest.raises(ValueError, match=r"below 0\.222, got 0\.3"):
        biased_law(target_law(), 0.3, "spread")


def test_power_grows_with_the_samples_and_is_small_without_a_bias() -> None:
    law = target_law()
    assert power(law, law, 100, trials=20, seed=1) == 0.0
    other = biased_law(law, 0.15, "one token")
    assert power(law, other, 50, trials=5, seed=2) < power(law, other, 800, trials=5, seed=2)


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplug.testing.power.DISTANCES", (0.1,))
    main(["--trials", "2", "--sizes", "20"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| samples | fault | 1 row, 0.1 | 8 rows, 0.1 |"
    assert [line.count("|") for line in lines] == [5, 5, 5, 5]
