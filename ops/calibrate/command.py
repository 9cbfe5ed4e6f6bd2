"""The command `decide calibrate`: asks, fits, measures out of fold, and writes what pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.errors import FailedError
from ops.options import EndpointName, EndpointUrl, Json, Local, OptionalEnvironmentName
from ops.output import note, say, show_json


def calibrate(
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="Labelled decisions, JSON Lines as JevBench has them.")
    ],
    env: OptionalEnvironmentName = None,
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What requests will call it.")],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where it is added to the others.")] = Path(
        "calibrations.json"
    ),
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of this name.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Decisions asked at a time.")] = 4,
    endpoint: EndpointName = None,
    endpoint_url: EndpointUrl = None,
    local: Local = None,
    as_json: Json = False,
) -> None:
    """Fit temperatures to labelled decisions, so that 0.8 means right in 8 of 10, and write them for an endpoint.

    One temperature for all, and one for each type of question with enough rows: 100, with 20 right and 20 wrong. What
    they are worth is measured on rows that they were not fitted on. Nothing is written, and the exit status is 1, where
    there are too few rows or where it does not pay. Choose the file as an environment's `calibrations` and deploy.

    Example: decide calibrate labelled.jsonl dev --name support --output calibrations/dev.json
    """
    # numpy takes longer to import than the rest of the command line.
    from ops.calibrate import report  # noqa: PLC0415
    from ops.calibrate.answers import ask  # noqa: PLC0415
    from ops.calibrate.file import add, check_target  # noqa: PLC0415
    from ops.calibrate.fit import OUT_OF_BOUNDS, ROWS, fit  # noqa: PLC0415
    from ops.calibrate.labelled import read_labelled  # noqa: PLC0415
    from ops.calibrate.target import decide_by  # noqa: PLC0415

    check_target(output, name, replace=replace)
    file = read_labelled(labelled)
    if len(file.rows) < ROWS:  # known before anything is asked
        raise FailedError(f"too little to fit a temperature: {len(file.rows)} rows, at least {ROWS} are needed")
    given = ask(file.rows, decide_by(env, endpoint, endpoint_url, local), concurrency=concurrency)
    source = {"file": file.name, "sha256": file.sha256}
    if (lacks := given.sample.lacks()) is not None:
        raise FailedError(f"too little to fit a temperature: {lacks}; nothing is written")
    found = fit(given.sample)
    if found.overall.at_bound:
        raise FailedError(f"{OUT_OF_BOUNDS}; nothing is written")
    if as_json:
        show_json({"name": name, "fitted_for": given.fitted_for, "source": source, **report.document(found)})
    else:
        report.show(found)
        say()
        say(report.verdict(found))
    if not found.typed.pays:
        raise FailedError("nothing is written")
    add(output, name, report.entry(found, given.fitted_for, source))
    note(f"{output} holds {name!r} now")
