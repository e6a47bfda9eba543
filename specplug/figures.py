"""What a picture in a file starts from: an empty figure, and a clear error without matplotlib."""

from __future__ import annotations

from typing import Any

from specplug.errors import MissingExtraError


def new_figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """An empty figure of ``size`` inches and its axes, ``[rows, columns]``; panels of a column share their x axis.

    Made by the object interface: nothing global changes, no display is needed, and no figure is kept.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing a plot", "matplotlib", "report") from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex="col")
