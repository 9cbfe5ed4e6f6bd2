"""The log lines that CloudWatch turns into metrics: valid by AWS's schema, complete, and off unless asked for."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from adapter.api.emf import EmbeddedMetrics
from adapter.api.record import Record
from adapter.settings import SettingsError, load_settings
from tests.container.conftest import running_adapter

Make = Callable[..., dict[str, Any]]

_NAME = {"type": "string", "minLength": 1, "maxLength": 255}
_UNITS = [
    "Seconds",
    "Microseconds",
    "Milliseconds",
    "Bytes",
    "Bits",
    "Percent",
    "Count",
    "Count/Second",
    "None",
]
# The rules of "Specification: Embedded metric format" in the CloudWatch user guide, with the limits of its text.
_SCHEMA = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "additionalProperties": False,
            "properties": {
                "Timestamp": {"type": "integer", "minimum": 1_600_000_000_000},
                "CloudWatchMetrics": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["Namespace", "Dimensions", "Metrics"],
                        "additionalProperties": False,
                        "properties": {
                            "Namespace": _NAME,
                            "Dimensions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {"type": "array", "maxItems": 30, "items": _NAME},
                            },
                            "Metrics": {
                                "type": "array",
                                "maxItems": 100,
                                "items": {
                                    "type": "object",
                                    "required": ["Name"],
                                    "additionalProperties": False,
                                    "properties": {"Name": _NAME, "Unit": {"enum": _UNITS}},
                                },
                            },
                        },
                    },
                },
            },
        }
    },
    # What metrics refer to: numbers, or up to 100 of them; the dimension a string.
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "number"},
            {"type": "array", "minItems": 1, "maxItems": 100, "items": {"type": "number"}},
        ]
    },
}


def _read(line: str) -> dict[str, Any]:
    """The values of a valid line."""
    document: dict[str, Any] = json.loads(line)
    jsonschema.validate(document, _SCHEMA)
    (directive,) = document.pop("_aws")["CloudWatchMetrics"]
    for dimensions in directive["Dimensions"]:
        assert all(isinstance(document[name], str) for name in dimensions)
    assert [metric["Name"] for metric in directive["Metrics"]] == [name for name in document if name != "EndpointName"]
    return document


def _record(decisions: int) -> Record:
    record = Record(tokens_evaluated=100, tokens_reused=28)
    record.masses = [0.5] * decisions
    record.decision_seconds = 1.5
    return record


def _gathering(lines: list[str]) -> EmbeddedMetrics:
    return EmbeddedMetrics("Decisions", "support", gpu_layers=33, write=lines.append)


def test_a_line_says_what_happened_since_the_last() -> None:
    lines: list[str] = []
    metrics = _gathering(lines)
    metrics.observe(_record(2), "/invocations", 200)
    metrics.observe(Record(), "/invocations", 503)
    metrics.observe(Record(), "/v1/decisions", 500)
    metrics.observe(Record(), "other", 404)
    metrics.observe(Record(), "/ping", 503)
    metrics.observe(Record(), "/metrics", 200)
    metrics.flush()
    metrics.flush()
    assert _read(lines[0]) == {
        "EndpointName": "support",
        "GpuLayers": 33,
        "Requests": 4,
        "Busy": 1,
        "Errors": 1,
        "TokensEvaluated": 100,
        "TokensReused": 28,
        "AllowedTokenMass": [0.5, 0.5],
        "DecisionMilliseconds": [1500.0],
    }
    assert _read(lines[1])["Requests"] == 0
    assert "AllowedTokenMass" not in _read(lines[1])


def test_no_value_is_lost_where_there_are_more_than_a_line_holds() -> None:
    lines: list[str] = []
    metrics = _gathering(lines)
    for _ in range(3):
        metrics.observe(_record(130), "/v1/decisions", 200)  # written at once, in two lines
    values = [_read(line) for line in lines]
    assert [len(value["AllowedTokenMass"]) for value in values] == [100, 30] * 3
    assert sum(value.get("Requests", 0) for value in values) == 3
    assert sum(value.get("TokensEvaluated", 0) for value in values) == 300
    assert sum(len(value.get("DecisionMilliseconds", [])) for value in values) == 3


def test_the_adapter_writes_them_beside_its_requests(embedded_dir: Path, decision: Make, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_adapter(
        embedded_dir, log, SEMIF_EMF_NAMESPACE="Decisions/Test", SEMIF_ENDPOINT_NAME="support"
    ) as server:
        result = server.invoke({"decision": decision()}).json()["result"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    lines = [line for line in log.read_text().splitlines() if '"_aws"' in line]
    first, last = _read(lines[0]), _read(lines[-1])
    assert (first["Requests"], first["GpuLayers"]) == (0, 0)
    assert json.loads(lines[-1])["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Decisions/Test"
    assert (last["EndpointName"], last["Requests"], last["Busy"], last["Errors"]) == ("support", 1, 0, 0)
    assert last["TokensEvaluated"] + last["TokensReused"] == result["input_tokens"]
    assert last["AllowedTokenMass"] == [pytest.approx(result["allowed_token_mass"], abs=1e-6)]
    assert last["DecisionMilliseconds"] == [pytest.approx(1000 * result["total_seconds"], abs=0.1)]


def test_a_namespace_needs_the_endpoints_name() -> None:
    with pytest.raises(SettingsError, match=r"SEMIF_EMF_NAMESPACE='D': .*needs SEMIF_ENDPOINT_NAME too"):
        load_settings({"SEMIF_EMF_NAMESPACE": "D"})
    with pytest.raises(SettingsError, match="SEMIF_EMF_NAMESPACE=':D'"):
        load_settings({"SEMIF_EMF_NAMESPACE": ":D", "SEMIF_ENDPOINT_NAME": "support"})
    assert load_settings({}).emf_namespace is None
