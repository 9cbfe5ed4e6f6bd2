"""What a fit comes to, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ops.calibrate.fit import BINS, FOLDS, Difference, Effect, Fit, Temperature
from ops.output import say, show_table

_COLUMNS = ("questions", "rows", "wrong", "temperature", "95 %", "NLL", "Brier", "ECE", "NLL difference, 95 %")
_NUMBERS = _COLUMNS[1:]


def show(found: Fit) -> None:
    """The table: what each temperature does, out of fold, and which types have to take the overall one."""
    rows = [_row("all, one temperature", found.overall, found.plain)]
    for question_type, of_type in found.by_type.items():
        rows.append(_row(question_type, of_type.temperature, of_type.effect))
    rows.append(_row("all, each type its own", None, found.typed))
    show_table(_COLUMNS, rows, right=_NUMBERS)
    say()
    say(
        "Each score is before > after, lower is better, on rows that the temperature was not fitted on: "
        f"{FOLDS} folds, groups kept whole. ECE has {BINS} equal bins."
    )
    for question_type, of_type in found.by_type.items():
        if of_type.lacks is not None:
            say(f"{question_type} takes the overall temperature: {of_type.lacks}.")


def verdict(found: Fit) -> str:
    """Whether it pays, in a sentence."""
    effect = found.typed
    says = (
        f"the negative log likelihood changes by {_signed(effect.nll)} nats out of fold, the calibration error by "
        f"{_signed(effect.ece)}"
    )
    if effect.pays:
        return f"Calibration pays: {says}."
    return f"Calibration does not pay: {says}; it must be surely below 0 for the first, and not above for the second."


def entry(found: Fit, fitted_for: Mapping[str, str], source: Mapping[str, str]) -> dict[str, Any]:
    """What the file holds under the calibration's name."""
    temperatures = {
        question_type: _rounded(of_type.temperature.value)
        for question_type, of_type in found.by_type.items()
        if of_type.temperature is not None
    }
    return {
        "temperature": _rounded(found.overall.value),
        **({"temperatures": temperatures} if temperatures else {}),
        "fitted_for": dict(fitted_for),
        "evidence": {
            **source,
            "rows": found.typed.rows,
            "wrong": found.typed.wrong,
            "folds": FOLDS,
            "out_of_fold": {
                "before": _rounded_scores(found.typed.before),
                "after": _rounded_scores(found.typed.after),
            },
        },
    }


def document(found: Fit) -> dict[str, Any]:
    """The fit for programs."""
    return {
        "folds": FOLDS,
        "ece_bins": BINS,
        "overall": asdict(found.overall),
        "by_type": {
            question_type: {**asdict(of_type), "effect": _effect(of_type.effect)}
            for question_type, of_type in found.by_type.items()
        },
        "plain": _effect(found.plain),
        "typed": _effect(found.typed),
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {**asdict(effect), "pays": effect.pays}


def _row(name: str, temperature: Temperature | None, effect: Effect) -> Sequence[str]:
    before, after = effect.before, effect.after
    return (
        name,
        str(effect.rows),
        str(effect.wrong),
        "" if temperature is None else f"{temperature.value:.3f}",
        "" if temperature is None else f"{temperature.low:.2f} to {temperature.high:.2f}",
        f"{before.nll:.3f} > {after.nll:.3f}",
        f"{before.brier:.3f} > {after.brier:.3f}",
        f"{before.ece:.3f} > {after.ece:.3f}",
        _signed(effect.nll),
    )


def _signed(difference: Difference) -> str:
    return f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"


def _rounded(value: float) -> float:
    # Four digits are more than any interval supports, and readable.
    return float(f"{value:.4g}")


def _rounded_scores(scores: Any) -> dict[str, float]:
    return {name: _rounded(value) for name, value in asdict(scores).items()}
