"""Files of exit heads: one JSON header, then half-precision numbers, beside the model or anywhere else.

Layout: the magic line, the header's length as 8 bytes (little endian), the header (JSON), the arrays (float16, C order)
in the order that the header lists them. The header names the model by its fingerprint, and holds the SHA-256 of all
other entries of its own and of what follows it. Written to a temporary file and renamed, so that readers see the old
file or the new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specplug.errors import ExitHeadError
from specplug.files import replace_file
from specplug.layers.exit_head import ExitHead

MAGIC = b"specplug exit heads\n"
VERSION = 2
SUFFIX = ".exits"
#: Largest header that is believed.
_MOST_HEADER = 1 << 24


def save_heads(
    path: Path, heads: Sequence[ExitHead], fingerprint: str, facts: Mapping[str, Any] | None = None
) -> int:
    """Write heads of one model; returns the bytes of the file.

    Args:
        path: of the file.
        heads: at most one per exit layer, all of one hidden size.
        fingerprint: of the model.
        facts: JSON, for people: where the heads come from.

    Raises:
        ExitHeadError: nothing to write, heads that do not belong together, numbers beyond half precision, or the file
            cannot be written; an older file is then as it was.
    """
    layers = [head.exit_layer for head in heads]
    if not heads or len(set(layers)) != len(layers) or len({head.hidden for head in heads}) != 1:
        raise ExitHeadError(
            f"a file of exit heads needs heads of one hidden size, one per exit layer, got layers {layers} of sizes "
            f"{[head.hidden for head in heads]}"
        )
    body = b"".join(_half(head, part).tobytes() for head in heads for part in _parts(head))
    header: dict[str, Any] = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "hidden": heads[0].hidden,
        "heads": [
            {"exit_layer": head.exit_layer, "rank": head.rank, "factors": len(head.slope)}
            for head in heads
        ],
        "facts": dict(facts or {}),
    }
    # As it will be read: keys that are numbers become words, which sort differently.
    header = json.loads(json.dumps(header))
    header["sha256"] = _digest(header, body)
    text = json.dumps(header).encode()
    content = MAGIC + len(text).to_bytes(8, "little") + text + body
    try:
        replace_file(path, content)
    except OSError as error:
        raise ExitHeadError(f"{path}: cannot be written: {error}; choose another place") from error
    return len(content)


def load_heads(path: Path, fingerprint: str, hidden: int, layers: int) -> dict[int, ExitHead]:
    """Read the heads of a file, by exit layer.

    Args:
        path: of the file.
        fingerprint, hidden, layers: of the model that they are wanted for.

    Raises:
        ExitHeadError: no such file, not one of these files, a newer version, damaged, or made for another model.
    """
    header, body = _read(path)
    if header.get("version") != VERSION:
        raise ExitHeadError(
            f"{path}: version {header.get('version')!r} of exit heads, this specplug reads {VERSION}; fit them again "
            "with specplug fit-exit"
        )
    if header.get("fingerprint") != fingerprint:
        raise ExitHeadError(
            f"{path}: made for a model with fingerprint {header.get('fingerprint')!r}, but this one has "
            f"{fingerprint!r}; fit heads for it with specplug fit-exit"
        )
    if _digest(header, body) != header.get("sha256"):
        raise ExitHeadError(
            f"{path}: damaged, its checksum differs; fit it again with specplug fit-exit"
        )
    try:
        heads = _decode(header, body)
    except (KeyError, TypeError, ValueError) as error:
        raise ExitHeadError(
            f"{path}: damaged: {error}; fit it again with specplug fit-exit"
        ) from error
    wrong = [h.exit_layer for h in heads if h.hidden != hidden or not 1 <= h.exit_layer < layers]
    if wrong:
        raise ExitHeadError(
            f"{path}: heads of size {header['hidden']} after layers {wrong} do not fit a model of {layers} layers of "
            f"size {hidden}; fit heads for it with specplug fit-exit"
        )
    return {head.exit_layer: head for head in heads}


def read_facts(path: Path) -> dict[str, Any]:
    """The header of a file, for people. Checks nothing but that it is one.

    Raises:
        ExitHeadError: no such file, or not one of these files.
    """
    return _read(path)[0]


def _digest(header: Mapping[str, Any], body: bytes) -> str:
    rest = {name: value for name, value in header.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode() + body).hexdigest()


def _parts(head: ExitHead) -> list[NDArray[np.floating]]:
    return [*head.slope, head.constant]


def _half(head: ExitHead, part: NDArray[np.floating]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(part, np.dtype("<f2"))
    if not np.isfinite(half).all():
        raise ExitHeadError(
            f"the head after layer {head.exit_layer} has numbers beyond half precision (65504); fit it with a larger "
            "ridge or on more text"
        )
    return half


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ExitHeadError(
            f"{path}: cannot be read: {error}; make it with specplug fit-exit"
        ) from error
    start = len(MAGIC) + 8
    size = int.from_bytes(content[len(MAGIC) : start], "little")
    if not content.startswith(MAGIC) or not 0 < size <= min(_MOST_HEADER, len(content) - start):
        raise ExitHeadError(f"{path}: no file of exit heads; make one with specplug fit-exit")
    try:
        header = json.loads(content[start : start + size])
    except ValueError as error:
        raise ExitHeadError(f"{path}: damaged header: {error}; fit it again") from error
    if not isinstance(header, dict):
        raise ExitHeadError(f"{path}: damaged header; fit it again with specplug fit-exit")
    return header, content[start + size :]


def _decode(header: Mapping[str, Any], body: bytes) -> list[ExitHead]:
    hidden = int(header["hidden"])
    heads, place = [], 0
    for entry in header["heads"]:
        rank, factors = int(entry["rank"]), int(entry["factors"])
        shapes = [(hidden, rank)] if factors == 1 else [(hidden, rank), (rank, hidden)]
        arrays = []
        for shape in [*shapes, (hidden,)]:
            count = int(np.prod(shape))
            arrays.append(np.frombuffer(body, "<f2", count, place).reshape(shape))
            place += 2 * count
        heads.append(ExitHead(int(entry["exit_layer"]), tuple(arrays[:-1]), arrays[-1]))
    if place != len(body):
        raise ValueError(f"{len(body) - place} bytes too many")
    return heads
