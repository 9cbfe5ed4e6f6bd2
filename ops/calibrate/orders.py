"""The command `decide orders`: whether averaging over orders of the options is worth its cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.options import EndpointName, EndpointUrl, Json, Local, OptionalEnvironmentName


def orders(
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="Labelled decisions, JSON Lines as JevBench has them.")
    ],
    env: OptionalEnvironmentName = None,
    *,
    count: Annotated[
        int, typer.Option("--orders", min=2, max=8, help="Orders to average over, as a decision's `permutations`.")
    ] = 4,
    endpoint: EndpointName = None,
    endpoint_url: EndpointUrl = None,
    local: Local = None,
    as_json: Json = False,
) -> None:
    """How far answers depend on the order of the options, and whether averaging over orders pays.

    Asks every labelled decision in its own order and averaged over several, one after the other, and compares accuracy,
    Brier score and log likelihood, row by row. It pays where the average is surely better than a single order with a
    temperature, which costs nothing. Exit status 0 whichever it is.

    Example: decide orders labelled.jsonl dev --orders 4
    """
    # numpy takes longer to import than the rest of the command line.
    from ops.calibrate import order_report  # noqa: PLC0415
    from ops.calibrate.answers import ask_both_ways  # noqa: PLC0415
    from ops.calibrate.order_effect import order_effect  # noqa: PLC0415
    from ops.labelled import read_labelled  # noqa: PLC0415
    from ops.output import show_json  # noqa: PLC0415
    from ops.target import client_for  # noqa: PLC0415

    rows = read_labelled(labelled).rows
    with client_for(env, endpoint, endpoint_url, local) as client:
        found = order_effect(ask_both_ways(rows, client.decide, orders=count))
    if as_json:
        show_json(order_report.document(found, count))
    else:
        order_report.show(found, count)
