"""The report as one HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ops.bench import plots
from ops.bench.compare import Comparison
from ops.bench.metrics import WORST, Metrics, confusions, mistakes
from ops.bench.run_file import Run
from ops.bench.show import HEADLINE, differences, family_rows, headline, percent, seconds, sentences
from ops.calibrate.fit import BINS
from ops.errors import UsageError


def page(run: Run, found: Metrics, *, against: tuple[Run, Metrics, Comparison] | None) -> str:
    """The page of a run; every text in it is escaped, and it tells no state, only ids and options."""
    runs = (run,) if against is None else (run, against[0])
    template = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("report.html")
    return template.render(
        run=run,
        found=found,
        against=against,
        bins=BINS,
        worst=WORST,
        headline=HEADLINE,
        lines=[headline(run, found), *([] if against is None else [headline(*against[:2])])],
        families=family_rows(found),
        sentences=sentences(found),
        differences=[] if against is None else differences(run, against[0], against[2]),
        reliability=Markup(plots.reliability(runs)),  # noqa: S704 - matplotlib escapes what it writes
        latencies=Markup(plots.latencies(runs)),  # noqa: S704
        coverage=Markup(plots.coverage(runs)),  # noqa: S704
        confusions=confusions(run.rows),
        mistakes=mistakes(run.rows),
        errors=[row for row in run.rows if row.error is not None],
        percent=percent,
        seconds=seconds,
    )


def write_page(path: Path, text: str) -> None:
    """Raises UsageError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
