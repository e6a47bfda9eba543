"""Where the options of a proposer come from: SGLang has no argument that takes foreign JSON.

Either the environment variable ``SPECPLUG_SGLANG_OPTIONS`` holds an object, or
``--speculative-ngram-external-corpus-path`` names a file that does; SGLang itself reads that argument for its built-in
NGRAM only. Both reach every process of one machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specplug import registry
from specplug.control import options as control
from specplug.errors import SettingsError, SpecplugError

VARIABLE = "SPECPLUG_SGLANG_OPTIONS"
FILE_ARGUMENT = "speculative_ngram_external_corpus_path"

#: Overlap scheduling is off on the CPU, as for SGLang's own speculation there; "1" turns it on.
OVERLAP_VARIABLE = "SPECPLUG_SGLANG_CPU_OVERLAP"


class Choice(NamedTuple):
    """Complete, validated options.

    Attributes:
        options: of the proposer.
        control: of the controller, under the key ``controller`` of what the user writes; see
            :func:`specplug.control.options.check`.
    """

    options: dict[str, Any]
    control: dict[str, Any]


def read(path: Any = None) -> dict[str, Any]:
    """The options as written by the user; ``path`` is the file argument, or None.

    Raises:
        SettingsError: (a ValueError) no readable JSON object, or both places are used.
    """
    text = os.environ.get(VARIABLE, "").strip()
    argument = "--" + FILE_ARGUMENT.replace("_", "-")
    if text and path:
        raise SettingsError(f"options are given twice, in {VARIABLE} and in {argument}; keep one")
    where = VARIABLE
    if path:
        where = f"{argument} {path}"
        try:
            text = Path(str(path)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{where}: a file with a JSON object of options is expected there: {error}"
            ) from error
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{where} is no JSON ({error}); got {text[:80]!r}") from error
    if not isinstance(options, Mapping):
        raise SettingsError(
            f'{where} must hold an object of options such as {{"store_mb": 64}}, got {text[:80]!r}'
        )
    return dict(options)


def checked(name: str, path: Any = None) -> Choice:
    """The complete, validated options of the proposer ``name`` and of the controller.

    Raises:
        SettingsError: see :func:`read`; or an unknown option or proposer, a wrong type or value.
    """
    written = read(path)
    try:
        chosen = control.check(written.pop("controller", None))
        return Choice(registry.check(name, written), chosen)
    except ValueError:
        raise
    except SpecplugError as error:
        raise SettingsError(str(error)) from error


def truthy(variable: str) -> bool:
    """Whether an environment variable says yes."""
    return os.environ.get(variable, "").strip().lower() in ("1", "true", "yes", "on")
