"""`decide logs ENV`: what endpoints and builds have said, oldest first, and what they go on to say."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any

import typer

from ops.aws import Aws, connect
from ops.deployed import Build, builds, endpoints_name, find_stack, not_deployed, pages, require_endpoints_stack
from ops.errors import FailedError, UsageError
from ops.options import EndpointName, EndpointUrl, EnvironmentName, Json, endpoints, environment
from ops.output import note
from stacks.config import Environment

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_POLL_SECONDS = 2.0
# CloudWatch shows a line some seconds after one that was written later: each poll looks this far back again.
_OVERLAP_MILLISECONDS = 30_000
# The lines in which the adapter embeds its metrics for CloudWatch, twice a minute.
_METRICS_MARK = "_aws"

Since = Annotated[str, typer.Option("--since", metavar="AGE", help="How far back, such as 90s, 15m, 2h or 1d.")]
BuildName = Annotated[
    str | None, typer.Option("--build", metavar="NAME", help="The log of a build, such as ModelBuild, instead.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written from now on, until Ctrl-C.")]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="TEXT", help="Only lines with this text, upper and lower case apart.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="At most so many lines, the newest.")]


@dataclass(frozen=True)
class Source:
    """A log group, and what the reader calls it."""

    name: str
    group: str


@dataclass(frozen=True)
class Line:
    """An event of CloudWatch Logs."""

    source: str
    stream: str
    # Milliseconds since 1970, as CloudWatch counts.
    timestamp: int
    message: str
    id: str

    @property
    def time(self) -> str:
        """When, in UTC to the millisecond."""
        written = datetime.fromtimestamp(self.timestamp / 1000, timezone.utc)
        return written.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def logs(
    env: EnvironmentName,
    *,
    endpoint: EndpointName = None,
    build: BuildName = None,
    since: Since = "1h",
    follow: Follow = False,
    text: Filter = None,
    limit: Limit = 1000,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """The log lines of an environment's endpoints, or of one of its builds; oldest first, times in UTC.

    The adapter's lines about requests are shortened and those that carry its metrics left out; with --json every line
    is one JSON object, the adapter's own in its `record`. Ctrl-C ends --follow with exit status 130.

    Example: decide logs prod --endpoint decision-gpu --since 15m --filter '"status": 5'
    """
    of = environment(env)
    age = duration(since)
    if build is not None and endpoint is not None:
        raise UsageError("--endpoint and --build exclude each other: one of the two says whose log it is")
    names = [of.endpoint_name(one) for one in endpoints(of, endpoint)]
    aws = connect(of, endpoint_url)
    sources = [build_source(of, aws, build)] if build is not None else [_of_endpoint(name) for name in names]
    reader = Reader(aws.client("logs"), sources, text, metrics=as_json)
    start = int((datetime.now(timezone.utc) - age).timestamp() * 1000)
    found = reader.newest(start, limit)
    if not reader.groups:
        raise FailedError(_no_group(of, aws, sources))
    for line in found.lines:
        _show(line, as_json=as_json, several=len(sources) > 1)
    if found.left_out:
        note(f"Older lines left out: {found.left_out}; a larger --limit shows them.")
    if not found.lines:
        note(f"No line in the last {since}" + (f" has {text!r}." if text is not None else "."))
    if follow:
        for line in reader.follow(start, found.lines):
            _show(line, as_json=as_json, several=len(sources) > 1)


def duration(text: str) -> timedelta:
    """The length of time in `90s`, `15m`, `2h` or `1d`. Raises UsageError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"--since is {text!r}; it must be a whole number and s, m, h or d, such as 90s, 15m, 2h or 1d")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def build_source(of: Environment, aws: Aws, name: str) -> Source:
    """The log of the build of that name. Raises UsageError, which lists the builds, and FailedError without stack."""
    cloudformation = aws.client("cloudformation")
    stack = require_endpoints_stack(cloudformation, of, aws.region)
    found = builds(cloudformation, aws.client("codebuild"), stack.name)
    return Source(*_named(found, of, name))


def _named(found: Sequence[Build], of: Environment, name: str) -> tuple[str, str]:
    for build in found:
        if name.lower() in (build.name.lower(), build.project.lower()):
            return build.name, build.log_group
    known = ", ".join(build.name for build in found) or "none"
    raise UsageError(f"environment {of.name!r} has no build {name!r}; it has: {known}")


def _of_endpoint(name: str) -> Source:
    return Source(name, f"/aws/sagemaker/Endpoints/{name}")


def _no_group(of: Environment, aws: Aws, sources: Sequence[Source]) -> str:
    if find_stack(aws.client("cloudformation"), endpoints_name(of)) is None:
        return not_deployed(of, aws.region)
    return f"there is no log group {', '.join(source.group for source in sources)} in {aws.region}: nothing has run yet"


@dataclass(frozen=True)
class Found:
    """The newest lines, oldest first, and how many there were before them."""

    lines: tuple[Line, ...]
    left_out: int


class Reader:
    """The lines of some log groups that have a text in them.

    The text is looked for here, not by CloudWatch's filter patterns, whose words and signs are not plain text.
    """

    def __init__(self, client: Any, sources: Sequence[Source], text: str | None, *, metrics: bool) -> None:
        """`metrics`: whether the lines that carry the adapter's metrics count."""
        self._client = client
        self._sources = sources
        self._text = text
        self._metrics = metrics
        # The groups that there were at the last look.
        self.groups: set[str] = set()

    def newest(self, start: int, limit: int) -> Found:
        """The newest lines since `start`, in milliseconds since 1970. Raises botocore's errors."""
        kept: list[Line] = []
        count = 0
        for source in self._sources:
            newest: deque[Line] = deque(maxlen=limit)
            for line in self._lines(source, start):
                newest.append(line)
                count += 1
            kept += newest
        lines = _sorted(kept)[-limit:]
        return Found(tuple(lines), count - len(lines))

    def follow(self, start: int, shown: Sequence[Line]) -> Iterator[Line]:
        """Every further line, each once, without end. Raises botocore's errors."""
        seen = {line.id: line.timestamp for line in shown}
        # What --limit has left out is older than what it has shown.
        since = max(shown[0].timestamp, shown[-1].timestamp - _OVERLAP_MILLISECONDS) if shown else start
        while True:
            lines = _sorted(line for source in self._sources for line in self._lines(source, since))
            for line in lines:
                if line.id not in seen:
                    seen[line.id] = line.timestamp
                    yield line
            since = max([since, *(timestamp - _OVERLAP_MILLISECONDS for timestamp in seen.values())])
            seen = {id_: timestamp for id_, timestamp in seen.items() if timestamp >= since}
            sys.stdout.flush()
            time.sleep(_POLL_SECONDS)

    def _lines(self, source: Source, start: int) -> Iterator[Line]:
        try:
            for event in pages(self._client, "filter_log_events", "events", logGroupName=source.group, startTime=start):
                line = Line(
                    source.name,
                    event["logStreamName"],
                    event["timestamp"],
                    event["message"].rstrip("\n"),
                    event["eventId"],
                )
                if self._is_wanted(line):
                    yield line
            self.groups.add(source.group)
        except self._client.exceptions.ResourceNotFoundException:
            self.groups.discard(source.group)

    def _is_wanted(self, line: Line) -> bool:
        if self._text is not None and self._text not in line.message:
            return False
        return self._metrics or _METRICS_MARK not in (record_of(line.message) or {})


def _sorted(lines: Iterable[Line]) -> list[Line]:
    # Stable: lines of one millisecond stay in CloudWatch's own order.
    return sorted(lines, key=lambda line: line.timestamp)


def record_of(message: str) -> Mapping[str, Any] | None:
    """The JSON object that a line is; None for any other text."""
    if not message.startswith("{"):
        return None
    try:
        record = json.loads(message)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def brief(message: str) -> str:
    """A line for people: the adapter's record of a request as a few words, everything else as it is."""
    record = record_of(message)
    if record is None or not {"request_id", "path", "status", "milliseconds"} <= record.keys():
        return message
    shown = {
        name: record[name]
        for name in ("kind", "decisions", "tokens_evaluated", "tokens_reused", "tokens_generated", "error")
        if record.get(name)
    }
    words = [f"{record['path']} {record['status']} {record['milliseconds']} ms"]
    words += [f"{name}={value}" for name, value in shown.items()]
    return " ".join([*words, record["request_id"]])


def _show(line: Line, *, as_json: bool, several: bool) -> None:
    if as_json:
        record = record_of(line.message)
        said: dict[str, Any] = {"message": line.message} if record is None else {"record": record}
        where = {"time": line.time, "source": line.source, "stream": line.stream}
        print(json.dumps({**where, **said}, ensure_ascii=False))
        return
    # Straight to the output: a log may be long, and a line of it is never wrapped.
    origin = f"{line.source} {line.stream}" if several else line.stream
    print(f"{line.time} {origin} {brief(line.message)}")
