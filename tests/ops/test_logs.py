"""`decide logs` over real log groups of the emulator, to the Ctrl-C that ends --follow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from ops.cli import main
from ops.errors import UsageError
from ops.logs import Reader, Source, brief, duration
from tests.emulator_fixture import ROOT, Emulator, running_emulator

CPU = "/aws/sagemaker/Endpoints/decision-endpoints-staging-decision-cpu"
GPU = "/aws/sagemaker/Endpoints/decision-endpoints-staging-decision-gpu"
REQUEST = {
    "request_id": "req_1",
    "path": "/invocations",
    "kind": "decision",
    "status": 200,
    "milliseconds": 12.5,
    "decisions": 1,
    "tokens_evaluated": 2,
    "tokens_reused": 0,
}
METRICS = {"_aws": {"CloudWatchMetrics": []}, "Requests": 1}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("100d", 8_640_000)]
)
def test_ages(text: str, seconds: int) -> None:
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "0s", "-1h", "1.5h", "1 h", "1w", "2H", "1h30m", "9999999s"])
def test_what_is_no_age_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since is .*such as 90s, 15m, 2h or 1d"):
        duration(text)


def test_a_request_is_shortened_and_everything_else_is_as_it_is() -> None:
    assert brief(json.dumps(REQUEST)) == ("/invocations 200 12.5 ms kind=decision decisions=1 tokens_evaluated=2 req_1")
    for line in ("llama_model_loader: loaded", '{"half', '{"level": "INFO"}', "{}", "[1]"):
        assert brief(line) == line


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator in which two endpoints have written, in turn."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as running:
        now = int(time.time() * 1000)
        put(running, CPU, "main/i-1", [(now - 5000, "first"), (now - 3000, json.dumps(REQUEST))])
        put(running, GPU, "main/i-2", [(now - 4000, "second"), (now - 2000, json.dumps(METRICS))])
        put(running, GPU, "main/i-3", [(now - 7_300_000, "two hours ago")])
        yield running


def put(emulator: Emulator, group: str, stream: str, lines: list[tuple[int, str]]) -> None:
    """Write lines, making group and stream where they are not there."""
    logs = emulator.client("logs")
    for make, name in ((logs.create_log_group, {}), (logs.create_log_stream, {"logStreamName": stream})):
        try:
            make(logGroupName=group, **name)
        except logs.exceptions.ResourceAlreadyExistsException:
            continue
    events = [{"timestamp": at, "message": message} for at, message in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def shown(emulator: Emulator, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[str], str]:
    """The lines without their times, and the notes."""
    assert main(["logs", "staging", "--endpoint-url", emulator.endpoint_url, *options]) == 0
    output = capsys.readouterr()
    return [line.partition(" ")[2] for line in output.out.splitlines()], output.err


def test_lines_of_all_endpoints_are_in_the_order_of_their_times(
    emulator: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(emulator, capsys) == (
        [
            "decision-endpoints-staging-decision-cpu main/i-1 first",
            "decision-endpoints-staging-decision-gpu main/i-2 second",
            f"decision-endpoints-staging-decision-cpu main/i-1 {brief(json.dumps(REQUEST))}",
        ],
        "",
    )


def test_the_limit_keeps_the_newest_and_says_what_is_left_out(
    emulator: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, said = shown(emulator, capsys, "--limit", "2")
    assert [line.split()[2] for line in lines] == ["second", "/invocations"]
    assert said == "Older lines left out: 1; a larger --limit shows them.\n"


def test_one_endpoint_an_age_and_a_text(emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(emulator, capsys, "--endpoint", "decision-gpu") == (["main/i-2 second"], "")
    lines, _ = shown(emulator, capsys, "--endpoint", "decision-gpu", "--since", "3h")
    assert lines == ["main/i-3 two hours ago", "main/i-2 second"]
    assert shown(emulator, capsys, "--filter", "irs")[0] == ["decision-endpoints-staging-decision-cpu main/i-1 first"]
    assert shown(emulator, capsys, "--filter", "First") == ([], "No line in the last 1h has 'First'.\n")


def test_json_has_every_line_the_metrics_too(emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "staging", "--json", "--endpoint-url", emulator.endpoint_url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("record", line.get("message")) for line in lines] == ["first", "second", REQUEST, METRICS]
    assert lines[0].keys() == {"time", "source", "stream", "message"}
    assert lines[0]["time"].endswith("Z")
    assert (lines[3]["source"], lines[3]["stream"]) == ("decision-endpoints-staging-decision-gpu", "main/i-2")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["logs", "staging", "--since", "1w"], 2, "--since is '1w'"),
        (["logs", "staging", "--endpoint", "x"], 2, "has no endpoint 'x'; it has: decision-cpu, decision-gpu"),
        (["logs", "staging", "--endpoint", "decision-cpu", "--build", "ModelBuild"], 2, "exclude each other"),
        (["logs", "staging", "--build", "ModelBuild"], 1, "'staging' is not deployed in us-east-1"),
        (["logs", "dev"], 1, "'dev' is not deployed in us-east-1"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    emulator: Emulator, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert main([*arguments, "--endpoint-url", emulator.endpoint_url]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_follow_shows_each_new_line_once_until_ctrl_c(emulator: Emulator) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ops", "logs", "staging", "--endpoint", "decision-cpu"),
            *("--follow", "--limit", "1", "--endpoint-url", emulator.endpoint_url),
        ],
        cwd=ROOT,
        env={**os.environ, **emulator.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    for number in range(3):
        put(emulator, CPU, "main/i-1", [(int(time.time() * 1000), f"new {number}")])
        lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert [line.split(" ", 2)[2].split()[:2] for line in lines] == [
        ["/invocations", "200"],
        ["new", "0"],
        ["new", "1"],
        ["new", "2"],
    ]
    assert rest == ""
    assert errors == "Older lines left out: 1; a larger --limit shows them.\n"


def test_a_late_line_is_shown_though_newer_ones_have_been(monkeypatch: pytest.MonkeyPatch) -> None:
    """CloudWatch shows some lines seconds after others that were written later."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    base = 1_000_000

    def event(at: int) -> dict[str, Any]:
        return {"logStreamName": "s", "timestamp": at, "message": str(at), "eventId": str(at)}

    polls = iter([[base], [base, base + 40_000], [base + 20_000, base + 40_000], [base + 40_000]])

    class Client:
        exceptions = type("Exceptions", (), {"ResourceNotFoundException": KeyError})

        def can_paginate(self, _operation: str) -> bool:
            return False

        def filter_log_events(self, *, logGroupName: str, startTime: int) -> dict[str, Any]:  # noqa: ARG002, N803 - AWS's
            return {"events": [event(at) for at in next(polls) if at >= startTime]}

    reader = Reader(Client(), [Source("n", "g")], None, metrics=False)
    found = reader.newest(0, 10)
    followed = reader.follow(0, found.lines)
    assert [next(followed).message for _ in range(2)] == [str(base + 40_000), str(base + 20_000)]
    with pytest.raises(RuntimeError):  # the polls are over: nothing was shown twice
        next(followed)
