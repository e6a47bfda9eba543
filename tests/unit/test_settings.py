"""Options are read as written or refused: nothing is converted, ignored or guessed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, make_dataclass
from typing import Any, Literal

import pytest

from specplug.errors import SettingsError
from specplug.proposers.suffix import SuffixSettings
from specplug.settings import NoSettings, describe, option, parse


@dataclass(frozen=True)
class Example:
    max_depth: int = option(8, minimum=1, maximum=64, help="Deepest draft.")
    cost: float = option(0.5, minimum=0.0, help="Cost of a token.")
    greedy: bool = option(False, help="Whether greedy.")
    mode: Literal["fast", "small"] = option("fast", help="What to save.")
    limit: int | None = option(None, minimum=0, help="Most tokens.")
    path: str = option("", help="A file.")


def read(**options: Any) -> Example:
    return parse(Example, options, "specplug.example")


def test_nothing_given_is_all_defaults() -> None:
    assert read() == Example(8, 0.5, False, "fast", None, "")


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError) as caught:
        read(max_dept=3)
    assert str(caught.value) == (
        "specplug.example: unknown option 'max_dept'; did you mean 'max_depth'? "
        "valid names: cost, greedy, limit, max_depth, mode, path"
    )


def test_an_option_of_something_without_options_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown option 'x'; there are none to choose from"):
        parse(NoSettings, {"x": 1}, "specplug.null")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_depth", True, "int"),
        ("max_depth", 3.0, "int"),
        ("max_depth", "3", "int"),
        ("max_depth", None, "int"),
        ("max_depth", [3], "int"),
        ("cost", False, "float"),
        ("cost", "0.5", "float"),
        ("cost", None, "float"),
        ("cost", float("nan"), "float"),
        ("cost", float("inf"), "float"),
        ("cost", float("-inf"), "float"),
        ("cost", 10**400, "float"),
        ("greedy", 1, "bool"),
        ("greedy", "true", "bool"),
        ("mode", "slow", "'fast' or 'small'"),
        ("mode", ["fast"], "'fast' or 'small'"),
        ("mode", None, "'fast' or 'small'"),
        ("limit", "none", "int or null"),
        ("limit", False, "int or null"),
        ("path", 3, "str"),
    ],
)
def test_a_wrong_type_is_refused_with_the_value_and_the_right_type(
    name: str, value: Any, expected: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(**{name: value})
    assert str(caught.value) == (
        f"specplug.example: option {name!r} must be {expected}, got {value!r}"
    )


def test_a_whole_number_is_a_float() -> None:
    cost = read(cost=2).cost
    assert cost == 2.0
    assert type(cost) is float


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_depth", 1),
        ("max_depth", 64),
        ("cost", 0.0),
        ("cost", 1e300),
        ("limit", 0),
        ("limit", None),
        ("mode", "small"),
        ("greedy", True),
        ("path", "x/y"),
    ],
)
def test_valid_values_ends_of_ranges_included(name: str, value: Any) -> None:
    assert getattr(read(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("max_depth", 0, "between 1 and 64"),
        ("max_depth", 65, "between 1 and 64"),
        ("cost", -1e-9, "at least 0.0"),
        ("limit", -1, "at least 0"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(name: str, value: Any, bounds: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(**{name: value})
    assert str(caught.value) == (
        f"specplug.example: option {name!r} must be {bounds}, got {value!r}"
    )


def test_an_upper_bound_alone() -> None:
    @dataclass(frozen=True)
    class Upper:
        share: float = option(0.0, maximum=1, help="")

    assert parse(Upper, {"share": 1}, "x").share == 1.0
    with pytest.raises(SettingsError, match=r"'share' must be at most 1, got 1\.5"):
        parse(Upper, {"share": 1.5}, "x")


def test_hyphens_and_underscores_are_equal() -> None:
    assert parse(Example, {"max-depth": 3}, "x") == Example(max_depth=3)


def test_the_same_option_in_both_spellings_is_refused() -> None:
    with pytest.raises(SettingsError, match="'max_depth' is given twice"):
        parse(Example, {"max-depth": 3, "max_depth": 3}, "x")


@pytest.mark.parametrize("options", [None, [], ["max_depth"], "max_depth=3", 3])
def test_options_that_are_no_mapping_are_refused(options: Any) -> None:
    with pytest.raises(SettingsError, match="must be an object of names and values, got"):
        parse(Example, options, "x")


def test_a_key_that_is_no_string_is_unknown() -> None:
    with pytest.raises(SettingsError, match="unknown option 5;"):
        parse(Example, {5: 1}, "x")  # type: ignore[dict-item]


def test_describe_lists_every_option_in_order() -> None:
    rows = describe(Example)
    assert [row["name"] for row in rows] == list(asdict(Example()))
    assert rows[0] == {
        "name": "max_depth",
        "type": "int",
        "default": 8,
        "minimum": 1,
        "maximum": 64,
        "help": "Deepest draft.",
        "tune": [],
    }
    assert [row["type"] for row in rows] == [
        "int",
        "float",
        "bool",
        "'fast' or 'small'",
        "int or null",
        "str",
    ]
    assert describe(NoSettings) == []


def test_a_default_that_is_made_by_a_factory_is_described_as_none() -> None:
    @dataclass(frozen=True)
    class Made:
        path: str = field(default_factory=str)

    assert describe(Made)[0]["default"] is None


@pytest.mark.parametrize("settings", [Example(), Example(64, 2.0, True, "small", 3, "x")])
def test_settings_survive_the_way_through_a_dictionary(settings: Example) -> None:
    assert parse(Example, asdict(settings), "x") == settings


def test_the_suffix_settings_survive_the_way_through_a_dictionary() -> None:
    settings = SuffixSettings(store_mb=1.5, verify_cost=0.1)
    assert parse(SuffixSettings, asdict(settings), "x") == settings


def test_settings_that_are_no_dataclass_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"settings must be a dataclass, got .*int"):
        parse(int, {}, "x")


def test_an_option_whose_type_cannot_be_checked_is_refused_even_if_not_given() -> None:
    lists = make_dataclass("Lists", [("depths", list[int], option(None, help=""))])
    with pytest.raises(SettingsError, match=r"Lists\.depths: an option is .*got list\[int\]"):
        parse(lists, {}, "x")


def test_a_literal_of_numbers_is_refused() -> None:
    numbers = make_dataclass("Numbers", [("depth", Literal[1, 2], option(1, help=""))])
    with pytest.raises(SettingsError, match=r"Numbers\.depth: .*got typing\.Literal\[1, 2\]"):
        parse(numbers, {}, "x")


def test_a_type_that_exists_for_type_checkers_only_is_refused() -> None:
    hidden = make_dataclass("Hidden", [("depth", "Undefined", option(1, help=""))])
    with pytest.raises(SettingsError, match="Hidden: name 'Undefined' is not defined"):
        parse(hidden, {}, "x")
