"""`decide bench` and `decide report` against a real adapter with the embedded model, and the page in a browser."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from ops import cost
from ops.bench.run_file import read_run
from ops.cli import main
from tests.container.conftest import EMBEDDED, free_port, running_adapter
from tools.browser import browser, resize

WORD = "heliotrope"  # in every state, and in no output
LONG = "long"
NAME = '<script>alert(1)</script> & $x^2$ "a"'


def _rows() -> list[dict[str, Any]]:
    queues = {"type": "choice", "instructions": "Which queue?", "criteria": {"billing": "Payments", "access": "Log-in"}}
    broken = {"type": "noul", "instructions": "Does something not work?"}
    urgency = {"type": "score", "instructions": "How urgent?", "criteria": ["Can wait", "This week", "Today"]}
    states = ("I was charged twice.", "The password is refused.", "The bill is wrong.", "I cannot log in.")
    rows: list[dict[str, Any]] = [
        {
            "id": f"q{n}",
            "family": "queue",
            "group": f"q{n // 2}",
            "question": queues,
            "expected": ("billing", "access")[n % 2],
        }
        for n in range(4)
    ]
    rows += [{"id": f"b{n}", "family": "<i>broken</i>", "question": broken, "expected": "yes"} for n in range(4)]
    rows += [{"id": f"u{n}", "family": "urgency", "question": urgency, "expected": n} for n in range(3)]
    rows = [{**row, "state": f"{states[n % 4]} {WORD}"} for n, row in enumerate(rows)]
    return [*rows, {**rows[0], "id": LONG, "state": f"{WORD} " * 400}]


@dataclass(frozen=True)
class Told:
    """A run of the command, and what it left."""

    status: int
    out: str
    err: str
    labelled: Path
    run: Path
    page: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One run over all rows, of which the adapter refuses the long one."""
    place = tmp_path_factory.mktemp("bench")
    (place / EMBEDDED.name).symlink_to(EMBEDDED)
    labelled, run, page = (place / name for name in ("labelled.jsonl", "run.json", "report.html"))
    labelled.write_text("\n".join(map(json.dumps, _rows())))
    out, err = io.StringIO(), io.StringIO()
    with (
        running_adapter(place, place / "log", SEMIF_MAX_TOKENS="400") as adapter,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        arguments = ["bench", str(labelled), "--local", adapter.url, "--name", NAME, "--concurrency", "2"]
        status = main([*arguments, "--output", str(run), "--html", str(page)])
    return Told(status, out.getvalue(), err.getvalue(), labelled, run, page)


def test_a_run_is_told_and_kept_without_the_states(told: Told) -> None:
    assert told.status == 1, told.err
    assert "1 of 12 rows were not answered, the first, 'long', because: " in told.err
    assert "11 of 12" in told.out  # valid, in the headline
    assert "Ordinal error" in told.out
    run = read_run(told.run)
    assert run.dataset.sha256 == hashlib.sha256(told.labelled.read_bytes()).hexdigest()
    (by,) = run.answered_by
    assert by["model"]["gguf_sha256"] == hashlib.sha256(EMBEDDED.read_bytes()).hexdigest()
    assert [row.id for row in run.rows] == [row["id"] for row in _rows()]
    assert [row.id for row in run.rows if row.answer is None] == [LONG]
    first = run.rows[0]
    assert (first.family, first.group, first.expected, first.options) == (
        "queue",
        "q0",
        "billing",
        ("billing", "access"),
    )
    assert first.answer is not None
    weights = [math.exp(logit) for logit in first.answer.logits.values()]
    assert list(first.answer.probabilities.values()) == pytest.approx([each / sum(weights) for each in weights])
    assert first.client_seconds > first.answer.server_seconds >= first.answer.model_seconds > 0
    for text in (told.out, told.err, told.run.read_text(), told.page.read_text()):
        assert WORD not in text


def test_cost_reads_the_run(told: Told) -> None:
    pace = cost.read_run(told.run)
    assert (pace.decisions, pace.concurrency) == (11, 2)
    assert 0 < pace.wall_seconds < 600


def test_a_report_made_again_says_the_same(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(told.run)]) == 0
    assert capsys.readouterr().out == told.out
    assert main(["report", str(told.run), "--against", str(told.run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    difference = shown["against"]["difference"]
    assert (difference["rows"], difference["answered"], difference["mcnemar_p"]) == (12, 11, 1)
    assert difference["accuracy"] == {"value": 0, "low": 0, "high": 0}
    assert [error["id"] for error in shown["errors"]] == [LONG]


def _without_answer(run: dict[str, Any]) -> None:
    run["rows"][0]["answer"] = None


def _of_other_options(run: dict[str, Any]) -> None:
    run["rows"][0]["expected"] = "sales"


def _of_no_distribution(run: dict[str, Any]) -> None:
    run["rows"][0]["answer"]["probabilities"] = {"billing": 0.5, "access": 0.6}


def _newer(run: dict[str, Any]) -> None:
    run["version"] = 99


def _another_file(run: dict[str, Any]) -> None:
    run["format"] = "something"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_without_answer, "row 'q0' must have either an answer or an error"),
        (_of_other_options, "row 'q0' expects 'sales', which is none of its options"),
        (_of_no_distribution, "the answer's probabilities are no distribution"),
        (_newer, "is a run file of version 99; this program reads"),
        (_another_file, "is no run file of `decide bench`"),
    ],
)
def test_a_file_that_is_no_run_is_refused(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[dict[str, Any]], None], says: str
) -> None:
    content = json.loads(told.run.read_text())
    change(content)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    assert main(["report", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_runs_of_other_rows_are_refused_before_anything_is_asked(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(_rows()[0]))
    nobody = f"http://127.0.0.1:{free_port()}"
    assert main(["bench", str(other), "--local", nobody, "--against", str(told.run)]) == 2
    assert "the runs cannot be compared: one is of other.jsonl with SHA-256" in capsys.readouterr().err


def test_a_target_that_does_not_answer_ends_it_at_once(
    told: Told, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody, output = f"http://127.0.0.1:{free_port()}", tmp_path / "run.json"
    assert main(["bench", str(told.labelled), "--local", nobody, "--output", str(output)]) == 3
    assert nobody in capsys.readouterr().err
    assert not output.exists()


_BOXES = "return [...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().height)"
_INKED = "return [...document.querySelectorAll('figure svg')].map(e => e.querySelectorAll('path').length)"
_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
_GROUND = "return getComputedStyle(document.body).backgroundColor"


def test_the_page_stands_alone_by_day_by_night_and_on_a_phone(told: Told, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["report", str(told.run), "--against", str(told.run), "--html", str(page)]) == 0
    with browser(width=1100, height=900) as driver:
        driver.get(page.as_uri())
        assert driver.title == f"{NAME}: report"  # as it was written, and nothing of it ran
        text = driver.find_element(By.TAG_NAME, "body").text
        assert "<i>broken</i>" in text
        assert NAME in text
        assert all(height > 100 for height in driver.execute_script(_BOXES))
        assert all(paths > 5 for paths in driver.execute_script(_INKED))
        assert len(driver.execute_script(_BOXES)) == 3
        grounds = set()
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            grounds.add(driver.execute_script(_GROUND))
        assert len(grounds) == 2
        resize(driver, 390, 800)
        assert driver.execute_script(_WIDE) == 0
        console = driver.get_log("browser")  # type: ignore[no-untyped-call] # selenium's own
        network = driver.get_log("performance")  # type: ignore[no-untyped-call]
    assert console == []
    messages = [json.loads(entry["message"])["message"] for entry in network]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    # Chromium's own first page asks for this and that, too.
    assert {each["request"]["url"] for each in sent if each["documentURL"] == page.as_uri()} == {page.as_uri()}
