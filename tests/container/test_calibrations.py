"""The calibration file is checked whole before the endpoint is ready, and answers say what was applied to them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from adapter.calibrations import AppliedCalibration, CalibrationError, Calibrations
from stacks.calibrations import check_calibrations
from stacks.checks import ConfigError
from tests.container.conftest import EMBEDDED, Server, running_adapter
from tests.container.test_starts import start

Make = Callable[..., dict[str, Any]]
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT = "direct-options-v1"
FITTED_FOR = {"gguf_sha256": SHA256, "prompt_version": PROMPT}
STATE = "I was charged twice and want my money back."
FILE = {
    "support": {
        "temperature": 3,
        "temperatures": {"noul": 2.0, "score": 0.5},
        "fitted_for": FITTED_FOR,
        "evidence": {"rows": 480},
    },
    "by-criteria": {"temperature": 2, "fitted_for": {**FITTED_FOR, "prompt_version": "criteria-first-v1"}},
}


def _held(place: Path, text: str, **named: str) -> Calibrations:
    (place / "calibrations.json").write_text(text)
    return Calibrations(place, **named)


def test_calibrations_are_found_by_name(tmp_path: Path) -> None:
    held = _held(tmp_path, '{"b": {"temperature": 0.5}, "a": {"temperature": 2}}')
    assert held.for_decision("a", None, PROMPT) == AppliedCalibration("a", 2.0)
    assert held.for_decision(None, None, PROMPT) is None
    with pytest.raises(CalibrationError, match=r"no calibration 'c'; this endpoint holds: 'a', 'b'"):
        held.for_decision("c", None, PROMPT)


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="holds: none"):
        Calibrations(tmp_path).named("a")


def test_a_type_has_its_own_temperature_or_the_overall_one(tmp_path: Path) -> None:
    held = _held(tmp_path, json.dumps(FILE), for_questions="support")
    applied = [held.for_decision(None, kind, PROMPT) for kind in ("noul", "choice", "score", None)]
    assert [None if each is None else each.temperature for each in applied] == [2.0, 3.0, 0.5, None]
    assert applied[0] is not None
    assert applied[0].status == "calibrated by 'support' for noul: softmax at temperature 2.0"


def test_typed_questions_keep_the_models_probabilities_unless_one_is_set(tmp_path: Path) -> None:
    assert _held(tmp_path, json.dumps(FILE)).for_decision(None, "noul", PROMPT) is None


def _entry(**changes: Any) -> str:
    return json.dumps({"a": {"temperature": 2, **changes}})


WRONG = [
    ("{", "is not JSON"),
    ("[" * 5000, "is not JSON"),
    ("[]", "must hold an object"),
    ('{"a": 2}', "'a' must be an object with its 'temperature', not 2"),
    ('{"a": {}}', "temperature of 'a' must be a number from 0.01 to 100, not None"),
    ('{"a": {"temperature": 0}}', "not 0"),
    ('{"a": {"temperature": 140}}', "not 140"),
    ('{"a": {"temperature": true}}', "not True"),
    ('{"a": {"temperature": "1"}}', "not '1'"),
    ('{"a": {"temperature": 1e999}}', "not inf"),
    ('{"a": {"temperature": Infinity}}', "Infinity is no JSON number"),
    ('{"a": {"temperature": NaN}}', "NaN is no JSON number"),
    ('{"a": {"temperature": 1}, "a": {"temperature": 2}}', "the key 'a' occurs twice"),
    ('{"a": {"temperature": 1, "temperature": 2}}', "the key 'temperature' occurs twice"),
    ('{"": {"temperature": 1}}', "the name '' must be"),
    ('{"a b": {"temperature": 1}}', "the name 'a b' must be"),
    (_entry(temprature=1), "'a' has the unknown key 'temprature'; allowed: temperature, temperatures, fitted_for, "),
    (_entry(temperatures=[]), "the temperatures of 'a' must be an object, not []"),
    (_entry(temperatures={"predicate": 1}), "unknown key 'predicate'; allowed: noul, choice, score"),
    (_entry(temperatures={"noul": -1}), "the temperature of 'a' for noul must be a number from 0.01 to 100, not -1"),
    (_entry(evidence=[]), "the evidence of 'a' must be an object, not []"),
    (_entry(fitted_for=SHA256), "'fitted_for' of 'a' must be an object"),
    (_entry(fitted_for={"gguf_sha256": "B1", "prompt_version": PROMPT}), "64 lower-case hexadecimal digits, not 'B1'"),
    (_entry(fitted_for={"gguf_sha256": SHA256}), "prompt_version is None"),
    (
        _entry(fitted_for={"gguf_sha256": SHA256, "prompt_version": "v0"}),
        "prompt_version is 'v0'; this adapter's prompts are 'direct-options-v1', 'criteria-first-v1'",
    ),
    (_entry(fitted_for={**FITTED_FOR, "model": "m"}), "unknown key 'model'; allowed: gguf_sha256, prompt_version"),
    (" " * 65_537, "65537 bytes; at most 65536 are allowed"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_file_is_refused_here_and_where_an_environment_names_it(
    tmp_path: Path, text: str, message: str
) -> None:
    """The configuration's check is its own code, since a deploy has no adapter: the two must agree."""
    with pytest.raises(CalibrationError) as raised:
        _held(tmp_path, text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError) as refused:
        check_calibrations(tmp_path / "calibrations.json", "calibrations", sha256=SHA256)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", [json.dumps(FILE), '{"a": {"temperature": 0.01}}', '{"a": {"temperature": 100}}', "{}"]
)
def test_a_right_file_is_taken_by_both(tmp_path: Path, text: str) -> None:
    _held(tmp_path, text).check_model("m.gguf", SHA256)
    assert list(check_calibrations(tmp_path / "calibrations.json", "calibrations", sha256=SHA256)) == list(
        json.loads(text)
    )


def test_one_that_was_fitted_for_another_model_is_refused_with_both_named(tmp_path: Path) -> None:
    held = _held(tmp_path, json.dumps(FILE))
    other = "0" * 64
    for check in (
        lambda: held.check_model("other.gguf", other),
        lambda: check_calibrations(tmp_path / "calibrations.json", "calibrations", sha256=other),
    ):
        with pytest.raises((CalibrationError, ConfigError)) as raised:
            check()
        assert all(part in str(raised.value) for part in ("'support'", SHA256, other))


def _write(text: str) -> Callable[[Path], None]:
    return lambda place: _put(place, "calibrations.json", text)


def _put(place: Path, name: str, text: str) -> None:
    (place / name).write_text(text)


def _packaged(text: str | None, sha256: str) -> Callable[[Path], None]:
    """A model whose manifest names a calibration file with this checksum."""
    manifest = {
        "name": "m",
        "file": EMBEDDED.name,
        "bytes": EMBEDDED.stat().st_size,
        "sha256": SHA256,
        "calibrations": {"file": "calibrations.json", "sha256": sha256},
    }

    def prepare(place: Path) -> None:
        _put(place, "model-manifest.json", json.dumps(manifest))
        if text is not None:
            _put(place, "calibrations.json", text)

    return prepare


@pytest.mark.parametrize(
    ("prepare", "settings", "message"),
    [
        (_write('{"a": {"temperature": 0}}'), {}, "{place}/calibrations.json: the temperature of 'a' must be"),
        (
            _write(_entry(fitted_for={**FITTED_FOR, "gguf_sha256": "0" * 64})),
            {},
            (
                f"{{place}}/calibrations.json: 'a' was fitted for the model with sha256 {'0' * 64}; this one is "
                f"{EMBEDDED.name} with sha256 {SHA256}"
            ),
        ),
        (
            _write(json.dumps(FILE)),
            {"SEMIF_CALIBRATION": "nope"},
            "SEMIF_CALIBRATION='nope': there is no calibration 'nope'; this endpoint holds: 'by-criteria', 'support'",
        ),
        (
            _write(json.dumps(FILE)),
            {"SEMIF_CALIBRATION": "by-criteria"},
            (
                "SEMIF_CALIBRATION='by-criteria': calibration 'by-criteria' was fitted for the prompt "
                "'criteria-first-v1', and this is 'direct-options-v1'"
            ),
        ),
        (
            _packaged(None, "0" * 64),
            {},
            "there is no {place}/calibrations.json, which the model's manifest names",
        ),
        (
            _packaged("{}", "0" * 64),
            {},
            f"checksum of {{place}}/calibrations.json differs from the model's manifest: expected sha256 {'0' * 64}",
        ),
    ],
)
def test_a_calibration_that_cannot_be_served_stops_the_start_with_one_line(
    tmp_path: Path, prepare: Callable[[Path], None], settings: dict[str, str], message: str
) -> None:
    (tmp_path / EMBEDDED.name).symlink_to(EMBEDDED)
    prepare(tmp_path)
    status, lines = start(tmp_path, **settings)
    assert (status, len(lines)) == (1, 1)
    assert lines[0].startswith(f"adapter: {message.format(place=tmp_path)}")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An adapter that answers System One and OpenAI Decisions calibrated."""
    place = tmp_path_factory.mktemp("calibrated")
    (place / EMBEDDED.name).symlink_to(EMBEDDED)
    _put(place, "calibrations.json", json.dumps(FILE))
    with running_adapter(place, place / "log", SEMIF_CALIBRATION="support") as running:
        yield running


def _tempered(probabilities: list[float], temperature: float) -> Any:
    """Softmax of the logits at that temperature, from the probabilities at temperature 1."""
    weights = [math.pow(p, 1 / temperature) for p in probabilities]
    return pytest.approx([weight / sum(weights) for weight in weights])


def test_system_one_is_answered_by_the_endpoints_calibration_and_says_so(server: Server, calibrated: Server) -> None:
    body = {
        "state": STATE,
        "model": "jev-latest",
        "questions": {
            "refund": {"type": "noul", "instructions": "Does the customer ask for money back?"},
            "team": {"type": "choice", "criteria": {"billing": "Payments", "tech": "Bugs", "sales": None}},
            "urgency": {"type": "score", "criteria": ["low", "medium", "high"]},
        },
    }
    plain, told = (
        httpx.post(f"{at.url}/v1/systemone", json=body, timeout=60).json()["answers"] for at in (server, calibrated)
    )
    assert "x_probability_status" not in plain["refund"]
    before = plain["refund"]["noul"]
    assert [told["refund"]["noul"], 1 - told["refund"]["noul"]] == _tempered([before, 1 - before], 2)
    for name, kind, temperature in (("team", "choice", 3), ("urgency", "score", 0.5)):
        found, expected = (list(answers[name]["probabilities"].values()) for answers in (told, plain))
        assert found == _tempered(expected, temperature)
        assert told[name]["x_probability_status"] == (
            f"calibrated by 'support' for {kind}: softmax at temperature {float(temperature)}"
        )


def test_openai_decisions_are_answered_by_it_too(server: Server, calibrated: Server) -> None:
    question: Any = {"type": "predicate", "instructions": "Does the customer ask for money back?"}
    told = []
    for at in (server, calibrated):
        client = OpenAI(base_url=f"{at.url}/v1", api_key="any")
        answer: Any = client.decisions.create(model="gpt-6-luna", input=STATE, questions=[question]).answers[0]
        told.append([answer.probability, 1 - answer.probability])
    assert told[1] == _tempered(told[0], 2)


def test_the_list_of_models_says_which_calibration_answers(server: Server, calibrated: Server) -> None:
    plain, told = (httpx.get(f"{at.url}/v1/models").json()["models"][0]["description"] for at in (server, calibrated))
    assert told.endswith("by llama.cpp, calibrated by 'support'")
    assert "calibrated" not in plain


def test_a_plain_decision_is_calibrated_only_where_it_asks(calibrated: Server, decision: Make) -> None:
    plain = calibrated.invoke({"decision": decision()}).json()["result"]
    assert plain["probability_status"] == "uncalibrated softmax over the declared options"
    named = calibrated.invoke({"decision": decision(calibration="support")}).json()["result"]
    assert named["probabilities"] == _tempered(plain["probabilities"], 3)  # of no type: the overall temperature
    assert named["probability_status"] == "calibrated by 'support': softmax at temperature 3.0"


def test_a_calibration_of_another_prompt_is_not_applied(calibrated: Server, decision: Make) -> None:
    refused = calibrated.invoke({"decision": decision(calibration="support", layout="criteria-first")})
    assert refused.status_code == 400
    assert refused.json()["error"] == (
        "calibration 'support' was fitted for the prompt 'direct-options-v1', and this is 'criteria-first-v1'"
    )
    fits = calibrated.invoke({"decision": decision(calibration="by-criteria", layout="criteria-first")})
    assert fits.json()["result"]["probability_status"] == "calibrated by 'by-criteria': softmax at temperature 2.0"
