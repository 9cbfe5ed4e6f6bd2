"""CloudWatch embedded metrics: JSON lines in the log that CloudWatch turns into the metrics that alarms watch."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

from adapter.api.record import Record

_INTERVAL_SECONDS = 30  # twice a minute, so that no minute of an alarm is empty where a line comes late
_MOST_VALUES = 100  # in one metric of one line (AWS, "Specification: Embedded metric format")
_NOT_COUNTED = frozenset({"/ping", "/metrics"})  # asked by machines, every few seconds
_UNAVAILABLE = 503

_UNITS = {
    "Requests": "Count",
    "Busy": "Count",
    "Errors": "Count",
    "TokensEvaluated": "Count",
    "TokensReused": "Count",
    "GpuLayers": "Count",
    "AllowedTokenMass": "None",
    "DecisionMilliseconds": "Milliseconds",
}


class EmbeddedMetrics:
    """Gathers what requests leave behind and writes it as one line every 30 s, or when a line is full.

    Counts are those since the last line; a line without requests says zero, so that silence means that nobody is there.
    """

    def __init__(self, namespace: str, endpoint: str, *, gpu_layers: int, write: Callable[[str], None]) -> None:
        """`endpoint` is the value of the only dimension; `write` takes a line."""
        self._namespace = namespace
        self._endpoint = endpoint
        self._gpu_layers = gpu_layers
        self._write = write
        self._forget()

    def observe(self, record: Record, path: str, status: int) -> None:
        """A request has been answered."""
        if path in _NOT_COUNTED:
            return
        self._counts["Requests"] += 1
        self._counts["Busy"] += status == _UNAVAILABLE
        self._counts["Errors"] += status >= 500 and status != _UNAVAILABLE  # noqa: PLR2004 - HTTP's server errors
        self._counts["TokensEvaluated"] += record.tokens_evaluated
        self._counts["TokensReused"] += record.tokens_reused
        self._masses += [round(mass, 6) for mass in record.masses]
        if record.decision_seconds is not None:
            self._milliseconds.append(round(1000 * record.decision_seconds, 1))
        if max(len(self._masses), len(self._milliseconds)) >= _MOST_VALUES:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        gathered = max(len(self._masses), len(self._milliseconds), 1)
        for start in range(0, gathered, _MOST_VALUES):
            values: dict[str, float | list[float]] = {"GpuLayers": self._gpu_layers}
            if start == 0:
                values.update(self._counts)
            for name, series in (("AllowedTokenMass", self._masses), ("DecisionMilliseconds", self._milliseconds)):
                if part := series[start : start + _MOST_VALUES]:
                    values[name] = part
            self._write(json.dumps(self._document(values)))
        self._forget()

    async def run(self) -> None:
        """Write a line every 30 s, and the last one when cancelled."""
        try:
            while True:
                self.flush()
                await asyncio.sleep(_INTERVAL_SECONDS)
        finally:
            self.flush()

    def _forget(self) -> None:
        self._counts = Counter(dict.fromkeys(("Requests", "Busy", "Errors", "TokensEvaluated", "TokensReused"), 0))
        self._masses: list[float] = []
        self._milliseconds: list[float] = []

    def _document(self, values: dict[str, float | list[float]]) -> dict[str, object]:
        directive = {
            "Namespace": self._namespace,
            "Dimensions": [["EndpointName"]],
            "Metrics": [{"Name": name, "Unit": _UNITS[name]} for name in values],
        }
        metadata = {"Timestamp": time.time_ns() // 1_000_000, "CloudWatchMetrics": [directive]}
        return {"_aws": metadata, "EndpointName": self._endpoint, **values}
