"""A run's plots as SVG for the report's page, in the page's own colours, by day and by night."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ops.bench.metrics import answered, bins, confidence, is_right
from ops.bench.run_file import Run

# Matplotlib wants colours; the page's stylesheet gives these stand-ins their meaning.
_INK, _LINE = "#010203", "#040506"
_SERIES = ("#070809", "#0a0b0c")
_IN_PAGE = {_INK: "var(--ink)", _LINE: "var(--line)", _SERIES[0]: "var(--one)", _SERIES[1]: "var(--two)"}
_STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a name with dollars is a name
    "svg.fonttype": "none",  # text stays text: it is searched, read aloud, and in the page's font
    "svg.hashsalt": "report",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _LINE,
    "grid.linewidth": 0.5,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
}
_INCHES = (3.9, 3.0)
_LOGARITHMIC_FROM = 20  # times the smallest latency


def reliability(runs: Sequence[Run]) -> str:
    """Accuracy over confidence, a dot for each bin, as large as the bin has rows; honest is the diagonal."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=_INK, linewidth=1, linestyle=(0, (4, 3)), label="honest")
        for run, colour in zip(runs, cycle(_SERIES)):
            found = bins(run.rows)
            x, y = [each.confidence for each in found], [each.accuracy for each in found]
            area = [12 + 160 * each.rows / len(run.rows) for each in found]
            axes.plot(x, y, color=colour, linewidth=1, alpha=0.4)
            axes.scatter(x, y, s=area, color=colour, label=run.configuration, zorder=3)
        axes.set(xlim=(0, 1.02), ylim=(-0.03, 1.03), xlabel="probability of the chosen option", ylabel="share right")
        _legend(axes)

    return _svg("reliability", draw)


def latencies(runs: Sequence[Run]) -> str:
    """The share of rows that were answered within a time, the client's and dashed the model's."""

    def draw(axes: Axes) -> None:
        smallest, largest = np.inf, 0.0
        for run, colour in zip(runs, cycle(_SERIES)):
            given = answered(run.rows)
            if not given:
                continue
            client = [row.client_seconds for row, _ in given]
            model = [answer.model_seconds for _, answer in given]
            axes.ecdf(client, color=colour, linewidth=1.8, label=f"{run.configuration}, client")
            axes.ecdf(model, color=colour, linewidth=1.2, linestyle=(0, (3, 2)), label="in the model")
            smallest, largest = min(smallest, *client, *model), max(largest, *client, *model)
        if largest > _LOGARITHMIC_FROM * smallest > 0:
            axes.set_xscale("log")
        else:
            axes.set_xlim(left=0)
        axes.set(ylim=(0, 1.02), xlabel="seconds", ylabel="share of rows")
        _legend(axes)

    return _svg("latency", draw)


def coverage(runs: Sequence[Run]) -> str:
    """Accuracy among the surest answers, over the share of rows that are taken."""

    def draw(axes: Axes) -> None:
        for run, colour in zip(runs, cycle(_SERIES)):
            sure = sorted(((confidence(answer), is_right(row)) for row, answer in answered(run.rows)), reverse=True)
            if not sure:
                continue
            # Rows of one confidence are taken together or not at all.
            ends = [n for n in range(1, len(sure) + 1) if n == len(sure) or sure[n][0] < sure[n - 1][0]]
            right = np.cumsum([is_one for _, is_one in sure])
            axes.plot(
                [n / len(run.rows) for n in ends],
                [right[n - 1] / n for n in ends],
                color=colour,
                linewidth=1.8,
                label=run.configuration,
            )
        axes.set(xlim=(0, 1.02), ylim=(-0.03, 1.03), xlabel="share of rows answered", ylabel="share right of those")
        _legend(axes)

    return _svg("coverage", draw)


def _legend(axes: Axes) -> None:
    """Above the plot, where the longest name covers no line."""
    handles, labels = axes.get_legend_handles_labels()
    if handles and isinstance(axes.figure, Figure):
        axes.figure.legend(handles, labels, loc="outside upper left", fontsize=8)


def _svg(name: str, draw: Callable[[Axes], None]) -> str:
    with mpl.rc_context(_STYLE):
        # No pyplot: a figure of its own draws without a display, and leaves nothing behind.
        figure = Figure(figsize=_INCHES, layout="constrained")
        draw(figure.add_subplot())
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Inside HTML it needs no namespaces, and the stylesheet gives its size.
    svg = (
        re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", svg[: svg.index(">")]) + svg[svg.index(">") :]
    )
    # Several plots lie in one page.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    for stand_in, meaning in _IN_PAGE.items():
        svg = svg.replace(stand_in, meaning)
    return svg
