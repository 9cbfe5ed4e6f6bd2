"""OpenAI's official client and LangChain's runnable against the adapter, by base URL alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate, Score
from pydantic import SecretStr

from tests.container.conftest import KEY, Server, running_adapter
from tests.models.make_models import model_path

PATIENCE = 600.0  # seconds for one answer: a busy machine must not fail a test

REFUND: Any = {"type": "predicate", "name": "refund", "instructions": "Does the customer ask for money back?"}
TEAM: Any = {
    "type": "choice",
    "instructions": [{"type": "input_text", "text": "Which team?"}, {"type": "input_json", "data": {"day": "Monday"}}],
    "choices": [{"value": "billing", "description": "Payments"}, {"value": True}, {"value": "true"}],
}
ANGER: Any = {
    "type": "score",
    "name": "anger",
    "instructions": "How angry is the customer?",
    "levels": [{"label": "calm"}, {"label": "angry", "description": "Raises the voice."}],
}
CONVERSATION: Any = [
    {"role": "system", "content": "Be polite."},
    {"role": "developer", "content": "The shop sells shoes."},
    {
        "role": "user",
        "content": [{"type": "input_json", "data": {"order": 7}}, {"type": "input_text", "text": "Late!"}],
    },
    {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": '{"order": 7}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "in transit"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "note", "input": "late order"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "noted"}]},
    {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "On its way."}, {"type": "refusal", "refusal": "No map."}],
    },
]


def _client(url: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=PATIENCE, max_retries=0)


@pytest.fixture(scope="module")
def client(keyed_server: Server) -> Iterator[openai.OpenAI]:
    with _client(keyed_server.url) as made:
        yield made


@pytest.mark.parametrize("asked", ["I want my money back.", CONVERSATION])
def test_every_kind_of_question_about_every_kind_of_input(client: openai.OpenAI, asked: Any) -> None:
    decision = client.decisions.create(
        model="gpt-6-luna", input=asked, questions=[TEAM, REFUND, ANGER], prompt_cache_key="k", safety_identifier="s"
    )
    team, refund, anger = decision.answers
    assert decision.model == "model"  # the file's name, where no manifest names the model
    assert team.type == "choice"
    assert team.name is None
    assert [each.value for each in team.probabilities] == ["billing", True, "true"]
    assert team.choice == max(team.probabilities, key=lambda each: each.probability).value
    assert sum(each.probability for each in team.probabilities) == pytest.approx(1)
    assert refund.type == "predicate"
    assert refund.name == "refund"
    assert 0 < refund.probability < 1
    assert anger.type == "score"
    assert [(each.label, each.value) for each in anger.probabilities] == [("calm", 0), ("angry", 1)]
    assert anger.score == pytest.approx(anger.probabilities[1].probability)
    assert 0 <= anger.confidence <= 1
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens > 150
    assert usage.output_tokens == usage.output_tokens_details.reasoning_tokens == 0
    assert 0 < usage.input_tokens_details.cached_tokens < usage.input_tokens  # the three prompts begin alike


def test_the_same_body_through_invocations(keyed_server: Server, client: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "gpt-6-luna", "input": "text", "questions": [REFUND, TEAM]}
    invoked = client.post(f"{keyed_server.url}/invocations", body=body, cast_to=dict[str, Any])
    direct = client.decisions.create(**body)
    assert invoked["answers"] == direct.to_dict()["answers"]


def test_the_asynchronous_client_gets_the_same_answers(keyed_server: Server, client: openai.OpenAI) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{keyed_server.url}/v1", api_key=KEY, timeout=PATIENCE) as made:
            return await made.decisions.create(model="gpt-6-luna", input="text", questions=[REFUND, TEAM])

    direct = client.decisions.create(model="gpt-6-luna", input="text", questions=[REFUND, TEAM])
    assert asyncio.run(ask()).answers == direct.answers


def test_the_client_lists_the_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["model", "jev-latest", "gpt-6-luna"]


def test_the_client_raises_the_exception_that_fits(keyed_server: Server, client: openai.OpenAI) -> None:
    def ask(maker: openai.OpenAI, **changes: Any) -> None:
        maker.decisions.create(**{"model": "gpt-6-luna", "input": "text", "questions": [REFUND], **changes})

    with pytest.raises(openai.BadRequestError, match="images are not supported") as wrong:
        ask(client, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}])
    assert wrong.value.param == "input[0].content[0]"
    assert str(wrong.value.request_id).startswith("req_")
    with pytest.raises(openai.NotFoundError, match="model 'other' is not served here") as unknown:
        ask(client, model="other")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.APIStatusError, match=r"at most 8192 are allowed \(SEMIF_MAX_TOKENS\)") as long:
        ask(client, input="word " * 9000)
    assert (long.value.status_code, long.value.code) == (413, "context_length_exceeded")
    with _client(keyed_server.url, "wrong") as stranger, pytest.raises(openai.AuthenticationError) as refused:
        ask(stranger)
    assert refused.value.code == "invalid_api_key"


@pytest.mark.filterwarnings("ignore:.*in beta")
def test_langchain_asks_by_base_url_alone(keyed_server: Server) -> None:
    decisions = OpenAIDecisions(
        model="gpt-6-luna", base_url=f"{keyed_server.url}/v1", api_key=SecretStr(KEY), timeout=PATIENCE
    )
    questions: Any = {
        "team": Choice(instructions="Which team?", choices={"billing": "Payments", "tech": None}),
        "urgent": Predicate(instructions="Is it urgent?"),
        "anger": Score(instructions="How angry?", levels=["calm", "angry"]),
    }
    state = [HumanMessage("I was charged twice."), AIMessage("We are sorry.")]
    answered = decisions.invoke({"input": state, "questions": questions})
    assert set(answered.choices["team"].probabilities) == {"billing", "tech"}
    assert 0 < answered.predicates["urgent"].probability < 1
    assert answered.scores["anger"].legend == {0: "calm", 1: "angry"}
    assert str(answered.request_id).startswith("req_")
    with pytest.raises(openai.BadRequestError, match="at least 2"):
        decisions.invoke({"input": "x", "questions": {"q": Choice(instructions="?", choices={"only": None})}})


def test_four_hundred_questions_are_answered_each_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-sentencepiece"))
    questions: list[Any] = [
        {"type": "predicate", "name": f"q{number}", "instructions": f"Is it {number}?"} for number in range(400)
    ]
    with (
        running_adapter(tmp_path, tmp_path / "log", SEMIF_DEADLINE_SECONDS="600") as tiny,
        _client(tiny.url) as client,
    ):
        answers = client.decisions.create(model="gpt-6-luna", input="It is 7.", questions=questions).answers
        assert [answer.name for answer in answers] == [f"q{number}" for number in range(400)]
        for number in (0, 7, 199, 399):
            (alone,) = client.decisions.create(
                model="gpt-6-luna", input="It is 7.", questions=[questions[number]]
            ).answers
            together = answers[number]
            assert alone.type == together.type == "predicate"
            assert alone.probability == pytest.approx(together.probability, abs=1e-4)
        assert len({answer.probability for answer in answers if answer.type == "predicate"}) > 300
