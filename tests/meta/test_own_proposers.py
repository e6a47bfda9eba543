"""Our own proposers pass the kit by the very call that everybody else uses."""

from __future__ import annotations

import pytest

from specplug import registry
from specplug.testing import check_proposer


@pytest.mark.parametrize("name", registry.names())
def test_registered_proposer_passes_the_kit(name: str) -> None:
    report = check_proposer(name, max_examples=15)
    assert {o.status for o in report.outcomes} <= {"passed", "skipped"}
