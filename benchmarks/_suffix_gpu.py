"""``suffix-gpu``'s own reference, in plain Python, as a driver of the replay.

Its drafter needs torch and is made for a GPU; the package ships a reference of its matching within a request, with the
same ties, that lists and integers suffice for. So its drafts compare and its time does not; what it keeps of other
requests has no reference and is missing here. Some milliseconds per step and 1,000 tokens of text.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _foreign import ForeignDriver

from specplug.types import TokenArray

#: The drafter's defaults: tokens of context, occurrences that vote, and supports of the candidate lengths.
DEFAULTS = {
    "max_pattern_len": 32,
    "max_occurrences": 128,
    "support_thresholds": tuple(2**i for i in range(8)),
}
#: Its two ways to end a draft: none, the default, and the one that its documentation takes from Arctic.
SETTINGS: dict[str, dict[str, float]] = {
    "suffix-gpu": {},
    "suffix-gpu f1": {"max_spec_factor": 1.0, "min_token_prob": 0.1},
}


def reference() -> Any:
    """The module ``suffix_gpu.reference``, without the package, which would import torch."""
    package = importlib.util.find_spec("suffix_gpu")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(
            "peers: --suffix-gpu needs the package: pip install --no-deps suffix-gpu==0.1.3"
        )
    path = Path(package.submodule_search_locations[0]) / "reference.py"
    spec = importlib.util.spec_from_file_location("suffix_gpu_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class SuffixGpuDriver(ForeignDriver):
    """Matches the last tokens of a request within its own text."""

    def __init__(self, width: int, settings: Mapping[str, float]) -> None:
        super().__init__(width)
        self._match = reference().naive_local_match
        self._settings = settings
        self._tokens: list[int] = []

    def begin(self, prompt: TokenArray) -> None:
        self._tokens = prompt.tolist()

    def step(self, new: TokenArray) -> None:
        self._tokens += new.tolist()
        self._drafted, _ = self._match(self._tokens, self.width, **DEFAULTS, **self._settings)
