"""The command `decide invoke`."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.client import CONNECTIONS, DecisionError, Outcome, Policy, Retry
from ops.errors import FAILED, UNREACHABLE, FailedError, OpsError, UsageError
from ops.invoke.results import Output, failure_line, opened_failures, opened_output, write_line
from ops.invoke.rows import BadRow, Row, load, parse_row, parse_rows
from ops.invoke.run import Stop, ask_all, ask_one, interruptible
from ops.options import EndpointName, EndpointUrl, Json, Local, OptionalEnvironmentName
from ops.output import note, progress, say, show_json, show_table
from ops.target import client_for
from stacks.verification.verify import DECISION

_STDIN = Path("-")
_LINES = (".jsonl", ".ndjson")
_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it

Decide = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Summary:
    """What became of the rows: `answered` + `failed` + `not_asked` = `rows`.

    `before` of the answered are of an earlier run.
    """

    rows: int
    answered: int
    before: int
    failed: int
    not_asked: int
    fell_back: int
    seconds: float


def invoke(
    env: OptionalEnvironmentName = None,
    *,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE|-",
            help="A decision as JSON, or one a line (JSON Lines); - is standard input. Left out, an example is asked.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where answers go, a line each; given again, goes on."),
    ] = None,
    failures: Annotated[
        Path | None,
        typer.Option(
            "--failures",
            metavar="FILE",
            help="Where failed rows go. Left out, beside --output, or else to standard error.",
        ),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=CONNECTIONS, help="Rows asked at a time.")
    ] = 4,
    min_probability: Annotated[
        float | None,
        typer.Option("--min-probability", metavar="P", min=0, max=1, help="What the likeliest option needs to count."),
    ] = None,
    fallback: Annotated[
        str | None, typer.Option("--fallback", metavar="ID", help="The option to choose where none counts.")
    ] = None,
    endpoint: EndpointName = None,
    endpoint_url: EndpointUrl = None,
    local: Local = None,
    as_json: Json = False,
) -> None:
    """Ask one decision, or all the rows of a file, and say what to do by the answers.

    A busy endpoint is asked again. Rows may have `min_probability` and `fallback` of their own. Answers come as they
    end, with the number and the id of their row; the same command again asks only what is not answered yet. Exit
    status 1 where a row failed. An adapter that wants a key gets that of DECIDE_API_KEY.

    Example: decide invoke dev -i tickets.jsonl -o answers.jsonl --concurrency 8 --min-probability 0.8 --fallback review
    """
    policy = Policy(min_probability, fallback)
    stop = Stop()
    with client_for(env, endpoint, endpoint_url, local, retry=Retry(sleep=stop.sleep)) as client:
        content = _read(source)
        if output is None and failures is None and (row := _single(source, content, policy)) is not None:
            _ask_single(row, client.decide, client.target, as_json=as_json)
            return
        rows = parse_rows(content, policy)
        _check_paths(source, output, failures)
        with interruptible(stop):
            try:
                summary = _ask_rows(
                    rows, client.decide, stop, output=output, failures=failures, concurrency=concurrency
                )
            except BrokenPipeError:  # such as `| head`: nobody wants the rest
                raise
            except OSError as error:
                raise FailedError(
                    f"answers or failures cannot be written: {error.strerror}; make room and repeat the command"
                ) from error
    _end(summary, stop, output, failures or _beside(output), as_json=as_json)


def _read(source: Path | None) -> bytes:
    """The input's bytes, or the example's, without a byte order mark."""
    if source is None:
        return json.dumps(DECISION).encode()
    try:
        content = sys.stdin.buffer.read() if source == _STDIN else source.read_bytes()
    except OSError as error:
        raise UsageError(f"--input {source} cannot be read: {error.strerror}") from error
    return content.removeprefix(codecs.BOM_UTF8)


def _single(source: Path | None, content: bytes, policy: Policy) -> Row | None:
    """The one decision that the input is; None where it has a decision a line."""
    if source is not None and source.suffix in _LINES:
        return None
    try:
        said = load(content)
    except UsageError as error:
        if any(_is_decision(line) for line in content.splitlines()):
            return None
        raise UsageError(f"{'standard input' if source == _STDIN else source} is {error}") from error
    if not isinstance(said, dict):
        raise UsageError("the input must be a decision, a JSON object, or one a line")
    row = parse_row(1, content, policy)
    if isinstance(row, BadRow):
        raise UsageError(row.reason)
    if row.policy.fallback is not None and row.policy.min_probability is None:
        raise UsageError("the fallback is never taken: give --min-probability, too")
    return row


def _is_decision(line: bytes) -> bool:
    try:
        said = load(line)
    except UsageError:
        return False
    return isinstance(said, dict) and ("state" in said or "decision" in said)


def _ask_single(row: Row, decide: Decide, target: str, *, as_json: bool) -> None:
    begun = time.monotonic()
    outcome, result = ask_one(row, decide)
    milliseconds = (time.monotonic() - begun) * 1000
    if as_json:
        show_json({**asdict(outcome), "result": result})
        return
    try:
        logits = dict(zip(result["option_ids"], result["option_logits"], strict=True))
        found = sorted(zip(result["option_ids"], result["probabilities"], strict=True), key=lambda pair: -pair[1])
        options = [(str(name), f"{p:.4f}", f"{logits[name]:.3f}") for name, p in found]
        facts = list(_facts(outcome, result, milliseconds))
    except (KeyError, TypeError, ValueError) as error:
        raise DecisionError(f"what answers is no decision endpoint: its result is not one ({error})") from error
    say(f"{row.decision.get('question')} ({target})")
    say()
    columns = ("option", "probability", "logit")
    show_table(columns, options, right=columns[1:])
    say()
    for label, text in facts:
        say(f"{label:<9} {text}")


def _facts(outcome: Outcome, result: Mapping[str, Any], milliseconds: float) -> Iterator[tuple[str, str]]:
    chosen = outcome.choice if outcome.choice is not None else "none"
    yield "choice", f"{chosen} ({outcome.why})" if outcome.fell_back else chosen
    yield "mass", f"{result['allowed_token_mass']:.4f} (probability of the options among all tokens)"
    reused = result["cached_tokens"]
    yield "tokens", f"{result['input_tokens'] - reused} evaluated, {reused} reused"
    yield "time", f"{milliseconds:.0f} ms, {result['total_seconds'] * 1000:.0f} of them in the server"
    yield "model", f"{result['model']['name']}; {result['probability_status']}"


def _check_paths(source: Path | None, output: Path | None, failures: Path | None) -> None:
    named = {"--input": source, "--output": output, "--failures": failures or _beside(output)}
    seen: dict[Path, str] = {}
    for option, path in named.items():
        if path is None or (option == "--input" and path == _STDIN):
            continue
        if (other := seen.setdefault(path.resolve(), option)) != option:
            raise UsageError(f"{option} and {other} are the same file, {path}")


def _beside(output: Path | None) -> Path | None:
    """Where failures go where nobody says."""
    return None if output is None else output.with_name(f"{output.stem}.failures.jsonl")


def _ask_rows(
    rows: Sequence[Row | BadRow],
    decide: Decide,
    stop: Stop,
    *,
    output: Path | None,
    failures: Path | None,
    concurrency: int,
) -> Summary:
    begun = time.monotonic()
    with ExitStack() as opened:
        answers = opened.enter_context(opened_output(output, rows) if output else _stdout())
        failure_path = failures or _beside(output)
        failed_file = opened.enter_context(opened_failures(failure_path)) if failure_path else sys.stderr
        answered = failed = 0
        fell_back = sum(answers.before.values())

        def fail(row: Row | BadRow, reason: str, status: int | None) -> None:
            nonlocal failed
            failed += 1
            write_line(failed_file, failure_line(row, reason, status))

        for row in rows:
            if isinstance(row, BadRow):
                fail(row, row.reason, None)
        left = {row.number: row for row in rows if isinstance(row, Row) and row.number not in answers.before}
        bar = opened.enter_context(progress())
        task = bar.add_task("asking", total=len(rows), completed=len(rows) - len(left))
        for row, found in ask_all(list(left.values()), decide, stop, concurrency=concurrency):
            del left[row.number]
            if isinstance(found, OpsError):
                fail(row, str(found), getattr(found, "status", None))
            else:
                outcome, result = found
                answers.add(row, outcome, result)
                answered += 1
                fell_back += outcome.fell_back
            bar.advance(task)
        if stop.unreachable is not None:
            for row in left.values():
                fail(row, f"not asked, since {stop.unreachable}", stop.unreachable.status)
            left = {}
        before = len(answers.before)
    return Summary(
        len(rows), answered + before, before, failed, len(left), fell_back, round(time.monotonic() - begun, 3)
    )


@contextmanager
def _stdout() -> Iterator[Output]:
    yield Output(sys.stdout, {})


def _end(summary: Summary, stop: Stop, output: Path | None, failures: Path | None, *, as_json: bool) -> None:
    """Say what became of the rows, and end with the status of it."""
    if as_json and output is not None:
        show_json({**asdict(summary), "output": str(output), "failures": str(failures)})
    else:
        # The answers have standard output, where they have no file.
        (note if output is None else say)(_sentence(summary, output, failures))
    if stop.unreachable is not None:
        note(f"decide: {stop.unreachable}; the same command goes on from here")
        raise typer.Exit(UNREACHABLE)
    if summary.not_asked:
        raise typer.Exit(_INTERRUPTED)
    if summary.failed:
        raise typer.Exit(FAILED)


def _sentence(summary: Summary, output: Path | None, failures: Path | None) -> str:
    answered = f"{summary.answered} answered"
    if summary.before:
        answered += f" ({summary.before} of them before)"
    if output is not None:
        answered += f" in {output}"
    failed = f"{summary.failed} failed" + (f" in {failures}" if summary.failed and failures is not None else "")
    parts = [answered, failed]
    if summary.not_asked:
        parts.append(f"{summary.not_asked} not asked yet")
    if summary.fell_back:
        parts.append(f"{summary.fell_back} fell back")
    return f"{summary.rows} rows: {', '.join(parts)}; {summary.seconds:.1f} s"
