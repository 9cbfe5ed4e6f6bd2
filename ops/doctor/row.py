"""One line of the doctor's table, and what an answer of AWS that is none makes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from ops.errors import aws_sentence

Verdict = Literal["ok", "warning", "failed", "not checked"]

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")


@dataclass(frozen=True)
class Row:
    """What was checked, what was found, and what to do about it where it is not well."""

    check: str
    found: str
    verdict: Verdict
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """A piece of work that gives rows, and the one row that stands for them where AWS does not answer it."""

    name: str
    # What it needs of IAM, as in a policy; empty for what asks nothing of AWS.
    action: str
    work: Callable[[], Sequence[Row]]
    # What the emulator lacks that the work needs; empty where the emulator can be asked.
    absent_from_emulator: str = ""

    def rows(self, *, emulator: bool) -> Sequence[Row]:
        """The rows; a refusal of AWS becomes a row `not checked`, which names the permission."""
        if emulator and self.absent_from_emulator:
            return [Row(self.name, f"the emulator has no {self.absent_from_emulator}", "not checked")]
        try:
            return self.work()
        except (BotoCoreError, ClientError) as error:
            return [unanswered(self.name, self.action, error)]


def unanswered(check: str, action: str, error: BotoCoreError | ClientError) -> Row:
    """The row of a check that AWS did not answer; a refusal names the permission that is missing."""
    if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _DENIED:
        found = f"the credentials may not do {action}"
        return Row(check, found, "not checked", "allow it, then run this again")
    return Row(check, aws_sentence(error), "not checked")
