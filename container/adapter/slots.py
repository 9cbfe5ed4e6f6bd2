"""Answer slots: the one-token codes with which a prompt labels its options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from string import ascii_uppercase
from typing import NamedTuple

from adapter.vocabulary import Vocabulary

# The letters, then every pair of letters in alphabetical order. Fixed: a published prompt depends on it.
CODES: tuple[str, ...] = (*ascii_uppercase, *("".join(pair) for pair in product(ascii_uppercase, repeat=2)))


class Slot(NamedTuple):
    """A code and the token that it adds to the prompt it was checked on."""

    code: str
    token: int


class SlotError(ValueError):
    """The model's vocabulary has too few answer slots for the prompt; the message is one sentence."""


@lru_cache(maxsize=64)
def slots_after(vocabulary: Vocabulary, run: str, count: int) -> tuple[Slot, ...]:
    """The first `count` codes that are answer slots behind `run`, the prompt's text from its last control token on.

    A code is a slot if appending it adds exactly one token, and no two slots share one. Raises `SlotError` where the
    vocabulary has fewer than `count`.
    """
    found = _check(vocabulary, run, CODES, count)
    if len(found) < count:
        raise SlotError(
            f"{count} options, but this model's vocabulary has only {len(found)} answer slots behind this prompt"
        )
    return found


def verify_slots(vocabulary: Vocabulary, run: str, slots: Sequence[Slot]) -> None:
    """Check that `slots` hold behind `run` too; raises `SlotError` where they do not."""
    if _check(vocabulary, run, [slot.code for slot in slots], len(slots)) != tuple(slots):
        raise SlotError(
            "the answer slots of this model depend on the text before them, and they do not hold behind this prompt"
        )


def _check(vocabulary: Vocabulary, run: str, codes: Sequence[str], count: int) -> tuple[Slot, ...]:
    before = vocabulary.tokenize(run)
    found: dict[int, Slot] = {}
    for code in codes:
        tokens = vocabulary.tokenize(run + code)
        if len(tokens) == len(before) + 1 and tokens[:-1] == before and tokens[-1] not in vocabulary.control_tokens:
            found.setdefault(tokens[-1], Slot(code, tokens[-1]))
        if len(found) == count:
            break
    return tuple(found.values())
