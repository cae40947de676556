"""What all charts share: ink, canvas and axes without ornament, and saying in time that they cannot be drawn.

matplotlib is an extra (`pip install 'warmroute[bench]'`), so it is imported only where something is drawn, and without
pyplot: nothing global, no display.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
INK, FAINT, EDGE, LINE = "#22272e", "#6b7280", "#d1d5db", "#e5e7eb"


class ChartsUnavailable(WarmrouteError):
    """matplotlib is not installed."""


def require() -> None:
    """Raises NoCharts: better before a long run than after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise ChartsUnavailable(
            "charts need matplotlib: pip install 'warmroute[bench]', or ask for no chart (--no-chart)"
        ) from missing


def require_for(file: Path) -> None:
    """As `require`, and ConfigError for a name that says no format."""
    if file.suffix not in SUFFIXES:
        raise ConfigError(f"--chart: {file}: wanted a name that ends in {' or '.join(SUFFIXES)}")
    require()


def canvas(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), dpi=150)
    layout = ConstrainedLayoutEngine()
    layout.set(wspace=0.05)
    figure.set_layout_engine(layout)
    FigureCanvasAgg(figure)
    return figure


def bare(axes: Axes, labels: float, grid: Literal["x", "y", "both"] | None = None) -> None:
    """No frame and no ticks, labels of this size, and where wanted lines behind what is drawn."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(EDGE)
    axes.tick_params(length=0, which="both", colors=INK, labelsize=labels)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(axis=grid, color=LINE, lw=0.7)


def plain_numbers(axis: Axis) -> None:
    """1, 2, 5, 10 and so on along a logarithmic axis, and no powers of ten."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def save(figure: Figure, file: Path) -> None:
    """In the format that the name says; its folder is made. Raises WarmrouteError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
    except OSError as failure:
        raise WarmrouteError(f"--chart: {file}: {(failure.strerror or str(failure)).lower()}") from failure
