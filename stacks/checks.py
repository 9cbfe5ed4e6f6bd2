"""Checks of what a person wrote into a configuration: each refusal names the field, the value and what is allowed."""

import re
from collections.abc import Collection


class ConfigError(ValueError):
    """A value that no environment may have; its text names the field, the value and what is allowed."""


def require(allowed_if: bool, where: str, value: object, allowed: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not allowed_if:
        raise ConfigError(f"{where} is {value!r}; allowed: {allowed}")


def require_match(pattern: str, where: str, value: str, allowed: str) -> None:
    """Raise ConfigError unless the value is a string that the whole pattern matches."""
    require(isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None, where, value, allowed)


def require_between(bounds: tuple[int, int], where: str, value: int) -> None:
    """Raise ConfigError unless the value is a whole number within the bounds, both included."""
    low, high = bounds
    is_number = isinstance(value, int) and not isinstance(value, bool)
    require(is_number and low <= value <= high, where, value, f"a whole number from {low} to {high}")


def require_one_of(choices: Collection[object], where: str, value: object) -> None:
    """Raise ConfigError unless the value is one of the choices."""
    require(value in choices, where, value, ", ".join(map(str, choices)))


def require_type(types: type | tuple[type, ...], where: str, value: object, allowed: str) -> None:
    """Raise ConfigError unless the value is of such a type."""
    require(isinstance(value, types), where, value, allowed)
