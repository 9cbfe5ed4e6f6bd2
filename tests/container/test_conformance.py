"""System One's published suites and its official client against the adapter, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jevbench
import openai
import pytest
from jevcompat import runner
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Image,
    Noul,
    RetryPolicy,
    Score,
    SystemOneResponse,
    TypeSafeAuthenticationError,
    TypeSafeBadRequestError,
    TypeSafeClient,
    TypeSafeInternalServerError,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)

from tests.container.conftest import KEY, Server, running_adapter, until_evaluating
from tests.models.make_models import model_path

PATIENCE = 600.0  # seconds for one answer: a busy machine must not fail a test

STATE = "I was charged twice and want my money back. " * 30  # more than 1,024 bytes: the client packs it with zstd
QUESTIONS: dict[str, Noul | Choice | Score] = {
    "refund": Noul(instructions="Does the customer ask for money back?"),
    "team": Choice(instructions="Which team?", criteria={"billing": "Payments", "tech": None, "🙂 기타": ["other"]}),
    "anger": Score(instructions="How angry?", criteria=["calm", "angry", {"label": "furious"}]),
}

# What jevcompat can ask only of a server without a key, and only of one with a key.
_WITHOUT_KEY = {"auth.ignored-when-off"}
_WITH_KEY = {"auth.bearer", "auth.missing", "auth.invalid"}


@dataclass(frozen=True)
class Reports:
    """jevcompat's of the whole suite."""

    with_key: runner.Report
    without_key: runner.Report


@pytest.fixture(scope="module")
def reports(keyed_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """Side by side: most of the time goes into prompts of 255 options, which each server reads on a core of its own."""
    place = tmp_path_factory.mktemp("open")
    (place / "model.gguf").symlink_to(model_path("embedded-q4_0"))
    with (
        running_adapter(place, place / "log", SEMIF_DEADLINE_SECONDS="600") as open_server,
        ThreadPoolExecutor(2) as suites,
    ):
        with_key = suites.submit(runner.run, keyed_server.url, key=KEY, timeout=PATIENCE)
        without_key = suites.submit(runner.run, open_server.url, timeout=PATIENCE)
        return Reports(with_key.result(), without_key.result())


def _not_passed(report: runner.Report) -> dict[str, str]:
    return {result.id: result.status for result in report.results if result.status != "pass"}


@pytest.mark.timeout(3600)  # whichever comes first waits for both suites
def test_every_must_and_every_should_with_a_key(reports: Reports) -> None:
    report = reports.with_key
    assert _not_passed(report) == dict.fromkeys(_WITHOUT_KEY, "skip")
    assert report.verdict == "conformant"
    assert report.summary()["MUST"] == {"passed": 32, "failed": 0, "skipped": 1, "tested": 32}
    assert report.summary()["SHOULD"] == {"passed": 15, "failed": 0, "skipped": 0, "tested": 15}
    assert report.info["limits"] == {"choice options accepted up to": 255, "score levels accepted up to": 10}


@pytest.mark.timeout(3600)
def test_every_must_and_every_should_without_a_key(reports: Reports) -> None:
    report = reports.without_key
    assert _not_passed(report) == dict.fromkeys(_WITH_KEY, "skip")
    assert report.verdict == "conformant"
    assert report.summary()["MUST"] == {"passed": 32, "failed": 0, "skipped": 1, "tested": 32}
    assert report.summary()["SHOULD"] == {"passed": 13, "failed": 0, "skipped": 2, "tested": 13}


@pytest.mark.timeout(3600)
def test_together_they_leave_nothing_out(reports: Reports) -> None:
    passed = {
        (result.level, result.id)
        for report in (reports.with_key, reports.without_key)
        for result in report.results
        if result.status == "pass"
    }
    assert [sum(level == each for each, _ in passed) for level in ("MUST", "SHOULD")] == [33, 15]


def test_jevbench_can_ask(keyed_server: Server) -> None:
    model = jevbench.systemone(f"{keyed_server.url}/v1/systemone", "jev-latest", api_key=KEY, timeout=PATIENCE)
    assert set(jevbench.check(model)["questions"]) == {"noul", "choice", "score"}


@pytest.fixture(scope="module")
def client(keyed_server: Server) -> Iterator[TypeSafeClient]:
    with TypeSafeClient(base_url=keyed_server.url, api_key=KEY, timeout=PATIENCE, compression="zstd") as made:
        yield made


def test_the_official_client_reads_every_kind_of_answer(client: TypeSafeClient) -> None:
    answered = client.system_one(STATE, QUESTIONS)
    assert answered.model == "model"  # the file's name, where no manifest names the model
    assert answered.nouls["refund"].noul == pytest.approx(1 - _noul_of_the_opposite(client))
    team = answered.choices["team"]
    assert set(team.probabilities) == {"billing", "tech", "🙂 기타"}
    assert team.choice == max(team.probabilities, key=lambda name: team.probabilities[name])
    anger = answered.scores["anger"]
    assert anger.legend == {0: "calm", 1: "angry", 2: {"label": "furious"}}
    assert anger.score == pytest.approx(sum(level * p for level, p in anger.probabilities.items()))
    assert answered.usage.input_tokens is not None
    assert answered.usage.input_tokens > 1000  # three prompts with the state
    assert answered.usage.output_tokens == 0


def _noul_of_the_opposite(client: TypeSafeClient) -> float:
    """The same two slots, described the other way round, are a choice whose probabilities add up to 1."""
    described = {"yes": "The answer to the question is yes.", "no": "The answer to the question is no."}
    asked = Choice(instructions="Does the customer ask for money back?", criteria=described)
    return client.system_one(STATE, {"q": asked}).choices["q"].probabilities["no"]


def test_the_asynchronous_client_gets_the_same_answers(keyed_server: Server, client: TypeSafeClient) -> None:
    async def ask() -> SystemOneResponse:
        async with AsyncTypeSafeClient(base_url=keyed_server.url, api_key=KEY, timeout=PATIENCE) as made:
            return await made.system_one(STATE, QUESTIONS)

    assert asyncio.run(ask()).answers == client.system_one(STATE, QUESTIONS).answers


def test_the_client_lists_the_models(client: TypeSafeClient) -> None:
    assert [model.name for model in client.models.list().models] == ["model", "jev-latest", "gpt-6-luna"]


def test_the_client_raises_the_exception_that_fits(
    keyed_server: Server, client: TypeSafeClient, tmp_path: Path
) -> None:
    questions = {"q": Noul(instructions="?")}
    with pytest.raises(TypeSafeBadRequestError, match="model 'other' is not served here; send 'model'") as caught:
        client.system_one("s", questions, model="other")
    assert str(caught.value.request_id).startswith("req_")
    with pytest.raises(TypeSafeUnprocessableEntityError, match=r"questions\.q\.choice\.criteria: .*at least 2"):
        client.system_one("s", {"q": Choice(criteria={"only": None})})
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(TypeSafeUnprocessableEntityError, match="images"):
        client.system_one(Image(picture), questions)
    with (
        TypeSafeClient(base_url=keyed_server.url, api_key="wrong") as wrong,
        pytest.raises(TypeSafeAuthenticationError, match="not the one configured here"),
    ):
        wrong.system_one("s", questions)
    with (
        TypeSafeClient(base_url=f"{keyed_server.url}/v2", api_key=KEY) as misled,
        pytest.raises(TypeSafeNotFoundError, match="/v2/v1/systemone"),
    ):
        misled.system_one("s", questions)


def test_clients_are_told_to_wait_and_ask_again_while_the_adapter_is_busy(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("embedded-q4_0"))
    questions = {"q": Noul(instructions="?")}
    asked: Any = {"type": "predicate", "instructions": "?"}
    with (
        running_adapter(tmp_path, tmp_path / "log", SEMIF_MAX_IN_FLIGHT="1", SEMIF_DEADLINE_SECONDS="600") as busy,
        TypeSafeClient(base_url=busy.url, api_key="any", timeout=PATIENCE) as client,
        ThreadPoolExecutor(1) as callers,
    ):
        client.system_one("s", questions)  # from here on the speed is known
        running = callers.submit(client.system_one, "The customer writes again. " * 200, questions)
        until_evaluating(busy)
        with pytest.raises(TypeSafeInternalServerError, match="busy: ") as caught:
            client.system_one("s", questions, retry=RetryPolicy(max_retries=0))
        assert int(caught.value.headers["retry-after"]) >= 1
        with (
            openai.OpenAI(base_url=f"{busy.url}/v1", api_key="any", max_retries=0) as other,
            pytest.raises(openai.InternalServerError, match="busy: ") as refused,
        ):
            other.decisions.create(model="gpt-6-luna", input="s", questions=[asked])
        assert (refused.value.status_code, refused.value.code) == (503, "busy")
        patient = RetryPolicy(max_retries=1000, timeout=None)
        assert client.system_one("s", questions, retry=patient).nouls["q"].noul > 0
        assert running.result().nouls["q"].noul > 0
        metrics = httpx.get(f"{busy.url}/metrics").text
        assert 'adapter_requests_total{path="/v1/systemone",status="503"}' in metrics
