"""Bytes to shown text: however they are cut, nothing is shown too early and nothing is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.text_stream import TextStream

TEXTS = st.text(alphabet="ab<|>é日😀", max_size=30)
STOPS = st.lists(st.text(alphabet="ab<|>é日😀", min_size=1, max_size=5), max_size=4)


def _shown(data: bytes, cuts: list[int], stops: list[str]) -> list[str]:
    stream = TextStream(stops)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    shown = []
    for start, end in pairwise(edges):
        if not stream.stopped:
            shown.append(stream.add(data[start:end]))
    return [*shown, stream.end()]


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_text_comes_out_as_it_was_wherever_its_bytes_are_cut(text: str, cuts: list[int]) -> None:
    shown = _shown(text.encode(), cuts, [])
    assert "".join(shown) == text


@given(text=TEXTS, stops=STOPS)
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str]) -> None:
    byte_by_byte = "".join(_shown(text.encode(), list(range(100)), stops))
    # Of the stop strings that end first, the one that begins first.
    first = next((length for length in range(len(text) + 1) if any(stop in text[:length] for stop in stops)), None)
    expected = text if first is None else text[: min(text[:first].find(stop) for stop in stops if stop in text[:first])]
    assert byte_by_byte == expected


@given(text=TEXTS, cuts=st.lists(st.integers(0, 200), max_size=20), stops=STOPS)
def test_nothing_of_a_stop_string_is_shown(text: str, cuts: list[int], stops: list[str]) -> None:
    shown = "".join(_shown(text.encode(), cuts, stops))
    assert text.startswith(shown)
    assert not any(stop in shown for stop in stops)


@pytest.mark.parametrize("stops", [["b", "ab"], ["ab", "b"]])
def test_of_stop_strings_that_end_together_the_one_that_begins_first_counts(stops: list[str]) -> None:
    assert TextStream(stops).add(b"-ab-") == "-"


def test_characters_are_shown_when_whole_and_stop_strings_when_they_are_none() -> None:
    stream = TextStream(["END"])
    assert [stream.add(piece) for piece in (b"a\xf0\x9f", b"\x98", b"\x80E", b"N", b"d")] == ["a", "", "😀", "", "ENd"]
    assert stream.add(b"EN") == ""
    assert stream.end() == "EN"
    assert not stream.stopped


@pytest.mark.parametrize(("data", "text"), [(b"a\xffb", "a\ufffdb"), (b"a\xe6\x97", "a"), (b"\xe6\x97\xa5", "日")])
def test_what_is_no_character_is_replaced_and_half_a_one_at_the_end_is_dropped(data: bytes, text: str) -> None:
    assert "".join(_shown(data, [1, 2], [])) == text
