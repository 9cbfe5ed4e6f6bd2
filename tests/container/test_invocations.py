"""The wire shapes of /invocations: what is accepted, and the sentence for what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adapter.api.errors import ApiError
from adapter.api.invocations import kind_of, parse_decision, parse_shared

Make = Callable[..., dict[str, Any]]


def test_one_decision(decision: Make) -> None:
    parsed = parse_decision({"decision": decision(state={"a": [1, 2.5]})})
    assert (parsed.id, parsed.state, parsed.layout) == ("support-route", {"a": [1, 2.5]}, "state-first")
    assert [option.id for option in parsed.options] == ["account_access", "billing", "sales"]


def test_shared_decisions_keep_their_order(decision: Make) -> None:
    parsed = parse_shared({"decisions": [decision(id="b"), decision(id="a")]}, 64)
    assert [one.id for one in parsed] == ["b", "a"]


def _options(count: int) -> list[dict[str, str]]:
    return [{"id": str(number), "description": "text"} for number in range(count)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ""}, r"decision\.id: "),
        ({"id": 5}, r"decision\.id: .*string"),
        ({"state": ""}, r"decision\.state: .*nonempty string, object or array"),
        ({"state": {}}, r"decision\.state: .*nonempty"),
        ({"state": 7}, r"decision\.state: .*nonempty string, object or array"),
        ({"state": None}, r"decision\.state"),
        ({"question": ""}, r"decision\.question"),
        ({"options": _options(1)}, r"decision\.options: .*at least 2"),
        ({"options": _options(256)}, r"decision\.options: .*at most 255"),
        ({"options": _options(2) + _options(1)}, r"decision\.options: .*'0' occurs twice"),
        ({"options": [{"id": "a"}, {"id": "b", "description": "x"}]}, r"decision\.options\.0\.description: .*required"),
        ({"layout": "sideways"}, r"decision\.layout: .*'state-first' or 'criteria-first'"),
        ({"temperature": 1}, r"decision\.temperature"),
    ],
)
def test_a_wrong_decision_is_refused_with_its_place(decision: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_decision({"decision": decision(**changes)})
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"decision": {}}, "decision"),
        ({"decisions": []}, "decisions"),
        ({"state": "s", "model": "m", "questions": {}, "seed": 7}, "systemone"),
        ({"input": "s", "model": "m", "questions": []}, "openai-decisions"),
        ({"messages": [], "stream": True}, "chat"),
    ],
)
def test_a_body_is_told_by_its_keys(body: dict[str, Any], kind: str) -> None:
    assert kind_of(body) == kind


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body must be a JSON object"),
        ({}, "the body is of no known kind"),
        ({"model": "m", "questions": {}}, "the body is of no known kind"),
        ({"decision": {}, "decisions": []}, r"several kinds of request \('decision' and 'decisions'\)"),
        ({"state": "s", "input": "s", "questions": []}, r"several kinds of request \('state' and 'input'\)"),
        ({"input": "s", "messages": []}, r"several kinds of request \('input' and 'messages'\)"),
    ],
)
def test_a_body_of_no_kind_or_of_several_is_refused_with_what_is_accepted(body: Any, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        kind_of(body)
    assert caught.value.status == 400
    for accepted in ("'decision'", "'decisions'", "'state'", "'input'", "'messages'"):
        assert accepted in str(caught.value)


def test_shared_decisions_are_at_least_one() -> None:
    with pytest.raises(ApiError, match=r"decisions: .*at least 1"):
        parse_shared({"decisions": []}, 64)


def test_a_key_beside_the_decision_is_refused(decision: Make) -> None:
    with pytest.raises(ApiError, match="extra: "):
        parse_decision({"decision": decision(), "extra": 1})


@pytest.mark.parametrize(
    ("left", "right"),
    [("a", "b"), ([1], [1.0]), ([True], [1]), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ("1", ["1"]), ([1, 2], [1])],
)
def test_shared_decisions_need_one_state(decision: Make, left: Any, right: Any) -> None:
    body = {"decisions": [decision(id="a", state=left), decision(id="b", state=right)]}
    with pytest.raises(ApiError, match=r"decisions\.1\.state differs from decisions\.0\.state"):
        parse_shared(body, 64)


def test_shared_decisions_need_different_ids(decision: Make) -> None:
    with pytest.raises(ApiError, match="'support-route' occurs twice"):
        parse_shared({"decisions": [decision(), decision()]}, 64)


def test_more_shared_decisions_than_allowed_are_refused_with_both_numbers(decision: Make) -> None:
    with pytest.raises(ApiError, match="3 in one request, at most 2"):
        parse_shared({"decisions": [decision(id=str(number)) for number in range(3)]}, 2)
