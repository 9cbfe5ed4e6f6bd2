"""The answer of a queue that takes no more."""

from __future__ import annotations

import math


class Busy(Exception):  # noqa: N818 - an answer, not a fault
    """The work could not be finished in time and was not accepted; `retry_after` is in seconds."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(reason)
        self.retry_after = max(1, math.ceil(retry_after))
