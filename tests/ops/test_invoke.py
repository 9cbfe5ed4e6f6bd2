"""`decide invoke`: one decision and files of them; no row is lost, asked twice or mixed up, whatever goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main
from tests.container.conftest import EMBEDDED, ROOT, Server, free_port, running_adapter
from tests.models.make_models import model_path
from tests.ops.scripted import Scripted, answered, result, scripted

STATE = "A parcel was left at the door in the rain."
OPTIONS = [{"id": "refund", "description": "Give the money back"}, {"id": "repair", "description": "Repair the lamp"}]


def _decision(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"case-{number}",
        "state": f"Case {number}. {STATE}",
        "question": "What?",
        "options": OPTIONS,
        **changes,
    }


def _write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real adapter with a small model."""
    place = tmp_path_factory.mktemp("plain")
    (place / "tiny.gguf").symlink_to(model_path("tiny-hybrid"))
    with running_adapter(place, place / "log") as running:
        yield running


@pytest.fixture
def endpoint() -> Iterator[Scripted]:
    """A server that answers every decision with 0.75 for its first option."""
    with scripted(answered) as server:
        yield server


def test_the_example_is_asked_where_no_decision_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The embedded model's answer, which README shows."""
    (tmp_path / EMBEDDED.name).symlink_to(EMBEDDED)
    with running_adapter(tmp_path, tmp_path / "log") as server:
        assert main(["invoke", "--local", server.url, "--min-probability", "0.8", "--fallback", "sales"]) == 0
        told = capsys.readouterr().out
        assert main(["invoke", "--local", server.url, "--json"]) == 0
    assert [line.split("|")[:2] for line in told.splitlines()[4:7]] == [
        [" account_access ", "      0.7793 "],
        [" sales          ", "      0.1370 "],
        [" billing        ", "      0.0837 "],
    ]
    assert "choice    sales (below min_probability 0.80: 0.78)\n" in told
    assert "mass      0.0432 (" in told
    # The instructions are those of the decision that the adapter asked itself at its start.
    assert "tokens    90 evaluated, 40 reused\n" in told
    found = json.loads(capsys.readouterr().out)
    assert (found["choice"], found["fell_back"], found["result"]["input_tokens"]) == ("account_access", False, 130)


def test_what_the_adapter_refuses_is_one_sentence(
    adapter: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(_decision(options=OPTIONS[:1]), indent=2))
    assert main(["invoke", "--local", adapter.url, "-i", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("decide: decision.options: List should have at least 2 items")


def test_every_row_of_a_file_is_answered_or_has_failed(
    adapter: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        _decision(1),
        '{"id": "cut',
        "",
        _decision(2, id="case-1", min_probability=1, fallback="repair"),  # the id of another row
        _decision(3, options=OPTIONS[:1]),
        "[1]",
        _decision(4, fallback="review"),
        '{"id": "n", "state": NaN}',
        '{"id": "x", "id": "y"}',
        _decision(5, min_probability=2),
        {"decision": _decision(6)},
        _decision(7, min_probability=None),
    ]
    path, output = _write(tmp_path / "rows.jsonl", rows), tmp_path / "answers.jsonl"
    command = ["invoke", "--local", adapter.url, "-i", str(path), "-o", str(output), "--concurrency", "3"]
    assert main([*command, "--min-probability", "1"]) == 1
    told = capsys.readouterr().out
    failed_path = tmp_path / "answers.failures.jsonl"
    expected = f"11 rows: 4 answered in {output}, 7 failed in {failed_path}, 3 fell back; "
    assert told.startswith(expected), told
    found = {line["row"]: line for line in _lines(output)}
    # No threshold is overridden by a null; none of these answers is certain.
    assert {n: (row["id"], row["choice"]) for n, row in found.items() if n != 12} == {
        1: ("case-1", None),
        4: ("case-1", "repair"),
        11: ("case-6", None),
    }
    assert found[4]["fallback"].startswith("below min_probability 1.00: 0.")
    assert (found[12]["fallback"], found[12]["choice"] in ("refund", "repair")) == (None, True)
    assert found[1]["result"]["prompt_sha256"] != found[4]["result"]["prompt_sha256"]
    failed = {line["row"]: (line["id"], line["status"], line["reason"]) for line in _lines(failed_path)}
    assert failed.pop(5)[:2] == ("case-3", 400)
    assert failed == {
        2: (None, None, "not JSON: Unterminated string starting at column 8"),
        6: (None, None, "the row is a JSON array; it must be a JSON object"),
        7: ("case-4", None, "fallback 'review' is none of the decision's options ('refund', 'repair')"),
        8: (None, None, "not JSON that can be read: NaN is no finite number"),
        9: (None, None, "key 'id' occurs twice"),
        10: ("case-5", None, "min_probability is 2; it must be a number from 0 to 1"),
    }


def test_a_run_goes_on_where_it_was_cut_off(
    endpoint: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [_decision(number, min_probability=0.5 if number % 2 else 0.9) for number in range(6)]
    path, output = _write(tmp_path / "rows.jsonl", rows[:4]), tmp_path / "answers.jsonl"
    command = ["invoke", "--local", endpoint.url, "-i", str(path), "-o", str(output), "--json"]
    assert main(command) == 0
    assert "min_probability" not in endpoint.bodies[0]["decision"]
    capsys.readouterr()
    # The last line is torn, as by a machine that stops; and two rows are new.
    torn = output.read_text().splitlines()
    output.write_text("\n".join(torn)[:-20])
    lost = json.loads(torn[-1])["row"]
    _write(path, rows)
    endpoint.bodies.clear()
    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert {key: summary[key] for key in ("rows", "answered", "before", "failed", "not_asked", "fell_back")} == {
        "rows": 6,
        "answered": 6,
        "before": 3,
        "failed": 0,
        "not_asked": 0,
        "fell_back": 3,
    }
    assert sorted(body["decision"]["id"] for body in endpoint.bodies) == sorted(
        [f"case-{lost - 1}", "case-4", "case-5"]
    )
    assert sorted(line["row"] for line in _lines(output)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "changed",
    [
        lambda row: {**row, "question": "Which?"},
        lambda row: {**row, "fallback": "repair"},
        # Shown to the model in another order.
        lambda row: {**row, "state": {"b": 2, "a": 1}},
        lambda _row: "",
    ],
)
def test_answers_to_another_input_are_not_gone_on_with(
    endpoint: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any
) -> None:
    rows = [_decision(1), _decision(2, state={"a": 1, "b": 2})]
    path, output = _write(tmp_path / "rows.jsonl", rows), tmp_path / "answers.jsonl"
    command = ["invoke", "--local", endpoint.url, "-i", str(path), "-o", str(output)]
    assert main(command) == 0
    held = output.read_bytes()
    _write(path, [rows[0], changed(rows[1])])
    assert main(command) == 2
    assert "line 2 of this one is not the decision" in capsys.readouterr().err
    assert output.read_bytes() == held
    assert len(endpoint.bodies) == 2


def test_what_failed_is_asked_again(tmp_path: Path) -> None:
    def first_refused(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        return answered(decision, before) if before else (500, {}, {"error": "the server failed", "retryable": False})

    path = _write(tmp_path / "rows.jsonl", [_decision(1), _decision(2)])
    failed = tmp_path / "failed.jsonl"
    with scripted(first_refused) as server:
        command = [
            "invoke",
            "--local",
            server.url,
            "-i",
            str(path),
            "-o",
            str(tmp_path / "a"),
            "--failures",
            str(failed),
        ]
        assert main([*command, "--concurrency", "1"]) == 1
        assert _lines(failed) == [{"row": 1, "id": "case-1", "status": 500, "reason": "the server failed"}]
        assert main(command) == 0
    assert failed.read_text() == ""
    assert [line["row"] for line in _lines(tmp_path / "a")] == [2, 1]


def test_where_nobody_can_be_asked_the_rest_fails_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def key_taken_away(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        return answered(decision, before) if before < 2 else (403, {}, {"error": "not your key", "retryable": False})

    path = _write(tmp_path / "rows.jsonl", [_decision(number) for number in range(50)])
    output = tmp_path / "answers.jsonl"
    with scripted(key_taken_away) as server:
        command = ["invoke", "--local", server.url, "-i", str(path), "-o", str(output), "--concurrency", "1"]
        assert main(command) == 3
        assert len(server.bodies) == 3
    told = capsys.readouterr()
    assert told.out.startswith(f"50 rows: 2 answered in {output}, 48 failed in ")
    assert told.err == "decide: not your key; the same command goes on from here\n"
    failed = _lines(tmp_path / "answers.failures.jsonl")
    assert [line["row"] for line in failed] == list(range(3, 51))
    assert {line["reason"] for line in failed[1:]} == {"not asked, since not your key"}


def test_nobody_who_listens_is_told_with_the_status_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["invoke", "--local", url]) == 3
    assert capsys.readouterr().err.startswith(f"decide: {url} does not answer: ")


def test_ctrl_c_keeps_what_is_answered_and_the_same_command_goes_on(tmp_path: Path) -> None:
    released = threading.Event()

    def three_then_wait(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        if before >= 3:
            assert released.wait(60)
        return answered(decision, before)

    path = _write(tmp_path / "rows.jsonl", [_decision(number) for number in range(20)])
    output = tmp_path / "answers.jsonl"
    with scripted(three_then_wait) as server:
        command = [sys.executable, "-m", "ops", "invoke", "--local", server.url, "-i", str(path), "-o", str(output)]
        with subprocess.Popen(
            [*command, "--concurrency", "2"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(5):  # three answered, two out
                assert server.came.acquire(timeout=60)
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "stopping: what is asked already is waited for\n"
            released.set()
            told = process.communicate(timeout=60)[0]
        assert process.returncode == 130
        assert told.startswith(f"20 rows: 5 answered in {output}, 0 failed, 15 not asked yet; ")
        assert len(_lines(output)) == 5
        assert main(command[3:]) == 0
        assert sorted(body["decision"]["id"] for body in server.bodies) == sorted(f"case-{n}" for n in range(20))
    assert sorted(line["row"] for line in _lines(output)) == list(range(1, 21))


def test_ctrl_c_does_not_wait_for_a_busy_endpoint(tmp_path: Path) -> None:
    path = _write(tmp_path / "rows.jsonl", [_decision(number) for number in range(3)])
    with scripted(lambda *_: (503, {"Retry-After": "100"}, {"error": "busy", "retryable": True})) as server:
        command = [sys.executable, "-m", "ops", "invoke", "--local", server.url, "-i", str(path)]
        with subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
        ) as process:
            for _ in range(3):
                assert server.came.acquire(timeout=60)
            process.send_signal(signal.SIGINT)
            told = process.communicate(timeout=60)  # less than it was asked to wait
        assert process.returncode == 130
    assert told[0] == ""
    assert "3 rows: 0 answered, 0 failed, 3 not asked yet; " in told[1]


def test_standard_input_and_output_take_rows(
    endpoint: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "ops", "invoke", "--local", endpoint.url, "--input", "-"]
    rows = "\n".join(map(json.dumps, (_decision(1), _decision(2)))) + "\nnothing\n"
    done = subprocess.run(command, cwd=ROOT, input=rows, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert sorted(json.loads(line)["row"] for line in done.stdout.splitlines()) == [1, 2]
    failure, summary = done.stderr.splitlines()
    assert (json.loads(failure)["row"], summary[:30]) == (3, "3 rows: 2 answered, 1 failed; ")


@pytest.mark.parametrize(
    "case",
    [
        (["-i", "rows.jsonl", "--fallback", "review", "--min-probability", "0.5"], "line 1: fallback 'review' is none"),
        (["-i", "rows.jsonl", "--fallback", "refund"], "--fallback is never taken"),
        (["-i", "one.json", "--fallback", "refund"], "the fallback is never taken: give --min-probability, too"),
        (["-i", "rows.jsonl", "-o", "./rows.jsonl"], "--output and --input are the same file"),
        (["-i", "rows.jsonl", "-o", "a", "--failures", "a"], "--failures and --output are the same file"),
        (["-i", "nothing.jsonl"], "--input nothing.jsonl cannot be read: No such file"),
        (["-i", "empty.jsonl"], "the input is empty"),
        (["-i", "broken.json"], "broken.json is not JSON: Expecting value at line 2, column 11"),
        (["-i", "list.json"], "the input must be a decision, a JSON object, or one a line"),
        (["-i", "rows.jsonl", "-o", "notes.txt"], "line 1 of notes.txt is no answer of decide invoke"),
        (["-i", "rows.jsonl", "-o", "note.txt"], "note.txt holds something else than answers of decide invoke"),
        (["-i", "rows.jsonl", "-o", "a", "--failures", "notes.txt"], "--failures notes.txt holds something else"),
        (["-i", "rows.jsonl", "-o", "no/such/folder"], "--output no/such/folder cannot be written: No such file"),
        (["local", "-i", "rows.jsonl"], "--local asks an adapter directly: leave out ENV"),
        (["--concurrency", "65"], "less than or equal to 64"),
        (["--min-probability", "nan"], "--min-probability"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(
    endpoint: Scripted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[list[str], str],
) -> None:
    options, sentence = case
    monkeypatch.chdir(tmp_path)
    _write(Path("rows.jsonl"), [_decision(1), _decision(2)])
    _write(Path("one.json"), [_decision(1)])
    _write(Path("empty.jsonl"), [" "])
    _write(Path("broken.json"), ['{"id": "a",\n "state": }'])
    _write(Path("list.json"), [[_decision(1)]])
    _write(Path("notes.txt"), ["my notes"])
    Path("note.txt").write_text("my only note")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert main(["invoke", "--local", endpoint.url, *options]) == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert sentence in told
    assert "Traceback" not in told
    assert endpoint.bodies == []
    assert {name: Path(name).read_bytes() for name in before} == before


def test_two_runs_do_not_write_to_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = _write(tmp_path / "rows.jsonl", [_decision(1), _decision(2)]), tmp_path / "answers.jsonl"
    released = threading.Event()

    def wait(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        assert released.wait(60)
        return answered(decision, before)

    with scripted(wait) as server:
        command = ["invoke", "--local", server.url, "-i", str(path), "-o", str(output)]
        with subprocess.Popen([sys.executable, "-m", "ops", *command], cwd=ROOT, stdout=subprocess.DEVNULL) as first:
            assert server.came.acquire(timeout=60)
            assert main(command) == 2
            assert "is being written by another run" in capsys.readouterr().err
            released.set()
            assert first.wait(60) == 0
    assert len(_lines(output)) == 2


def test_an_answer_without_probabilities_is_a_failure(tmp_path: Path) -> None:
    def half(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        found = result(decision)
        return 200, {}, {"result": found if before else {**found, "probabilities": [0.5]}}

    path, output = _write(tmp_path / "rows.jsonl", [_decision(1), _decision(2)]), tmp_path / "answers.jsonl"
    with scripted(half) as server:
        assert main(["invoke", "--local", server.url, "-i", str(path), "-o", str(output), "--concurrency", "1"]) == 1
    assert [line["row"] for line in _lines(output)] == [2]
    assert [line["row"] for line in _lines(tmp_path / "answers.failures.jsonl")] == [1]


@pytest.mark.parametrize("found", ["NaN", "Infinity", "1e999", "[" * 100_000])
def test_an_answer_with_what_no_json_has_is_a_failure_and_the_run_goes_on(tmp_path: Path, found: str) -> None:
    def odd(decision: Mapping[str, Any], before: int) -> tuple[int, Mapping[str, str], Any]:
        whole = json.dumps({"result": {**result(decision), "forward_seconds": 0.5}})
        return 200, {}, (whole if before else whole.replace("0.5}", found + "}")).encode()

    path, output = _write(tmp_path / "rows.jsonl", [_decision(1), _decision(2)]), tmp_path / "answers.jsonl"
    with scripted(odd) as server:
        assert main(["invoke", "--local", server.url, "-i", str(path), "-o", str(output), "--concurrency", "1"]) == 1
    assert [line["row"] for line in _lines(output)] == [2]
    (failure,) = _lines(tmp_path / "answers.failures.jsonl")
    assert failure["reason"] == "what answers is no decision endpoint: its answer is no JSON"


def test_a_number_beyond_all_floats_is_a_bad_row(endpoint: Scripted, tmp_path: Path) -> None:
    rows = ['{"id": 1e999, "state": "s"}', _decision(2)]
    path, output = _write(tmp_path / "rows.jsonl", rows), tmp_path / "answers.jsonl"
    assert main(["invoke", "--local", endpoint.url, "-i", str(path), "-o", str(output)]) == 1
    (failure,) = _lines(tmp_path / "answers.failures.jsonl")
    assert (failure["row"], failure["reason"]) == (1, "not JSON that can be read: 1e999 is no finite number")
    assert [line["row"] for line in _lines(output)] == [2]


def test_one_answer_without_what_is_shown_is_one_sentence(
    endpoint: Scripted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path / "one.json", [_decision()])
    assert main(["invoke", "--local", endpoint.url, "-i", str(path)]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "decide: what answers is no decision endpoint: its result is not one ('option_logits')\n"


def test_a_full_disk_ends_the_run_and_costs_no_row(endpoint: Scripted, tmp_path: Path) -> None:
    path, output = _write(tmp_path / "rows.jsonl", [_decision(n) for n in range(1, 41)]), tmp_path / "answers.jsonl"
    command = [sys.executable, "-m", "ops", "invoke", "--local", endpoint.url, "-i", str(path), "-o", str(output)]
    # No file may grow beyond 2 KiB, about nine answers; the disk's end is an OSError of the same write.
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 2; exec "$@"', "bash", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert full.returncode == 1
    assert full.stderr == (
        "decide: answers or failures cannot be written: File too large; make room and repeat the command\n"
    )
    assert output.stat().st_size == 2048  # the last line is torn
    assert main(command[3:]) == 0
    assert sorted(line["row"] for line in _lines(output)) == list(range(1, 41))
