"""Every error is of the package and of the builtin kind that a caller would catch."""

from __future__ import annotations

import pytest

from specplug import errors

BUILTIN = {
    "SettingsError": ValueError,
    "UnknownProposerError": LookupError,
    "InvalidProposerError": TypeError,
    "InvalidRequestError": ValueError,
    "InvalidDistributionError": ValueError,
    "HostMismatchError": RuntimeError,
    "LogError": ValueError,
    "ReplayError": RuntimeError,
    "MissingExtraError": ImportError,
    "StoreFileError": ValueError,
    "DatastoreError": ValueError,
    "SkipPlanError": ValueError,
    "ExitHeadError": ValueError,
}


@pytest.mark.parametrize("name", sorted(BUILTIN))
def test_an_error_is_caught_as_ours_and_as_the_builtin(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.SpecplugError)
    assert issubclass(kind, BUILTIN[name])


def test_no_error_class_is_missing_above() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SpecplugError)
    }
    assert defined == {*BUILTIN, "SpecplugError"}


@pytest.mark.parametrize(
    ("name", "valid", "message"),
    [
        ("sufix", ["suffix", "null"], "did you mean 'suffix'? valid names: null, suffix"),
        ("zzz", ["suffix", "null"], "valid names: null, suffix"),
        ("zzz", [], "there are none to choose from"),
    ],
)
def test_the_nearest_name_is_offered(name: str, valid: list[str], message: str) -> None:
    assert errors.did_you_mean(name, valid) == message
