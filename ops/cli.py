"""The command `decide`: its subcommands, and what becomes of their errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer
from botocore.exceptions import BotoCoreError, ClientError

from ops.bench.command import bench, report
from ops.calibrate.command import calibrate
from ops.calibrate.orders import orders
from ops.cost import cost
from ops.doctor.command import doctor
from ops.errors import UNREACHABLE, OpsError, aws_sentence
from ops.invoke.command import invoke
from ops.logs import logs
from ops.status import status
from ops.sweep.command import sweep
from ops.verify import verify

app = typer.Typer(
    name="decide",
    help="Operate decision endpoints: check before and after a deploy, ask, measure, calibrate, price, clean up.",
    epilog=(
        "Exit status: 0 done, 1 a check or a row failed, 2 wrong usage or input, 3 AWS or the endpoint did not answer."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.command()(bench)
app.command()(calibrate)
app.command()(cost)
app.command()(doctor)
app.command()(invoke)
app.command()(logs)
app.command()(orders)
app.command()(report)
app.command()(status)
app.command()(sweep)
app.command()(verify)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit status; prints one sentence instead of a traceback for what goes wrong."""
    try:
        app(args=None if arguments is None else list(arguments), prog_name="decide")
    except OpsError as error:
        return _fail(str(error), error.exit_status)
    except (BotoCoreError, ClientError) as error:
        return _fail(aws_sentence(error), UNREACHABLE)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    return 0


def _fail(sentence: str, status: int) -> int:
    print(f"decide: {sentence}", file=sys.stderr)
    return status
