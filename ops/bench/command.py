"""The commands `decide bench`, which asks and reports, and `decide report`, which reports again."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ops.errors import FailedError, UsageError
from ops.options import EndpointName, EndpointUrl, Json, Local, OptionalEnvironmentName
from ops.output import note

if TYPE_CHECKING:
    from ops.bench.run_file import Run

_ROOT = Path(__file__).resolve().parents[2]

_Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one HTML page.")]
_Against = Annotated[
    Path | None, typer.Option("--against", metavar="RUN", help="Compare with this run file, row by row.")
]


def bench(
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="Labelled decisions, JSON Lines as JevBench has them.")
    ],
    env: OptionalEnvironmentName = None,
    *,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What reports call this configuration.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="RUN", help="Write the run, for later reports and comparisons.")
    ] = None,
    html: _Html = None,
    against: _Against = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Decisions asked at a time.")] = 1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Ask only the first rows.")] = None,
    endpoint: EndpointName = None,
    endpoint_url: EndpointUrl = None,
    local: Local = None,
    as_json: Json = False,
) -> None:
    """How right, how sure and how fast an endpoint is on labelled decisions.

    Asks every row once. Accuracy by family with intervals, Brier score, calibration and ordinal error, latencies, and
    what thresholds would leave. The run file holds every row's answer but no word of its state. Exit status 1 where a
    row was not answered.

    Example: decide bench labelled.jsonl dev --output run.json --html report.html
    """
    # numpy takes longer to import than the rest of the command line.
    from ops.bench.ask import ask  # noqa: PLC0415
    from ops.bench.compare import check_same_dataset  # noqa: PLC0415
    from ops.bench.run_file import Dataset, Run, read_run, write_run  # noqa: PLC0415
    from ops.bench.target import target_of  # noqa: PLC0415
    from ops.labelled import read_labelled  # noqa: PLC0415

    for option, path in (("--output", output), ("--html", html)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(f"{option}: there is no folder {path.parent}")
    file = read_labelled(labelled)
    dataset = Dataset(file.name, file.sha256, len(file.rows))
    other = None if against is None else read_run(against)
    if other is not None:  # before an hour of questions, not after it
        check_same_dataset(dataset, other.dataset)
    target, client = target_of(env, endpoint, endpoint_url, local)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with client:
        asked = ask(file.rows[:limit], client.decide, concurrency=concurrency)
    run = Run(
        configuration=name or target.described,
        date=began,
        commit=_commit(),
        dataset=dataset,
        target=target,
        answered_by=asked.answered_by,
        throughput=asked.throughput,
        rows=asked.rows,
    )
    if output is not None:
        write_run(run, output)
    _report(run, other, html=html, as_json=as_json)
    if unanswered := [row for row in run.rows if row.error is not None]:
        raise FailedError(
            f"{len(unanswered)} of {len(run.rows)} rows were not answered, the first, {unanswered[0].id!r}, because: "
            f"{unanswered[0].error}"
        )


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run file of `decide bench --output`.")],
    *,
    html: _Html = None,
    against: _Against = None,
    as_json: Json = False,
) -> None:
    """Report a run of `decide bench` again, or compare it with another one, without asking anybody.

    Example: decide report run.json --against before.json --html report.html
    """
    from ops.bench.run_file import read_run  # noqa: PLC0415

    _report(read_run(run), None if against is None else read_run(against), html=html, as_json=as_json)


def _report(run: Run, other: Run | None, *, html: Path | None, as_json: bool) -> None:
    from ops.bench import show  # noqa: PLC0415
    from ops.bench.compare import compare  # noqa: PLC0415
    from ops.bench.metrics import metrics  # noqa: PLC0415
    from ops.output import show_json  # noqa: PLC0415

    found = metrics(run.rows)
    against = None if other is None else (other, metrics(other.rows), compare(run, other))
    if as_json:
        show_json(show.document(run, found, against=against))
    else:
        show.show(run, found, against=against)
    if html is not None:
        # Only who wants plots waits for matplotlib.
        from ops.bench.page import page, write_page  # noqa: PLC0415

        write_page(html, page(run, found, against=against))
        note(f"{html} is the report")


def _commit() -> str | None:
    """The commit of this checkout, with a + where files differ from it; None where git knows none."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
