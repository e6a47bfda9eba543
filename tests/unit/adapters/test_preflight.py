"""What a server refuses before its model loads, whatever engine it is."""

from __future__ import annotations

from typing import Any

import pytest

from specplug.adapters.common.preflight import preflight
from specplug.adapters.common.wishes import joined_namespace
from specplug.errors import SettingsError


@pytest.mark.parametrize("name", ["suffix", "hybrid"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"common": "docs"}, r"got 'docs'; did you mean 'namespace=docs'\?"),
        ({"common": "namespace=docs", "store_mb": 0}, "'store_mb' is 0"),
        ({"common": "", "store_mb": 0.0}, "'store_mb' is 0"),
        ({"common": 7}, "common"),
    ],
)
def test_a_common_namespace_that_no_request_can_have_is_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        preflight(name, options)


@pytest.mark.parametrize("name", ["suffix", "hybrid"])
def test_every_namespace_that_a_request_can_have_may_be_common(name: str) -> None:
    for given in ({}, {"lora": "a"}, {"salt": "s"}, {"wished": "docs"}, {"lora": "a", "salt": "s"}):
        preflight(name, {"common": joined_namespace(**given)})
