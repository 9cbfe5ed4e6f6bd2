"""Saved sequences by the tokens that made them: what need not be evaluated again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
State = NDArray[np.uint8]


@dataclass(frozen=True)
class _Entry:
    tokens: Tokens
    state: State
    pinned: bool

    @property
    def bytes(self) -> int:
        return self.tokens.nbytes + self.state.nbytes


class PrefixCache:
    """States in ordinary memory, least recently used out first; a thread may look while another adds."""

    def __init__(self, max_bytes: int, *, can_be_cut: bool) -> None:
        """`can_be_cut`: whether a state also serves a prefix of its tokens, the rest dropped after restoring."""
        self.max_bytes = max_bytes
        self.bytes = 0
        self._can_be_cut = can_be_cut
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, tokens: Tokens, limit: int, *, touch: bool = True) -> tuple[int, State | None]:
        """How many tokens, at most `limit`, the best state shares with `tokens`, and the state; 0 and None if none.

        `touch` counts as a use.
        """
        with self._lock:
            best, best_key = 0, None
            for key, entry in reversed(self._entries.items()):
                if best == limit:
                    break
                shared = common_length(entry.tokens, tokens)
                usable = min(shared, limit) if self._can_be_cut else shared
                if usable > best and usable <= limit and (self._can_be_cut or shared == len(entry.tokens)):
                    best, best_key = usable, key
            if best_key is None:
                return 0, None
            if touch:
                self._entries.move_to_end(best_key)
            return best, self._entries[best_key].state

    def add(self, tokens: Tokens, state: State, *, pinned: bool = False) -> None:
        """Keep a state; a pinned one is never let go. One that alone exceeds the bound is not kept."""
        entry = _Entry(tokens.copy(), state, pinned)
        with self._lock:
            self._remove(tokens.tobytes())
            if self._can_be_cut:  # the new state serves whatever its own beginnings did
                for key, old in list(self._entries.items()):
                    if not old.pinned and common_length(old.tokens, tokens) == len(old.tokens):
                        self._remove(key)
            if not pinned and entry.bytes > self.max_bytes - self._pinned_bytes():
                return
            self._entries[tokens.tobytes()] = entry
            self.bytes += entry.bytes
            for key in [key for key, old in self._entries.items() if not old.pinned]:
                if self.bytes <= self.max_bytes:
                    break
                self._remove(key)

    def clear(self) -> None:
        """Let everything go, pinned states too."""
        with self._lock:
            self._entries.clear()
            self.bytes = 0

    def _pinned_bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values() if entry.pinned)

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.bytes


def common_length(a: Tokens, b: Tokens) -> int:
    """How many tokens two sequences share from their beginning."""
    shortest = min(len(a), len(b))
    differing = np.flatnonzero(a[:shortest] != b[:shortest])
    return int(differing[0]) if len(differing) else shortest
