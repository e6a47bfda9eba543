"""Every exception class of the package.

Each class also inherits the builtin that a caller would expect, and each message shows the offending
value, what was expected and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpecplugError(Exception):
    """Base of all errors that specplug raises on purpose."""


class SettingsError(SpecplugError, ValueError):
    """An option is unknown, has the wrong type or lies outside its range."""


class UnknownProposerError(SpecplugError, LookupError):
    """No installed distribution registers a proposer of this name."""


class InvalidProposerError(SpecplugError, TypeError):
    """A registered object does not satisfy the proposer protocol."""


class InvalidRequestError(SpecplugError, ValueError):
    """A request, history or buffer handed to the session is malformed."""


class InvalidDistributionError(SpecplugError, ValueError):
    """An array that should hold probabilities does not."""


class HostMismatchError(SpecplugError, RuntimeError):
    """The host engine lacks a symbol that an adapter relies on, or has an untested version."""


class LogError(SpecplugError, ValueError):
    """A log of requests or a tokenizer to read it with is missing, damaged or of an unknown form."""


class DatastoreError(SpecplugError, ValueError):
    """A datastore is missing, damaged, of another version or made for another vocabulary; or it cannot be built."""


class ReplayError(SpecplugError, RuntimeError):
    """A proposer broke its contract or an invariant while a log was replayed."""


class StoreFileError(SpecplugError, ValueError):
    """A saved store is damaged, foreign, of a newer version, or made for another vocabulary.

    Attributes:
        damaged: it was once a store of this kind, so it may be set aside and written anew.
    """

    def __init__(self, message: str, *, damaged: bool = False) -> None:
        super().__init__(message)
        self.damaged = damaged


class SkipPlanError(SpecplugError, ValueError):
    """A plan of layer skipping, or a policy that makes such plans, does not fit the model."""


class ExitHeadError(SpecplugError, ValueError):
    """An exit head is damaged, of another version, made for another model, or cannot be fitted or saved."""


class MissingExtraError(SpecplugError, ImportError):
    """A third-party package is needed that the core does not depend on."""

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed; "
            f"pip install 'specplug[{extra}]'"
        )


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The end of an error sentence: the nearest valid name, if any, and the whole list.

    >>> did_you_mean("max_dept", ["max_depth", "min_match"])
    "did you mean 'max_depth'? valid names: max_depth, min_match"
    """
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1)
    listing = f"valid names: {', '.join(names)}" if names else "there are none to choose from"
    return f"did you mean {near[0]!r}? {listing}" if near else listing
