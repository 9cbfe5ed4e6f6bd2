"""`decide calibrate` and `decide orders` against a real adapter, and the adapter with what was written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ops.cli import main
from ops.labelled import _labelled
from tests.container.conftest import Server, free_port, running_adapter
from tests.models.make_models import model_path

# Its random weights give logits that lie close together: a quarter of a unit is a lot.
MODEL = "tiny.gguf"
TRUTH = 0.1
ROWS = 200
STATE = "A parcel was left at the door in the rain. The customer writes that the lamp inside is wet and does not work."
CRITERIA = {"refund": "Give the money back", "repair": "Repair the lamp", "nothing": None}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A small model, uncalibrated."""
    place = tmp_path_factory.mktemp("plain")
    (place / MODEL).symlink_to(model_path("tiny-hybrid"))
    with running_adapter(place, place / "log") as running:
        yield running


def _question(number: int) -> dict[str, Any]:
    if number % 4 == 0:  # too few of them for a temperature of their own
        return {"type": "noul", "instructions": f"Does case {number} need an answer today?"}
    return {"type": "choice", "instructions": f"What is right in case {number}?", "criteria": CRITERIA}


@pytest.fixture(scope="module")
def labelled(adapter: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose labels are drawn from the model's own answers at temperature TRUTH: what is there to find."""
    random = np.random.default_rng(7)
    lines = []
    for first in range(0, ROWS, 20):
        questions = {str(number): _question(number) for number in range(first, first + 20)}
        body = {"state": STATE, "model": "jev-latest", "questions": questions}
        answers = httpx.post(f"{adapter.url}/v1/systemone", json=body, timeout=120).json()["answers"]
        for name, question in questions.items():
            answer = answers[name]
            p = answer.get("probabilities") or {"yes": answer["noul"], "no": 1 - answer["noul"]}
            drawn = random.choice(list(p), p=_tempered(list(p.values()), TRUTH))
            lines.append(json.dumps({"id": name, "state": STATE, "question": question, "expected": str(drawn)}))
    path = tmp_path_factory.mktemp("labelled") / "labelled.jsonl"
    path.write_text("\n".join(lines))
    return path


def _tempered(probabilities: list[float], temperature: float) -> list[float]:
    weights = [math.pow(p, 1 / temperature) for p in probabilities]
    return [weight / sum(weights) for weight in weights]


def test_a_temperature_is_found_written_and_served(
    adapter: Server, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / MODEL).symlink_to(model_path("tiny-hybrid"))
    output = tmp_path / "calibrations.json"
    output.write_text('{"other": {"temperature": 1.5}}')
    command = ["calibrate", str(labelled), "--local", adapter.url, "--name", "cases", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr()
    told = capsys.readouterr()
    assert "Calibration pays: the negative log likelihood changes by -" in told.out
    assert "noul takes the overall temperature: 50 rows, at least 100 are needed." in told.out
    assert told.err == f"{output} holds 'cases' now\n"
    written = json.loads(output.read_text())
    assert written["other"] == {"temperature": 1.5}
    entry = written["cases"]
    assert TRUTH / 2 < entry["temperature"] < TRUTH * 2
    assert list(entry["temperatures"]) == ["choice"]
    assert entry["fitted_for"] == {
        "gguf_sha256": hashlib.sha256(model_path("tiny-hybrid").read_bytes()).hexdigest(),
        "prompt_version": "direct-options-v1",
    }
    assert (entry["evidence"]["rows"], entry["evidence"]["file"]) == (ROWS, "labelled.jsonl")
    assert entry["evidence"]["out_of_fold"]["after"]["nll"] < entry["evidence"]["out_of_fold"]["before"]["nll"]

    # A run of the same rows gives the same, and nobody is asked.
    run, other = tmp_path / "run.json", tmp_path / "other.json"
    assert main(["bench", str(labelled), "--local", adapter.url, "--output", str(run), "--concurrency", "4"]) == 0
    from_run = ["calibrate", str(run), "--name", "cases", "--output", str(other)]
    assert main(from_run) == 0
    assert json.loads(other.read_text()) == {"cases": entry}
    capsys.readouterr()
    assert main([*from_run, "--replace", "--local", adapter.url]) == 2
    assert "run.json is a run, which was asked already: leave out ENV" in capsys.readouterr().err
    document = json.loads(run.read_text())
    for change, status, message in (
        (
            {"rows": [{**document["rows"][0], "answer": None, "error": "too long"}, *document["rows"][1:]]},
            1,
            "too long",
        ),
        (
            {"answered_by": [*document["answered_by"], {"model": {"gguf_sha256": "0"}, "prompt_version": "v"}]},
            2,
            "several",
        ),
        ({"answered_by": []}, 2, "none is said"),
    ):
        run.write_text(json.dumps({**document, **change}))
        assert main([*from_run, "--replace"]) == status
        assert message in capsys.readouterr().err

    # The same name is not written over, and nothing is asked for that: nobody answers here.
    again = [*command[:2], "--local", f"http://127.0.0.1:{free_port()}", *command[4:]]
    assert main(again) == 2
    assert "holds a calibration 'cases' already" in capsys.readouterr().err

    body = {"state": STATE, "model": "jev-latest", "questions": {"a": _question(1), "b": _question(4)}}
    with running_adapter(tmp_path, tmp_path / "log", SEMIF_CALIBRATION="cases") as calibrated:
        plain, served = (
            httpx.post(f"{at.url}/v1/systemone", json=body, timeout=60).json()["answers"]
            for at in (adapter, calibrated)
        )
    before, after = (list(answers["a"]["probabilities"].values()) for answers in (plain, served))
    assert after == pytest.approx(_tempered(before, entry["temperatures"]["choice"]))
    before = [plain["b"]["noul"], 1 - plain["b"]["noul"]]
    assert served["b"]["noul"] == pytest.approx(_tempered(before, entry["temperature"])[0])


def _wrong_labels(labelled: Path, expected: Any) -> list[str]:
    rows = [json.loads(line) for line in labelled.read_text().splitlines()]
    return [json.dumps({**row, "expected": expected(row)}) for row in rows]


def test_labels_that_the_answers_know_nothing_of_give_no_file(
    adapter: Server, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels that do not depend on the answers at all: the likeliest temperature is infinite."""
    path, output = tmp_path / "labelled.jsonl", tmp_path / "c.json"
    options = {"noul": ["yes", "no"], "choice": list(CRITERIA)}

    def unlikeliest(row: dict[str, Any]) -> str:
        answer = adapter.invoke({"decision": _plain(row, options[row["question"]["type"]])}).json()["result"]
        p = dict(zip(answer["option_ids"], answer["probabilities"], strict=True))
        # The likeliest for every third, so that there are right ones to count.
        return str(max(p, key=lambda name: p[name]) if int(row["id"]) % 3 == 0 else min(p, key=lambda name: p[name]))

    path.write_text("\n".join(_wrong_labels(labelled, unlikeliest)))
    assert main(["calibrate", str(path), "--local", adapter.url, "--name", "x", "--output", str(output)]) == 1
    assert "no temperature from 0.01 to 100 is the likeliest" in capsys.readouterr().err
    assert not output.exists()


def _plain(row: dict[str, Any], ids: list[str]) -> dict[str, Any]:
    decision = dict(_labelled({**row, "expected": ids[0]}).decision)
    assert [option["id"] for option in decision["options"]] == ids
    return decision


def test_what_does_not_pay_is_told_and_not_written(
    adapter: Server, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels drawn from the answers as they are: temperature 1 is right already."""
    random = np.random.default_rng(11)
    path, output = tmp_path / "labelled.jsonl", tmp_path / "c.json"

    def as_sure(row: dict[str, Any]) -> str:
        ids = ["yes", "no"] if row["question"]["type"] == "noul" else list(CRITERIA)
        answer = adapter.invoke({"decision": _plain(row, ids)}).json()["result"]
        p = np.array(answer["probabilities"])
        return str(random.choice(answer["option_ids"], p=p / p.sum()))

    path.write_text("\n".join(_wrong_labels(labelled, as_sure)))
    command = ["calibrate", str(path), "--local", adapter.url, "--name", "x", "--output", str(output), "--json"]
    assert main(command) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["typed"]["pays"] is False
    assert told.err == "decide: nothing is written\n"
    assert not output.exists()


def test_too_few_rows_are_refused_before_anything_is_asked(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(labelled.read_text().splitlines()[:99]))
    nobody = f"http://127.0.0.1:{free_port()}"
    assert main(["calibrate", str(path), "--local", nobody, "--name", "x", "--output", str(tmp_path / "c.json")]) == 1
    assert capsys.readouterr().err == "decide: too little to fit a temperature: 99 rows, at least 100 are needed\n"


def test_nobody_who_answers_is_told_with_the_status_of_it(
    labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    output = str(tmp_path / "c.json")
    assert main(["calibrate", str(labelled), "--local", nobody, "--name", "x", "--output", output]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("decide: ")
    assert nobody in line


def test_orders_are_compared_on_the_real_averages(
    adapter: Server, labelled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "labelled.jsonl"
    every = map(json.loads, labelled.read_text().splitlines())
    rows = [row for row in every if row["question"]["type"] == "choice"][:12]
    states = [f"Case {number // 2}. {STATE}" for number in range(12)]
    path.write_text("\n".join(json.dumps({**row, "state": state}) for row, state in zip(rows, states, strict=True)))
    assert main(["orders", str(path), "--local", adapter.url, "--orders", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["orders"], told["rows"]) == (3, 12)
    assert 0 < told["moved"] < 1
    # Six states, in turn; three orders evaluate the state once and the question three times.
    assert (told["single_cost"]["rows"], told["averaged_cost"]["rows"]) == (3, 3)
    assert 1 < told["averaged_cost"]["tokens"] / told["single_cost"]["tokens"] < 3
