"""Parts of all charts: canvas, axes without ornament, headings, bars, distributions, and the file they go to.

matplotlib is an extra (`pip install 'warmroute[lab]'`), so it is imported only where something is drawn, and
without pyplot: no global state, no display.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from router.cli.terminal.output import writing
from router.errors import ConfigError, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
INK, FAINT, EDGE, LINE = "#22272e", "#6b7280", "#d1d5db", "#e5e7eb"


def require() -> None:
    """Raise ExtraMissing when matplotlib is missing; called before a long run rather than after it."""
    with needs_extra("lab", "--chart"):
        import matplotlib  # noqa: F401


def require_for(file: Path) -> None:
    """Raise ExtraMissing without matplotlib, and ConfigError when the suffix of `file` names no known format."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"--chart: {file}: the name must end in {' or '.join(SUFFIXES)}")
    require()


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), dpi=150)
    layout = ConstrainedLayoutEngine()
    layout.set(wspace=0.05)
    figure.set_layout_engine(layout)
    FigureCanvasAgg(figure)
    return figure


def write_heading(figure: Figure, title: str, details: str | None = None) -> None:
    """Put a bold title at the top left of `figure`, and `details` in small type below it."""
    text = title if details is None else f"{title}\n"
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")
    if details is not None:
        figure.text(0.01, 0.91, details, color=FAINT, fontsize=8.5)


def label(axes: Axes, title: str | None = None, x: str | None = None, y: str | None = None, size: float = 10) -> None:
    """Write a title at the left above `axes` and names beside its two axes; None leaves one as it is."""
    if title is not None:
        axes.set_title(title, color=INK, loc="left", fontsize=size)
    if x is not None:
        axes.set_xlabel(x, color=FAINT, fontsize=size - 0.5)
    if y is not None:
        axes.set_ylabel(y, color=FAINT, fontsize=size - 0.5)


def bare(axes: Axes, labels: float, grid: Literal["x", "y", "both"] | None = None) -> None:
    """Remove frame and ticks, set tick labels to size `labels`, and draw grid lines if `grid` is set."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(EDGE)
    axes.tick_params(length=0, which="both", colors=INK, labelsize=labels)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=LINE, lw=0.7)


def draw_bars(
    axes: Axes, names: Sequence[str], lengths: Sequence[float], colours: Sequence[str], texts: Sequence[str]
) -> None:
    """Draw horizontal bars, from the top down, with a text at the end of each."""
    bars = axes.barh(names, lengths, height=0.6, color=colours)
    axes.bar_label(bars, texts, padding=4, color=INK, fontsize=8)
    axes.spines["left"].set_visible(False)


def draw_distribution(axes: Axes, values: Iterable[float], colour: str, name: str | None = None) -> None:
    """Draw the share of `values` (above 0) that are at most x, over a logarithmic x axis."""
    ordered = sorted(values)
    shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    axes.step(ordered, shares, where="post", color=colour, lw=2, label=name)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    plain_numbers(axes.xaxis)


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with 1, 2, 5, 10 and so on instead of powers of ten."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def save(figure: Figure, file: Path) -> None:
    """Write `figure` in the format of the file's suffix; missing folders are made. Raises WarmrouteError."""
    with writing(file, "--chart"):
        figure.savefig(file)
