"""The decisions of a file: one, or one a line with their thresholds; a line that is none is kept with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.client import Policy, finite
from ops.errors import UsageError

# Keys of a row that are not sent.
_OWN = ("min_probability", "fallback")


@dataclass(frozen=True)
class Row:
    """A decision to ask. `number` is its line, from 1; `digest` is of what is sent and of the policy."""

    number: int
    decision: Mapping[str, Any]
    policy: Policy
    digest: str

    @property
    def id(self) -> Any:
        """What the row calls itself; the adapter checks it."""
        return self.decision.get("id")


@dataclass(frozen=True)
class BadRow:
    """A line that cannot be asked, and why."""

    number: int
    id: Any
    reason: str


def parse_rows(content: bytes, policy: Policy) -> list[Row | BadRow]:
    """Every line that is not blank, or the one decision that all lines are together.

    `policy` holds for rows without thresholds of their own.
    Raises UsageError where there is no row, or where a row that would take the policy's fallback has no such option.
    """
    found: list[Row | BadRow] = []
    for number, line in _lines(content):
        try:
            found.append(parse_row(number, line, policy))
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from error
    if not found:
        raise UsageError("the input is empty: it takes a decision, or one a line")
    if policy.fallback is not None and not any(isinstance(r, Row) and _has_threshold(r.policy) for r in found):
        raise UsageError("--fallback is never taken: give --min-probability, or rows of their own min_probability")
    return found


def _lines(content: bytes) -> list[tuple[int, bytes]]:
    try:
        if isinstance(load(content), dict):
            blank = len(content) - len(content.lstrip())
            return [(content.count(b"\n", 0, blank) + 1, content)]
    except UsageError:
        pass
    return [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if line.strip()]


def _has_threshold(policy: Policy) -> bool:
    return policy.min_probability is not None


def parse_row(number: int, line: bytes, policy: Policy) -> Row | BadRow:
    """One line. Raises UsageError where the decision lacks the option that `policy` falls back to."""
    said: Any = None
    try:
        said = load(line)
        return _row(number, said, policy)
    except _DefaultFallbackError:
        raise
    except UsageError as error:
        return BadRow(number, said.get("id") if isinstance(said, dict) else None, str(error))


def load(text: bytes) -> Any:
    """JSON as the adapter reads it: no NaN, no key twice. Raises UsageError."""
    try:
        return json.loads(text.decode(), parse_constant=finite, parse_float=finite, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise UsageError(f"not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise UsageError(f"not JSON: {error.msg.removesuffix(' at')} at {where}column {error.colno}") from error
    except (RecursionError, ValueError) as error:
        raise UsageError(f"not JSON that can be read: {error}") from error


class _DefaultFallbackError(UsageError):
    """The fallback of the command line is none of the options."""


def _row(number: int, said: Any, default: Policy) -> Row:
    if not isinstance(said, dict):
        raise UsageError(f"the row is a {_kind(said)}; it must be a JSON object")
    own = {key: said[key] for key in _OWN if key in said}
    decision = {key: value for key, value in said.items() if key not in _OWN}
    # The wire's own body.
    if set(decision) == {"decision"} and isinstance(decision["decision"], dict):
        decision = decision["decision"]
    policy = Policy(
        own.get("min_probability", default.min_probability),
        own.get("fallback", default.fallback),
    )
    known = _option_ids(decision)
    if policy.fallback is not None and known and policy.fallback not in known:
        error = UsageError if "fallback" in own else _DefaultFallbackError
        listed = ", ".join(map(repr, known[:10])) + (", …" if len(known) > 10 else "")  # noqa: PLR2004
        raise error(f"fallback {policy.fallback!r} is none of the decision's options ({listed})")
    # The order of keys counts: a state is shown to the model as it was written.
    digested = json.dumps([decision, policy.min_probability, policy.fallback])
    return Row(number, decision, policy, hashlib.sha256(digested.encode()).hexdigest()[:32])


def _option_ids(decision: Mapping[str, Any]) -> list[str]:
    """The options' ids; none where the options are malformed, which the adapter says better."""
    options = decision.get("options")
    if not isinstance(options, Sequence) or isinstance(options, str):
        return []
    return [option["id"] for option in options if isinstance(option, dict) and isinstance(option.get("id"), str)]


def _kind(value: Any) -> str:
    names = {list: "JSON array", str: "JSON string", bool: "JSON boolean", type(None): "JSON null"}
    return names.get(type(value), "JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"key {twice!r} occurs twice")
    return found
