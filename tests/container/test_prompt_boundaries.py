"""Where a prompt says that others share its tokens, they do: what the engine keeps is found again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.prompt import ChatTemplate, PromptBuilder
from adapter.vocabulary import Vocabulary

ARCHIVE = Path(__file__).parents[2] / ".cache" / "llama.cpp-models"
OPTIONS = ("Yes.", "No.", "It cannot be known.")
TEXTS = st.text(min_size=1, max_size=60)
STATES = st.one_of(
    TEXTS, st.lists(TEXTS, min_size=1, max_size=4), st.dictionaries(TEXTS, TEXTS, min_size=1, max_size=3)
)
SENTENCES = st.lists(
    st.sampled_from(
        ["Where is my parcel?", "It left on Tuesday.", "Straße 7, naïve café", "小包はどこですか", "أين الطرد"]
    ),
    min_size=1,
    max_size=6,
)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(
    scope="module",
    params=[
        ("ggml-vocab-qwen35", "Qwen3.5-4B"),
        ("ggml-vocab-llama-spm", "mistralai-Mistral-Nemo-Instruct-2407"),
        ("ggml-vocab-phi-3", "microsoft-Phi-3.5-mini-instruct"),
    ],
    ids=lambda names: names[0],
)
def prompts(request: pytest.FixtureRequest) -> Iterator[PromptBuilder]:
    vocabulary_file, template = request.param
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(ARCHIVE / f"{vocabulary_file}.gguf").encode(), parameters)
    assert model
    vocabulary = Vocabulary(model)
    source = (ARCHIVE / "templates" / f"{template}.jinja").read_text("utf-8")
    yield PromptBuilder(ChatTemplate(source, bos=vocabulary.bos, eos=vocabulary.eos), vocabulary)
    llama_cpp.llama_model_free(model)


@many
@given(state=STATES)
def test_every_prompt_begins_with_the_head(prompts: PromptBuilder, state: object) -> None:
    head = prompts.head()
    assert len(head) > 30
    assert prompts.build(state, "Is it late?", OPTIONS).tokens[: len(head)] == head


@many
@given(state=STATES, question=TEXTS, other=TEXTS)
def test_questions_share_the_state(prompts: PromptBuilder, state: object, question: str, other: str) -> None:
    one, two = (prompts.build(state, text, OPTIONS) for text in (question, other))
    end = one.boundaries[-1]
    assert one.tokens[:end] == two.tokens[:end]
    assert one.boundaries == two.boundaries


@many
@given(turns=SENTENCES, more=SENTENCES, as_list=st.booleans())
def test_a_longer_transcript_shares_the_shorter_one(
    prompts: PromptBuilder, turns: list[str], more: list[str], as_list: bool
) -> None:
    def state(lines: list[str]) -> object:
        return lines if as_list else "\n".join(lines)

    short, long = (prompts.build(state(lines), "Is it late?", OPTIONS) for lines in (turns, turns + more))
    end = short.boundaries[-1]
    assert short.tokens[:end] == long.tokens[:end]


@many
@given(state=TEXTS, other=TEXTS)
def test_states_share_the_criterion(prompts: PromptBuilder, state: str, other: str) -> None:
    one, two = (prompts.build(text, "Is it late?", OPTIONS, "criteria-first") for text in (state, other))
    end = one.boundaries[0]
    assert one.tokens[:end] == two.tokens[:end]


def test_boundaries_leave_little_behind(prompts: PromptBuilder) -> None:
    state = "The parcel left the depot on Tuesday and nobody knows where it is"
    first = prompts.build(state, "Is it late?", OPTIONS)
    after_state = len(re.findall(r"\w+|\W", f'", "criterion": "Is it late?" {OPTIONS}')) + 60  # options and the tail
    assert 0 < len(first.tokens) - first.boundaries[-1] < after_state
    assert first.boundaries[-1] > first.boundaries[0] + 8
