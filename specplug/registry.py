"""Which proposers exist, found lazily through the entry-point group ``specplug.proposers``.

A distribution registers a proposer by an entry point ``name = "module:factory"``; it is then called
``specplug.<name>`` in both engines. The factory is a class or function ``factory(context, settings)``, with an
optional attribute ``Settings`` (a dataclass of :func:`specplug.settings.option` fields); without it the factory is
called as ``factory(context)``. Nothing is imported before a name is used, and what is imported is checked at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from specplug.errors import InvalidProposerError, SettingsError, UnknownProposerError, did_you_mean
from specplug.protocols import Proposer
from specplug.settings import NoSettings, parse
from specplug.types import Capabilities, Context

GROUP = "specplug.proposers"
PREFIX = "specplug."

#: Names that are ours but need an engine that runs the model's own layers: what is built there, and where that is.
_LAYERS = {
    "layerskip": (
        "specplug.proposers.layerskip.proposer:LayerSkipProposer",
        "it runs the model's own layers, which vLLM's V1 model runner and Hugging Face transformers "
        "(specplug.adapters.transformers_hf.SelfSpeculation) can do so far, see docs/layerskip.md",
    ),
}

_METHODS = {
    "start": ("slot", "request", "history"),
    "observe": ("observed",),
    "propose": ("slots", "ceilings", "out"),
    "finish": ("slot", "keep"),
}


@dataclass(frozen=True)
class ProposerEntry:
    """One registered proposer: where it comes from and how it is built."""

    name: str
    factory: Callable[..., Any]
    settings_type: type | None
    distribution: str

    @property
    def where(self) -> str:
        """How messages call it."""
        return self.name if ":" in self.name else PREFIX + self.name


def names() -> list[str]:
    """The registered names, sorted, without the prefix ``specplug.``; imports nothing."""
    return sorted(_points())


def of_layers() -> dict[str, tuple[str, str]]:
    """Names that only an engine which runs the model's own layers knows: the form that :func:`load` takes, and a
    sentence on where that is."""
    return {PREFIX + name: told for name, told in _LAYERS.items()}


def load(name: str) -> ProposerEntry:
    """Find a proposer by its registered name or by ``module:attribute``, import it and check it.

    Raises:
        UnknownProposerError: nothing of that name is registered, or it cannot be imported.
        InvalidProposerError: what is registered cannot be a proposer factory.
    """
    name = name.removeprefix(PREFIX) if ":" not in name else name
    if ":" in name:
        module, _, attribute = name.partition(":")
        if not module or not attribute:
            raise UnknownProposerError(
                f"a proposer is called {PREFIX}<name> or module:attribute, got {name!r}"
            )
        point = EntryPoint(name, f"{module}:{attribute}", GROUP)
        distribution = module.partition(".")[0]
    else:
        points = _points()
        if name not in points:
            if name in _LAYERS:
                raise UnknownProposerError(f"{PREFIX + name}: {_LAYERS[name][1]}")
            hint = did_you_mean(name, points)
            raise UnknownProposerError(f"unknown proposer {PREFIX + name!r}; {hint}")
        point = _only(points[name])
        distribution = _distribution(point)
    try:
        factory = point.load()
    except Exception as error:  # a third party's module may raise anything while it is imported
        raise UnknownProposerError(
            f"proposer {name!r} of distribution {distribution!r} is registered as {point.value!r}, which cannot "
            f"be imported: {type(error).__name__}: {error}; reinstall or upgrade that distribution"
        ) from error
    entry = ProposerEntry(name, factory, getattr(factory, "Settings", None), distribution)
    _check_factory(entry)
    return entry


def check(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The complete, validated options of a proposer, defaults filled in. Builds nothing.

    Raises:
        UnknownProposerError, InvalidProposerError: see :func:`load`.
        SettingsError: see :func:`specplug.settings.parse`.
    """
    entry = load(name)
    if entry.settings_type is None:
        parse(NoSettings, options, entry.where)
        return {}
    return asdict(parse(entry.settings_type, options, entry.where))


def preflight(
    name: str,
    options: Mapping[str, Any],
    vocab_size: Callable[[], int] | None = None,
    tokenizer: Callable[[], str] | None = None,
) -> None:
    """Ask a proposer whether it could start, in the process that parses options: before a model loads.

    Only what the options themselves cannot say is asked, such as whether a file is there. A ``Settings`` class that
    has a method ``preflight(vocab_size, tokenizer)`` answers by raising.

    Args:
        options: of the proposer.
        vocab_size: of the model; None if it is not known yet. Called only if the proposer asks.
        tokenizer: digest of the model's vocabulary, see :func:`specplug.vocabulary.vocabulary_digest`. The same.

    Raises:
        SettingsError: it could not, and why. Else as :func:`check`.
    """
    entry = load(name)
    if entry.settings_type is None:
        return
    ask = getattr(parse(entry.settings_type, options, entry.where), "preflight", None)
    if ask is not None:
        ask(0 if vocab_size is None else vocab_size(), tokenizer)


def build(name: str, context: Context, options: Mapping[str, Any] | None = None) -> Proposer:
    """A proposer, built for one engine process and checked against the protocol."""
    return build_entry(load(name), context, options)


def build_entry(
    entry: ProposerEntry, context: Context, options: Mapping[str, Any] | None = None
) -> Proposer:
    """The same from what :func:`load` has found: to find a name costs milliseconds, which tests pay thousands of times.

    Raises:
        SettingsError: see :func:`specplug.settings.parse`.
        InvalidProposerError: what the factory returns lacks a part of the protocol.
    """
    told = {} if options is None else options
    settings: Any = parse(entry.settings_type or NoSettings, told, entry.where)
    proposer = (
        entry.factory(context) if entry.settings_type is None else entry.factory(context, settings)
    )
    check_instance(proposer, entry.where, entry.distribution)
    result: Proposer = proposer
    return result


def check_instance(proposer: object, where: str, distribution: str = "?") -> None:
    """Refuse an object that does not have the methods and parameters of the protocol."""
    for method, parameters in _METHODS.items():
        bound = getattr(proposer, method, None)
        if not callable(bound):
            raise InvalidProposerError(
                f"{where} of distribution {distribution!r}: {type(proposer).__name__} has no method "
                f"{method}({', '.join(parameters)})"
            )
        try:
            inspect.signature(bound).bind(*parameters)
        except TypeError as error:
            raise InvalidProposerError(
                f"{where} of distribution {distribution!r}: {method} must take "
                f"({', '.join(parameters)}), but has {inspect.signature(bound)}: {error}"
            ) from None
    capabilities = getattr(proposer, "capabilities", None)
    if not isinstance(capabilities, Capabilities):
        raise InvalidProposerError(
            f"{where} of distribution {distribution!r}: attribute 'capabilities' must be a "
            f"specplug.Capabilities, got {capabilities!r}"
        )


def _points() -> dict[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _only(points: list[EntryPoint]) -> EntryPoint:
    """The one meaning of a name. A name with two costs itself only, not the others."""
    first = points[0]
    for other in points[1:]:
        # The same distribution can be seen twice (an editable install shadowing a wheel): same value, no conflict.
        if other.value != first.value:
            raise InvalidProposerError(
                f"two distributions register the proposer {first.name!r}: {_distribution(first)!r} as "
                f"{first.value!r} and {_distribution(other)!r} as {other.value!r}; uninstall one of them"
            )
    return first


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"


def _check_factory(entry: ProposerEntry) -> None:
    if not callable(entry.factory):
        raise InvalidProposerError(
            f"{entry.where} of distribution {entry.distribution!r} must be a class or function "
            f"factory(context, settings), got {entry.factory!r}"
        )
    if entry.settings_type is not None and not isinstance(entry.settings_type, type):
        raise InvalidProposerError(
            f"{entry.where} of distribution {entry.distribution!r}: 'Settings' must be a dataclass, "
            f"got {entry.settings_type!r}"
        )
    try:
        parse(entry.settings_type or NoSettings, {}, entry.where)
    except (SettingsError, TypeError) as error:
        raise InvalidProposerError(
            f"{entry.where} of distribution {entry.distribution!r}: every option of 'Settings' needs a default "
            f"made by specplug.settings.option: {error}"
        ) from error
    parameters = ("context",) if entry.settings_type is None else ("context", "settings")
    try:
        inspect.signature(entry.factory).bind(*parameters)
    except ValueError:  # written in C without a signature: found out when it is built
        return
    except TypeError as error:
        raise InvalidProposerError(
            f"{entry.where} of distribution {entry.distribution!r} is called as "
            f"factory({', '.join(parameters)}), but takes {inspect.signature(entry.factory)}: {error}"
        ) from None
