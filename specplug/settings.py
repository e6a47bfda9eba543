"""Typed options: a frozen dataclass describes them, :func:`parse` reads a mapping into one.

An option is a dataclass field made by :func:`option`; its annotation may be ``int``, ``float``, ``bool``,
``str``, a ``Literal`` of strings, or any of these with ``| None``. Nothing is converted silently: an unknown
key, a wrong type or a value out of range is refused with a sentence that names the nearest valid choice.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from specplug.errors import SettingsError, did_you_mean

SettingsT = TypeVar("SettingsT")


def option(
    default: Any,
    *,
    help: str,
    minimum: float | None = None,
    maximum: float | None = None,
    tune: Sequence[Any] = (),
) -> Any:
    """A dataclass field with a documented meaning, an inclusive range, and values that ``specplug tune`` tries."""
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "tune": tuple(tune)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class NoSettings:
    """The settings of something that has no options."""


def parse(cls: type[SettingsT], options: Mapping[str, Any], where: str) -> SettingsT:
    """Read ``options`` into an instance of the settings dataclass ``cls``.

    Args:
        cls: a dataclass whose fields were made by :func:`option`.
        options: what the user wrote; hyphens and underscores in keys are equal.
        where: how error messages call this group of options, for example ``specplug.suffix``.

    Raises:
        SettingsError: unknown key, wrong type or value out of range.
    """
    if not isinstance(options, Mapping):
        raise SettingsError(
            f"{where}: options must be an object of names and values, got {options!r}"
        )
    known = {f.name: f for f in _fields(cls)}
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for raw, value in options.items():
        name = str(raw).replace("-", "_")
        if name not in known:
            raise SettingsError(f"{where}: unknown option {raw!r}; {did_you_mean(name, known)}")
        if name in values:
            raise SettingsError(f"{where}: option {name!r} is given twice; keep one of them")
        values[name] = _checked(known[name], hints[name], value, where)
    return cls(**values)


def describe(cls: type) -> list[dict[str, Any]]:
    """Name, type, default, range and meaning of every option of a settings dataclass, in order."""
    hints = _hints(cls)
    return [
        {
            "name": f.name,
            "type": _type_name(hints[f.name]),
            "default": None if f.default is MISSING else f.default,
            "minimum": f.metadata.get("minimum"),
            "maximum": f.metadata.get("maximum"),
            "help": f.metadata.get("help", ""),
            "tune": list(f.metadata.get("tune", ())),
        }
        for f in _fields(cls)
    ]


def _fields(cls: type) -> tuple[Field[Any], ...]:
    if not is_dataclass(cls):
        raise SettingsError(f"settings must be a dataclass, got {cls!r}")
    return fields(cls)


def _hints(cls: type) -> dict[str, Any]:
    """The annotation of every option; refused if no value could be checked against it."""
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise SettingsError(
            f"{cls.__name__}: {error}; import what the annotations name outside of TYPE_CHECKING"
        ) from error
    for f in _fields(cls):
        for part in _choices(hints[f.name]):
            words = get_origin(part) is Literal and all(isinstance(v, str) for v in get_args(part))
            if not words and part not in (int, float, bool, str, type(None)):
                raise SettingsError(
                    f"{cls.__name__}.{f.name}: an option is an int, float, bool, str or Literal of strings, "
                    f"or one of these | None, got {part!r}"
                )
    return hints


def _choices(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a (possibly optional) annotation."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _type_name(hint: Any) -> str:
    names = []
    for part in _choices(hint):
        if get_origin(part) is Literal:
            names.append(" or ".join(repr(v) for v in get_args(part)))
        else:
            names.append("null" if part is type(None) else part.__name__)
    return " or ".join(names)


def _checked(spec: Field[Any], hint: Any, value: Any, where: str) -> Any:
    for part in _choices(hint):
        accepted, result = _match(part, value)
        if accepted:
            _check_range(spec, result, where)
            return result
    raise SettingsError(f"{where}: option {spec.name!r} must be {_type_name(hint)}, got {value!r}")


def _match(part: Any, value: Any) -> tuple[bool, Any]:
    if part is type(None):
        return value is None, None
    if get_origin(part) is Literal:
        return value in get_args(part), value
    if part is bool or isinstance(value, bool):
        return part is bool and isinstance(value, bool), value
    if part is float:
        return _match_float(value)
    return isinstance(value, part), value


def _match_float(value: Any) -> tuple[bool, Any]:
    try:
        real = isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats, which JSON can hold
        real = False
    return real, float(value) if real else value


def _check_range(spec: Field[Any], value: Any, where: str) -> None:
    low, high = spec.metadata.get("minimum"), spec.metadata.get("maximum")
    if value is None or isinstance(value, str):
        return
    if (low is not None and value < low) or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"at most {high}"
        if low is not None and high is not None:
            bounds = f"between {low} and {high}"
        raise SettingsError(f"{where}: option {spec.name!r} must be {bounds}, got {value!r}")
