"""A body is parsed as JSON that means one thing only, or refused with one sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.api.body import parse_json
from adapter.api.errors import ApiError

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_VALUES)
def test_ordinary_json_is_read_as_it_is(value: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON: Expecting value at line 1 column 1"),
        (b'{"a": 1,}', "not JSON"),
        (b"\xff", "not UTF-8: .* at byte 0"),
        (b'{"a": NaN}', "holds NaN"),
        (b"[-Infinity]", "holds -Infinity"),
        (b"[1e999]", "too large for a double"),
        (b'{"a": 1, "b": {"x": 1, "x": 2}}', "the key 'x' twice"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b"[" + b"9" * 5000 + b"]", "a number that cannot be read"),
        (b"[" * 66 + b"]" * 66, "nested more than 64 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "nested more than 64 levels"),
    ],
)
def test_anything_else_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_json(body)
    assert (caught.value.status, caught.value.retry_after) == (400, None)


def test_a_whole_surrogate_pair_is_text() -> None:
    assert parse_json(b'["\\ud83d\\ude00", "\\u0000"]') == ["\U0001f600", "\x00"]
