"""What the drivers of foreign drafters have in common: a list of tokens, and nothing to look into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specplug.replay.drivers import Draft, HeldText
from specplug.types import TOKEN_DTYPE, TokenArray


class ForeignDriver(HeldText):
    """Drafts what ``_drafted`` holds; see :class:`specplug.replay.drivers.Driver`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self._drafted: list[int] = []

    def draft(self) -> Draft:
        return Draft(np.array(self._drafted, TOKEN_DTYPE))

    def end(self, new: TokenArray) -> None:
        pass

    def memory(self) -> Mapping[str, int] | None:
        return None

    def broken_invariant(self) -> str:
        return ""
