"""``specplug.verify`` offers its functions by name, and loads numba only when one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import specplug.verify as verify


def test_every_public_name_is_there() -> None:
    for name in verify.__all__:
        assert getattr(verify, name).__doc__ or name.isupper(), name
    assert dir(verify) == sorted(verify.__all__)
    with pytest.raises(AttributeError, match="no attribute 'reject'; public names: ORDERS"):
        verify.reject  # noqa: B018


def test_importing_it_is_cheap() -> None:
    code = "import sys, specplug.verify, specplug.verify.params; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
