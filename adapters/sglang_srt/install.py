"""What is done when SGLang loads plugins: every registered proposer becomes a speculative algorithm."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from specplug import registry
from specplug.adapters.common import host_logger
from specplug.errors import SettingsError, did_you_mean

_MARK = "_specplug"


def install() -> None:
    """Register ``specplug.<name>`` for every proposer, once per process; no proposer is imported."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    from specplug.adapters.sglang_srt.algorithm import algorithm_class

    if getattr(SpeculativeAlgorithm, _MARK, False):
        return
    spec_class = algorithm_class(CustomSpecAlgo)
    for upper, name in algorithm_names().items():
        _register(SpeculativeAlgorithm, spec_class, upper, name)
    _explain_unknown(SpeculativeAlgorithm)
    setattr(SpeculativeAlgorithm, _MARK, True)


def algorithm_names() -> dict[str, str]:
    """SGLang's (upper-case) name of each proposer. Of names that differ by case only, the first one counts."""
    found: dict[str, str] = {}
    for name in registry.names():
        if found.setdefault((registry.PREFIX + name).upper(), name) != name:
            host_logger("sglang").warning(
                "specplug: SGLang cannot tell %r from %r, which is not registered; rename it",
                found[(registry.PREFIX + name).upper()],
                name,
            )
    return found


def _register(algorithms: Any, spec_class: type, upper: str, name: str) -> None:
    from specplug.adapters.sglang_srt.validate import validate

    def build(server_args: Any) -> type:
        from specplug.adapters.sglang_srt.worker import worker_class

        return worker_class(name)

    try:
        algorithms.register(
            upper,
            supports_overlap=True,
            validate_server_args=functools.partial(validate, name=name),
            spec_class=spec_class,
        )(build)
    except Exception:  # noqa: BLE001  one name that SGLang refuses must not take the others with it
        host_logger("sglang").exception("specplug: %s could not be registered with SGLang", name)


def _explain_unknown(algorithms: Any) -> None:
    """SGLang says "Unknown speculative algorithm name"; a name of ours deserves the list of those that exist."""
    original: Callable[[Any], Any] = algorithms.from_string

    @functools.wraps(original)
    def from_string(cls: Any, name: Any) -> Any:
        try:
            return original(name)
        except ValueError as error:
            if not str(name).upper().startswith(registry.PREFIX.upper().rstrip(".")):
                raise
            known = [registry.PREFIX + n for n in algorithm_names().values()]
            wrong = str(name)
            # SGLang has written it in capitals by now.
            hint = did_you_mean(wrong.lower(), known)
            raise SettingsError(
                f"--speculative-algorithm: unknown proposer {wrong!r}; {hint}"
            ) from error

    algorithms.from_string = classmethod(from_string)
