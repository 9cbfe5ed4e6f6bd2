"""Hostile and merely odd bodies, over HTTP: refused in one short sentence, or answered under their own names."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adapter.model import Model
from adapter.vocabulary import Vocabulary
from tests.container.conftest import Server, running_adapter
from tests.models.make_models import model_path

TEN_MEGABYTES = 10_000_000

# For each API: its path, and a body around a name of the caller's, a text of his, and any value where that is allowed.
BODIES: dict[str, Any] = {
    "/invocations": lambda name, text, state: {
        "decision": {
            "id": name,
            "state": state,
            "question": text,
            "options": [{"id": name, "description": text}, {"id": f"not {name}", "description": "no"}],
        }
    },
    "/v1/systemone": lambda name, text, state: {
        "state": state,
        "model": "jev-latest",
        "questions": {name: {"type": "choice", "instructions": text, "criteria": {name: text, f"not {name}": None}}},
    },
    "/v1/decisions": lambda name, text, state: {
        "model": "gpt-6-luna",
        "input": [{"role": "user", "content": [{"type": "input_json", "data": {"state": state}}]}],
        "questions": [
            {
                "type": "choice",
                "name": name,
                "instructions": text,
                "choices": [{"value": name}, {"value": f"not {name}"}],
            }
        ],
    },
    "/v1/chat/completions": lambda name, text, state: {
        "messages": [{"role": "user", "content": text}],
        "metadata": {name: json.dumps(state)},
        "max_tokens": 1,
    },
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An adapter with a tiny model: bad input is the same to all of them."""
    place = tmp_path_factory.mktemp("tiny")
    (place / "model.gguf").symlink_to(model_path("tiny-sentencepiece"))
    with running_adapter(place, place / "log", SEMIF_DEADLINE_SECONDS="600") as running:
        yield running
        assert "Traceback" not in (place / "log").read_text()


@pytest.fixture(scope="module")
def client(tiny: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny.url, timeout=600) as made:
        yield made


def _post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"content-type": "application/json"})


def _message(response: httpx.Response) -> str:
    """What is wrong, in the shape of any API."""
    body = response.json()
    if "detail" in body:
        told = body["detail"]
        return str(told[0]["msg"] if isinstance(told, list) else told["message"])
    return str(body["error"] if isinstance(body["error"], str) else body["error"]["message"])


def _refusal(response: httpx.Response) -> str:
    assert response.status_code in (400, 404, 413, 422), response.text[:300]
    message = _message(response)
    assert 10 <= len(message) <= 500
    assert len(response.content) < 20_000
    assert "\n" not in message
    return message


def _names(path: str, answer: dict[str, Any]) -> list[str]:
    """The caller's names as an answer gives them back."""
    if path == "/invocations":
        return [answer["result"]["id"], *answer["result"]["option_ids"]]
    if path == "/v1/systemone":
        ((name, told),) = answer["answers"].items()
        return [name, *told["probabilities"]]
    (told,) = answer["answers"]
    return [told["name"], *(each["value"] for each in told["probabilities"])]


_ODD = st.one_of(
    st.text(min_size=1, max_size=30),
    st.sampled_from(
        [
            "a.b",
            " ",
            "a b",
            "🙂",
            "👩‍👩‍👧",
            "\0",
            "a\0b",
            "\r\n",
            "\u2028",
            "$ref",
            "__proto__",
            "constructor",
            "1e5",
            "null",
            "é",
            "e\u0301",
        ]
    ),
)
_STATES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_ODD, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=_ODD, text=_ODD, state=_STATES)
def test_odd_names_and_values_are_answered_under_their_own_names(
    client: httpx.Client, path: str, name: str, text: str, state: Any
) -> None:
    response = _post(client, path, BODIES[path](name, text, {"odd": state}))
    if response.status_code == 413:  # this tokenizer needs a token for every byte of what it does not know
        assert "tokens" in _refusal(response)
        return
    assert response.status_code == 200, response.text
    if path != "/v1/chat/completions":
        asked = [name, name, f"not {name}"]
        assert _names(path, response.json()) == asked


# What cannot be JSON of one meaning, as it stands in a body, and what is said of it.
_AMBIGUOUS = {
    '{"a": 1, "b": 2, "a": 3}': "the key 'a' twice",
    '{"é": 1, "\\u00e9": 2}': "the key 'é' twice",
    "NaN": "NaN, which is not JSON",
    "-Infinity": "-Infinity, which is not JSON",
    "1e999": "too large for a double",
    "-1e999": "too large for a double",
    "9" * 5000: "more than 4300 digits",
    '"\\ud800"': "half of a surrogate pair",
    '"\\udfff\\ud800"': "half of a surrogate pair",
    '{"\\udc00": 1}': "half of a surrogate pair",
    "[" * 70 + "]" * 70: "nested more than 64 levels deep",
    "[" * 200_000 + "]" * 200_000: "nested more than 64 levels deep",
    '{"a":' * 200_000 + "1" + "}" * 200_000: "nested more than 64 levels deep",
    '"\x01"': "Invalid control character",
    "'a'": "not JSON",
    "01": "not JSON",
    "[1,]": "not JSON",
    "tru": "not JSON",
}
_MARK = "@@"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(("text", "said"), [pytest.param(*item, id=item[1]) for item in _AMBIGUOUS.items()])
def test_what_is_ambiguous_or_no_json_is_refused_wherever_it_stands(
    client: httpx.Client, path: str, text: str, said: str
) -> None:
    body = {**BODIES[path]("q", "?", "s"), "metadata": _MARK}
    content = json.dumps(body, ensure_ascii=False).replace(f'"{_MARK}"', text).encode()
    assert said in _refusal(_post(client, path, content))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "raw", [b"", b"\xff\xfe[]", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"\x00", b'{"a": "\xed\xa0\x80"}', b"{}{}"]
)
def test_bytes_that_are_no_json_are_refused(client: httpx.Client, path: str, raw: bytes) -> None:
    assert "the body is not" in _refusal(_post(client, path, raw))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("field", ["name", "text", "state", "model", "key"])
def test_ten_megabytes_of_text_cost_little_and_are_not_sent_back(client: httpx.Client, path: str, field: str) -> None:
    long = "x" * TEN_MEGABYTES
    body = BODIES[path](*(long if field == part else "short" for part in ("name", "text", "state")))
    if field in ("model", "key"):
        body[long if field == "key" else "model"] = long
    response = _post(client, path, body)
    if response.status_code == 200:  # names are given back whole; what an API ignores is ignored whole
        assert field == "name" or (path, field) in {("/v1/chat/completions", "state"), ("/v1/systemone", "key")}
    else:
        _refusal(response)


def test_bodies_that_would_take_long_do_not_keep_others_waiting(tiny: Server) -> None:
    """Each of these took from half a minute to hours where all of it was read."""
    decision = BODIES["/invocations"]("q", "?", "s")["decision"]
    bodies = [
        {"decision": {**decision, "state": "<s>" * (TEN_MEGABYTES // 3)}},
        {"decision": {**decision, "state": "\n" * TEN_MEGABYTES}},
        {"decision": {**decision, "state": list(range(90_000))}},
        {"decisions": [{**decision, "id": str(number), "state": "word " * 4000} for number in range(60)]},
        {"state": "s", "model": "jev-latest", "questions": {str(number): {} for number in range(90_000)}},
        {"messages": [{"role": "user", "content": "<s>" * (TEN_MEGABYTES // 3)}]},
        {"messages": [{"role": "user", "content": ""}] * 60_000},
        {str(number): 0 for number in range(400_000)},
        ("{" + ",".join(f'"{number}":0' for number in (*range(600_000), 599_999)) + "}").encode(),
    ]
    with httpx.Client(base_url=tiny.url, timeout=600) as client, ThreadPoolExecutor(len(bodies)) as callers:
        begun = time.perf_counter()
        alone = _post(client, "/invocations", {"decision": decision})
        usual = time.perf_counter() - begun
        assert alone.status_code == 200
        begun = time.perf_counter()
        for response in callers.map(lambda body: _post(client, "/invocations", body), bodies):
            _refusal(response)
        assert time.perf_counter() - begun < 60 + 100 * usual


_REPEATED = st.tuples(
    st.text(min_size=1, max_size=8) | st.sampled_from([" ", "word ", "\n", "\t", "<|im_end|>"]), st.integers(1, 200)
)


@given(pieces=st.lists(_REPEATED, min_size=1, max_size=4), limit=st.integers(1, 40))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_refused_by_its_beginning_is_too_long_as_a_whole(
    embedded_model: Model, pieces: list[tuple[str, int]], limit: int
) -> None:
    vocabulary = Vocabulary(embedded_model.pointer)
    text = "".join(piece * times for piece, times in pieces)
    tokens = len(vocabulary.tokenize(text, special=False))
    assert not vocabulary.surely_exceeds(text, limit) or tokens > limit


_COMPOSED, _DECOMPOSED = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")


@pytest.mark.parametrize(
    ("one", "other"),
    [(_COMPOSED, _DECOMPOSED), ("\ufb01", "fi"), ("\u2126", "\u03a9"), ("a", "\uff41"), ("K", "\u212a")],
)
def test_names_that_differ_only_by_unicode_normalisation_are_different_names(
    client: httpx.Client, one: str, other: str
) -> None:
    assert one != other
    both = [one, other]
    options = [{"id": name, "description": "text"} for name in both]
    decisions = [{"id": name, "state": "s", "question": "?", "options": options} for name in both]
    results = _post(client, "/invocations", {"decisions": decisions}).json()["results"]
    assert [result["id"] for result in results] == both
    assert [result["option_ids"] for result in results] == [both, both]

    question = {"type": "choice", "instructions": "?", "criteria": dict.fromkeys(both)}
    asked = {"state": {one: 1, other: 2}, "model": "jev-latest", "questions": dict.fromkeys(both, question)}
    answers = _post(client, "/v1/systemone", asked).json()["answers"]
    assert list(answers) == both
    assert [list(answer["probabilities"]) for answer in answers.values()] == [both, both]

    choice = {"type": "choice", "instructions": "?", "choices": [{"value": name} for name in both]}
    body = {"model": "gpt-6-luna", "input": "s", "questions": [{**choice, "name": name} for name in both]}
    told = _post(client, "/v1/decisions", body).json()["answers"]
    assert [answer["name"] for answer in told] == both
    assert [[each["value"] for each in answer["probabilities"]] for answer in told] == [both, both]
