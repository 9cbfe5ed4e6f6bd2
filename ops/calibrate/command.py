"""The command `decide calibrate`: asks, fits, measures out of fold, and writes what pays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.errors import FailedError, UsageError
from ops.options import EndpointName, EndpointUrl, Json, Local, OptionalEnvironmentName
from ops.output import note, say, show_json


def calibrate(
    labelled: Annotated[
        Path,
        typer.Argument(
            metavar="LABELLED", help="Labelled decisions (JSON Lines as JevBench has them), or a run of `decide bench`."
        ),
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

    A run file of `decide bench --output` does as well: then nothing is asked again.

    Example: decide calibrate labelled.jsonl dev --name support --output calibrations/dev.json
    """
    # numpy takes longer to import than the rest of the command line.
    from ops.calibrate import report  # noqa: PLC0415
    from ops.calibrate.answers import answers_of_run, ask_labelled, is_run  # noqa: PLC0415
    from ops.calibrate.file import add, check_target  # noqa: PLC0415
    from ops.calibrate.fit import OUT_OF_BOUNDS, fit  # noqa: PLC0415
    from ops.target import client_for  # noqa: PLC0415

    check_target(output, name, replace=replace)
    if is_run(labelled):
        if (env, endpoint, endpoint_url, local) != (None,) * 4:
            raise UsageError(
                f"{labelled} is a run, which was asked already: leave out ENV, --endpoint and the addresses"
            )
        given = answers_of_run(labelled)
    else:
        with client_for(env, endpoint, endpoint_url, local) as client:
            given = ask_labelled(labelled, client.decide, concurrency=concurrency)
    if (lacks := given.sample.lacks()) is not None:
        raise FailedError(f"too little to fit a temperature: {lacks}; nothing is written")
    found = fit(given.sample)
    if found.overall.at_bound:
        raise FailedError(f"{OUT_OF_BOUNDS}; nothing is written")
    if as_json:
        show_json({"name": name, "fitted_for": given.fitted_for, "source": given.source, **report.document(found)})
    else:
        report.show(found)
        say()
        say(report.verdict(found))
    if not found.typed.pays:
        raise FailedError("nothing is written")
    add(output, name, report.entry(found, given.fitted_for, given.source))
    note(f"{output} holds {name!r} now")
