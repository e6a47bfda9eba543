"""The test kit: prove in your own CI that a proposer keeps the target's distribution.

Everything loads on first use: the kit needs hypothesis, which a serving engine does not have.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specplug.errors import MissingExtraError

if TYPE_CHECKING:
    from specplug.testing.conformance import check_proposer
    from specplug.testing.controllers import check_controller

_HOME = {
    "check_controller": "specplug.testing.controllers",
    "check_proposer": "specplug.testing.conformance",
}

__all__ = ["check_controller", "check_proposer"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            module = import_module(_HOME[name])
        except ModuleNotFoundError as error:
            if error.name != "hypothesis":
                raise
            raise MissingExtraError("the test kit", "hypothesis", "test") from error
        return getattr(module, name)
    raise AttributeError(
        f"module 'specplug.testing' has no attribute {name!r}; public names: {__all__}"
    )
