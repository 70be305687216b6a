"""Figures without a display (extra `plots`)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.fs.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Distinguishable with color vision deficiencies.
COLORS = ("#0067a5", "#c24d00", "#00795a", "#a8447d", "#8a6a00", "#5b4bb5", "#b0202e", "#4d5a66")


def require_matplotlib() -> None:
    """ValueError without matplotlib; call it before the work whose result is to be plotted."""
    if find_spec("matplotlib") is None:
        raise ValueError("a plot needs matplotlib: pip install matplotlib (elmokit's extra plots)")


def check_plot(path: str | Path | None) -> None:
    """ValueError, before the work, if a picture cannot be plotted: without matplotlib, or in the format of its suffix.

    None: nothing is to be plotted.
    """
    if path is None:
        return
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    if Path(path).suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f"{path}: matplotlib cannot write this format: choose .png, .svg or .pdf")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, width and height in inches. ValueError without matplotlib."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def save_figure(figure: Figure, path: str | Path, overwrite: bool = True) -> Path:
    """Write a figure, in the format that the suffix names, atomically; returns the path."""
    with atomic_path(path, overwrite) as partial:
        figure.savefig(partial)
    return Path(path)
