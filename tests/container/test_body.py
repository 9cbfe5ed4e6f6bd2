"""A body is parsed as JSON that means one thing only, or refused with one sentence."""

from __future__ import annotations

import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from adapter.api.body import parse_json, unpack_zstd
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
        (b"[" + b"9" * 5000 + b"]", "a number of more than 4300 digits"),
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


@given(st.binary(max_size=3000), st.integers(1, 3))
def test_zstd_is_unpacked_whole(data: bytes, frames: int) -> None:
    packed = zstandard.ZstdCompressor().compress(data) * frames
    assert unpack_zstd(packed, 9000) == data * frames


def test_zstd_of_unknown_length_is_unpacked() -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    packed = compressor.compress(b"abc" * 1000) + compressor.flush()
    assert unpack_zstd(packed, 3000) == b"abc" * 1000


def test_a_zstd_bomb_costs_no_more_than_the_limit() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(8_000_000)) * 100_000  # 800 GB
    with pytest.raises(ApiError, match=r"longer than the 25000 bytes allowed \(SEMIF_MAX_BODY_BYTES\)") as caught:
        unpack_zstd(bomb, 25_000)
    assert caught.value.status == 413


def _with_window(log: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return bytes(compressor.compress(b"[]") + compressor.flush())


@pytest.mark.parametrize("packed", [b"", b"{}", zstandard.ZstdCompressor().compress(b"{}") + b"rest", _with_window(24)])
def test_what_is_not_zstd_is_refused(packed: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(unpack_zstd(packed, 1000))
    assert caught.value.status == 400


def test_a_window_of_eight_mebibytes_is_read() -> None:
    assert unpack_zstd(_with_window(23), 1000) == b"[]"
