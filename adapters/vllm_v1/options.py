"""From what the user writes to what vLLM accepts, and back.

vLLM's ``SpeculativeConfig`` takes no foreign keys, but its ``model`` field, a dotted class path for
``method="custom_class"``, travels to every worker. The proposer's name and options are packed into the class name,
which :mod:`specplug.adapters.vllm_v1.door` unpacks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from specplug import registry
from specplug.adapters.device import options as device
from specplug.adapters.vllm_v1 import layers
from specplug.control import options as control
from specplug.errors import SettingsError, SpecplugError, did_you_mean

DOOR = "specplug.adapters.vllm_v1.door"
PREFIX = "specplug."

#: `MAX_SPEC_LEN` of vLLM's rejection sampler: longer drafts make its kernels fail.
MAX_DRAFT = 128

#: Keys of vLLM's speculative_config that mean something for a proposer without a model.
_PASSED_ON = (
    "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
)
_OURS = ("method", "specplug")

#: Proposers that this adapter alone can serve: they need the model's layers, so they are in no engine's registry.
ALIASES = {"layerskip": layers.PROPOSER}

_PACKED = re.compile(r"[A-Za-z_]\w*__((?:[0-9a-f]{2})+)")


class Choice(NamedTuple):
    """A proposer, its complete, validated options, and those of others.

    Attributes:
        name, options: the proposer's.
        control: those of the controller; None: constant draft length.
        lookup: those of look-ups on the device; None: on the host.
    """

    name: str
    options: dict[str, Any]
    control: dict[str, Any] | None = None
    lookup: dict[str, Any] | None = None


def is_ours(config: Any) -> bool:
    """Whether a speculative_config names a method of specplug."""
    method = config.get("method") if isinstance(config, Mapping) else None
    return isinstance(method, str) and (method == "specplug" or method.startswith(PREFIX))


def translate(config: Any) -> Any:
    """What vLLM shall get in place of ``config``; anything that is not ours passes through unchanged.

    Raises:
        SettingsError: (a ValueError) unknown method, key or option, wrong type or value.
    """
    if not is_ours(config):
        if isinstance(config, Mapping) and "specplug" in config:
            raise SettingsError(
                f'speculative_config: the key \'specplug\' needs "method": "specplug.<name>", got method '
                f"{config.get('method')!r}; available: {_available()}"
            )
        return config
    config = {str(key).replace("-", "_"): value for key, value in config.items()}
    choice = _choose(config)
    where = PREFIX + choice.name
    _refuse_foreign_keys(config, where)
    _check_length(config.get("num_speculative_tokens"), where)
    passed = {key: config[key] for key in _PASSED_ON if key in config}
    return {**passed, "method": "custom_class", "model": pack(choice)}


def pack(choice: Choice) -> str:
    """A dotted class path that carries the proposer and its options."""
    readable = re.sub(r"\W", "_", choice.name)
    payload = json.dumps(list(choice), separators=(",", ":"), sort_keys=True)
    return f"{DOOR}.p_{readable}__{payload.encode().hex()}"


def unpack(class_name: str) -> Choice | None:
    """The inverse of :func:`pack` for the last part of the path; None if it is not one of ours."""
    match = _PACKED.fullmatch(class_name)
    if match is None:
        return None
    return Choice(*json.loads(bytes.fromhex(match.group(1))))


def _choose(config: Mapping[str, Any]) -> Choice:
    name = str(config["method"])[len(PREFIX) :]
    if not name:
        raise SettingsError(
            f'speculative_config: write "method": "specplug.<name>"; available: {_available()}'
        )
    options = config.get("specplug", {})
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise SettingsError(
            f"{PREFIX}{name}: the key 'specplug' must be an object of options, got {options!r}"
        )
    try:
        if ":" not in name and name not in (known := {*registry.names(), *ALIASES}):
            hint = did_you_mean(name, known)
            raise SettingsError(f"speculative_config: unknown proposer {PREFIX + name!r}; {hint}")
        lookup = device.read(options, name)
        own = {key: v for key, v in options.items() if key not in ("controller", device.KEY)}
        checked = registry.check(ALIASES.get(name, name), own)
        return Choice(name, checked, control.check(options.get("controller")), lookup)
    except ValueError as error:
        if name in ALIASES:
            raise SettingsError(str(error).replace(ALIASES[name], PREFIX + name)) from None
        raise
    except SpecplugError as error:
        # A wrong speculative_config is a ValueError in vLLM, whatever our registry calls it.
        raise SettingsError(f"speculative_config: {error}") from error


def _refuse_foreign_keys(config: Mapping[str, Any], where: str) -> None:
    if config.get("model") is not None:
        raise SettingsError(
            f'{where} drafts without a model: remove "model": {config["model"]!r} from speculative_config'
        )
    # vLLM adds the target's own configuration to the dictionary when it is used a second time.
    known = (*_OURS, *_PASSED_ON, "target_model_config", "target_parallel_config", "model")
    for key in config:
        if key not in known:
            raise SettingsError(
                f"{where}: speculative_config has the key {key!r}, which it does not use; "
                f"{did_you_mean(key, (*_OURS, *_PASSED_ON))}; options of the proposer go into "
                '"specplug": {...}'
            )


def _check_length(value: Any, where: str) -> None:
    if value is None:
        raise SettingsError(
            f'{where} needs "num_speculative_tokens" (1 to {MAX_DRAFT}), the most tokens drafted per step'
        )
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DRAFT:
        raise SettingsError(
            f"{where}: num_speculative_tokens must be an integer from 1 to {MAX_DRAFT}, got {value!r}"
        )


def _available() -> str:
    return ", ".join(PREFIX + name for name in sorted({*registry.names(), *ALIASES}))
