"""The wrappers that are installed at load time, in the process that reads the user's configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from specplug.adapters.common import host_logger
from specplug.adapters.common.preflight import preflight
from specplug.adapters.vllm_v1 import layers, lookahead, metrics, requirements, salts
from specplug.adapters.vllm_v1.adaptive import is_adaptive, refuse, refuse_v2
from specplug.adapters.vllm_v1.adaptive import translate as translate_adaptive
from specplug.adapters.vllm_v1.options import ALIASES, Choice, is_ours, translate, unpack
from specplug.adapters.vllm_v1.setup import tokenizer_digest
from specplug.errors import SettingsError

_MARK = "_specplug"


def install() -> None:
    """Wrap ``EngineArgs.create_speculative_config``, and what calls it, once per process.

    Without a method of ours the wrappers pass everything through, so a vLLM that lacks other symbols keeps
    working; with one, the first refuses a vLLM that this adapter does not fit.
    """
    from vllm.engine.arg_utils import EngineArgs

    salts.carry()
    original = getattr(EngineArgs, "create_speculative_config", None)
    if original is None:
        found = requirements.HOST.installed_version()
        _, reason = requirements.HOST.verdict(found, requirements.HOST.examine())
        host_logger("vllm").error("specplug inactive: %s", reason)
        return
    if getattr(original, _MARK, False):
        return
    EngineArgs.create_speculative_config = wrap(original)
    whole = getattr(EngineArgs, "create_engine_config", None)
    if whole is not None:
        EngineArgs.create_engine_config = wrap_whole(whole)


def wrap_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """``create_engine_config``, which makes its result again for V1 if vLLM does not run in V2 what was made for it."""

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from specplug.adapters import vllm_v2

        given = _merged(self)
        made = original(self, *args, **kwargs)
        if not vllm_v2.went_elsewhere(self, made):
            return made
        self.speculative_config = given
        return original(self, *args, **kwargs)

    return create_engine_config


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """``create_speculative_config`` that understands methods of specplug."""

    @functools.wraps(original)
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from specplug.adapters import vllm_v2

        config = _merged(self)
        door = None
        if is_ours(config):
            warning = requirements.HOST.require()
            if warning:
                host_logger("vllm").warning("specplug: %s", warning)
            salts.carry(load=True)
            metrics.offer()
            parallel = kwargs.get("target_parallel_config", args[1] if len(args) > 1 else None)
            only_v1 = "layers cannot be skipped in V2" if config["method"] in layers.NAMES else ""
            door = vllm_v2.choose(self, parallel, only_v1)
        if is_adaptive(config):
            translated, scheduler = translate_adaptive(config)
            replicas = int(getattr(self, "data_parallel_size", 1) or 1)
            refuse(replicas, translated, requirements.has_dynamic_lengths())
            if door is not None and door.v2:
                refuse_v2(translated["method"])
            if getattr(self, "scheduler_cls", None) not in (None, lookahead.PATH):
                raise SettingsError(
                    f"{config['method']} brings a scheduler class of its own, but scheduler_cls is "
                    f"{self.scheduler_cls!r}; give one of the two"
                )
            self.scheduler_cls = scheduler
        else:
            translated = translate(config)
            if door is not None:
                host_logger("vllm").info("specplug: in vLLM's %s", door)
                target = kwargs.get("target_model_config", args[0] if args else None)
                if config["method"] in layers.NAMES:
                    layers.refuse(self, door.v2)
                    layers.refuse_model(_choice(translated).options, target)
                if door.v2:
                    translated = vllm_v2.prepare(self, translated)
                else:
                    vllm_v2.refuse_v1(translated)
                _preflight(translated, target)
                if config["method"] in layers.NAMES:
                    lookahead.reserve(self)
        if translated is not config:
            self.speculative_config = translated
            # Consumed: vLLM would complain that they are given twice.
            for attribute in ("spec_method", "spec_tokens"):
                if getattr(self, attribute, None) is not None:
                    setattr(self, attribute, None)
        return vllm_v2.seal(original(self, *args, **kwargs))

    setattr(create_speculative_config, _MARK, True)
    return create_speculative_config


def _preflight(translated: Mapping[str, Any], model_config: Any = None) -> None:
    """Whether the proposer could start with this model: a missing file is found before the model loads."""
    if model_config is None:
        return
    choice = _choice(translated)
    worker = SimpleNamespace(model_config=model_config)
    preflight(
        *(ALIASES.get(choice.name, choice.name), choice.options),
        lambda: int(model_config.get_vocab_size()),
        functools.partial(tokenizer_digest, worker),
    )


def _choice(translated: Mapping[str, Any]) -> Choice:
    """What :func:`translate` packed."""
    choice = unpack(str(translated["model"]).rpartition(".")[2])
    assert choice is not None
    return choice


def _merged(engine_args: Any) -> Any:
    """The speculative_config with ``spec_method`` and ``spec_tokens`` merged in, if the method is ours."""
    config = engine_args.speculative_config
    given = {
        key: getattr(engine_args, attribute, None)
        for attribute, key in (
            ("spec_method", "method"),
            ("spec_model", "model"),
            ("spec_tokens", "num_speculative_tokens"),
        )
    }
    given = {key: value for key, value in given.items() if value is not None}
    base = dict(config) if isinstance(config, Mapping) else {}
    if not given or not is_ours({**given, **base}):
        return config
    twice = sorted(given.keys() & base.keys())
    if twice:
        raise SettingsError(
            f"{twice[0]!r} is given twice, in speculative_config and as an argument of its own; keep one"
        )
    return {**base, **given}
