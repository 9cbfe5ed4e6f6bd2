"""Requests that schemathesis makes from the OpenAPI document, valid and not, and what the adapter answers to them.

python -m tests.container.fuzzing [--requests N] [--seed N]     (make fuzz)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from rich.console import Console
from rich.table import Table
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from tests.container.conftest import running_adapter
from tests.models.make_models import model_path

# Short prompts, so that most time goes into requests: what is longer is refused, and that is a path to test as well.
SETTINGS = {
    "SEMIF_MAX_TOKENS": "256",
    "SEMIF_MAX_REQUEST_TOKENS": "768",
    "SEMIF_MAX_SHARED_DECISIONS": "4",
    "SEMIF_DEADLINE_SECONDS": "600",
}
_LONGEST_MESSAGE = 1000  # characters: a sentence, not an echo of the body
_CHAT_TOKENS = 2
_SEEDS = 50  # rounds at most: each draws new requests


@dataclass
class Findings:
    """What was asked and what was wrong."""

    answers: Counter[tuple[str, int | None]] = field(default_factory=Counter)  # by operation and status
    faults: Counter[str] = field(default_factory=Counter)
    seeds: list[int] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many were sent."""
        return sum(self.answers.values())


@schemathesis.hook
def before_call(_context: Any, case: Any, _kwargs: Any) -> None:
    """Chats end after two tokens: a longer answer is no other test, and takes the longest time of all."""
    body = case.body
    if isinstance(body, dict) and "messages" in body:
        limits = [name for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
        for name in limits or ["max_tokens"]:
            if name not in limits or (isinstance(body[name], int | float) and body[name] > _CHAT_TOKENS):
                body[name] = _CHAT_TOKENS


@schemathesis.check
def one_sentence_of_json(_context: Any, response: Any, case: Any) -> None:
    """Every error is JSON in the shape of its path, whose message is one short sentence and no traceback."""
    if response.status_code < 400 or case.method == "HEAD":
        return
    if response.status_code >= 500 and response.status_code != 503:
        raise AssertionError(f"status {response.status_code}: {response.text[:300]}")
    body = response.json()
    for message in _messages(body):
        if not 10 <= len(message) <= _LONGEST_MESSAGE or "Traceback" in message or "\n" in message:
            raise AssertionError(f"not one sentence: {message[:300]!r}")


def _messages(body: Any) -> Iterator[str]:
    if isinstance(body.get("detail"), list):
        assert body["detail"]
        yield from (fault["msg"] for fault in body["detail"])
    elif "detail" in body:
        yield body["detail"]["message"]
    else:
        yield body["error"] if isinstance(body["error"], str) else body["error"]["message"]


def fuzz(url: str, *, requests: int, seed: int) -> Findings:
    """Send the document's examples and what schemathesis derives from every rule of every schema; then random bodies.

    It goes on until at least `requests` were sent. Faults are collected, not raised.
    """
    found = Findings()
    _run(url, found, seed, drawn=False)
    for more in range(_SEEDS):
        if found.requests >= requests:
            break
        _run(url, found, seed + more, drawn=True)
    return found


def _run(url: str, found: Findings, seed: int, *, drawn: bool) -> None:
    config = SchemathesisConfig(seed=seed)
    project = config.projects.default
    project.continue_on_failure = True
    project.request_timeout = 600
    project.generation.max_examples = 100
    project.generation.no_shrink = True
    project.generation.database = "none"
    # Not every rule can be written in JSON Schema: unique ids, calls with outputs, lengths in tokens.
    project.checks.positive_data_acceptance.enabled = False
    project.checks.not_a_server_error.enabled = False  # 503 is an answer; `one_sentence_of_json` looks for the others
    project.phases.examples.enabled = project.phases.coverage.enabled = not drawn
    project.phases.fuzzing.enabled = drawn
    project.phases.stateful.enabled = False
    found.seeds.append(seed)
    for event in from_schema(schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)).execute():
        if isinstance(event, events.ScenarioFinished):
            for interaction in event.recorder.interactions.values():
                status = interaction.response.status_code if interaction.response else None
                found.answers[event.recorder.label, status] += 1
            for checks in event.recorder.checks.values():
                for check in checks:
                    if check.failure_info is not None:
                        failure = check.failure_info.failure
                        found.faults[f"{event.recorder.label}: {check.name}: {failure.title}: {failure.message}"] += 1
        elif isinstance(event, events.NonFatalError):
            found.faults[f"{event.label}: {event.value!r}"] += 1
        elif isinstance(event, events.FatalError):
            found.faults[f"{event.exception!r}"] += 1


def table(found: Findings) -> Table:
    """Requests by path and status, and faults by path."""
    statuses = sorted({status for _, status in found.answers}, key=str)
    shown = Table("operation", *map(str, statuses), "requests", "faults", title=f"seeds {found.seeds}")
    for operation in sorted({operation for operation, _ in found.answers}):
        counts = [found.answers[operation, status] for status in statuses]
        faults = sum(count for fault, count in found.faults.items() if fault.startswith(f"{operation}: "))
        shown.add_row(operation, *map(str, counts), str(sum(counts)), str(faults))
    shown.add_section()
    totals = [sum(count for (_, each), count in found.answers.items() if each == status) for status in statuses]
    shown.add_row("together", *map(str, totals), str(found.requests), str(sum(found.faults.values())))
    return shown


def main() -> int:
    """Fuzz an adapter with a model of tests.models.make_models. Returns 1 where a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="tiny-sentencepiece", help="small: what is tested is the server")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "model.gguf").symlink_to(model_path(given.model))
        log = Path(place) / "log"
        with running_adapter(Path(place), log, **SETTINGS) as server:
            found = fuzz(server.url, requests=given.requests, seed=given.seed)
        tracebacks = log.read_text(errors="replace").count("Traceback")
    console = Console()
    console.print(table(found))
    for fault, count in found.faults.most_common(20):
        console.print(f"{count} times: {fault}", markup=False, soft_wrap=True)
    console.print(f"tracebacks in the adapter's log: {tracebacks}")
    return int(bool(found.faults) or bool(tracebacks) or found.requests < given.requests)


if __name__ == "__main__":
    sys.exit(main())
