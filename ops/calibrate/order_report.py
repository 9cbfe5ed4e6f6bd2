"""What asking in several orders comes to, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ops.calibrate.fit import Difference
from ops.calibrate.order_effect import OrderEffect
from ops.output import say, show_table


def show(found: OrderEffect, count: int) -> None:
    """The table, and whether it pays at what cost."""
    show_table(
        ("score", "1 order", f"{count} orders", "difference, 95 %"),
        [
            _row("accuracy", found.single_accuracy, found.averaged_accuracy, found.accuracy),
            _row("Brier", found.single.brier, found.averaged.brier, found.brier),
            _row("NLL", found.single.nll, found.averaged.nll, found.nll),
            ("NLL, a temperature each", "", "", signed(found.nll_at_own_temperature)),
        ],
        right=("1 order", f"{count} orders", "difference, 95 %"),
    )
    say()
    say(
        f"Of {found.rows} rows averaging changes the choice in {found.flips} ({found.flips / found.rows:.1%}). "
        f"Between the orders the probability of the option that moves most changes by {found.moved:.3f} on average."
    )
    say(cost(found, count))
    say(verdict(found))


def verdict(found: OrderEffect) -> str:
    """Whether it pays, in a sentence."""
    says = (
        f"with a temperature each, the average's log likelihood differs by {signed(found.nll_at_own_temperature)} nats"
    )
    if found.pays:
        return f"Averaging pays: {says}, which is surely below 0."
    return f"Averaging does not pay: {says}, which is not surely below 0."


def cost(found: OrderEffect, count: int) -> str:
    """What a decision over a new state takes, in a sentence."""
    single, averaged = found.single_cost, found.averaged_cost
    if single is None or averaged is None:
        return "Its cost is not known: that takes two rows with different states."
    return (
        f"A decision over a new state evaluates {averaged.tokens:.0f} tokens in {averaged.milliseconds:.0f} ms "
        f"with {count} orders ({averaged.rows} rows), {single.tokens:.0f} tokens in {single.milliseconds:.0f} ms "
        f"with one ({single.rows} rows): {averaged.tokens / single.tokens:.1f} times the tokens."
    )


def document(found: OrderEffect, count: int) -> dict[str, Any]:
    """The same for programs."""
    return {"orders": count, **asdict(found), "pays": found.pays}


def signed(difference: Difference) -> str:
    """With its interval."""
    return f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _row(name: str, single: float, averaged: float, difference: Difference) -> Sequence[str]:
    return name, f"{single:.3f}", f"{averaged:.3f}", signed(difference)
