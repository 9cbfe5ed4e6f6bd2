"""What a run comes to on a terminal and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ops.bench.compare import Comparison
from ops.bench.metrics import Accuracy, Latency, Metrics
from ops.bench.run_file import Run
from ops.calibrate.fit import BINS, Difference
from ops.output import say, show_table

HEADLINE = ("configuration", "image", "valid", "accuracy", "p50", "p95")
_FAMILIES = ("family", "right", "accuracy", "95 %")


def headline(run: Run, found: Metrics) -> tuple[str, ...]:
    """The run's line of the table in which results are published."""
    return (
        run.configuration,
        "unknown" if run.target.image is None else run.target.image.removeprefix("sha256:")[:12],
        f"{found.valid} of {len(run.rows)}",
        f"{found.accuracy.right} ({found.accuracy.share:.1%})",
        *(("", "") if found.client is None else (seconds(found.client.p50), seconds(found.client.p95))),
    )


def show(run: Run, found: Metrics, *, against: tuple[Run, Metrics, Comparison] | None) -> None:
    """The headline, families and scores of the run, and how it differs from another one."""
    runs = [(run, found), *([] if against is None else [against[:2]])]
    show_table(HEADLINE, [headline(*each) for each in runs], right=HEADLINE[2:])
    say()
    show_table(_FAMILIES, family_rows(found), right=_FAMILIES[1:])
    say()
    for sentence in sentences(found):
        say(sentence)
    if against is not None:
        say()
        for sentence in differences(run, against[0], against[2]):
            say(sentence)


def family_rows(found: Metrics) -> list[tuple[str, ...]]:
    """A line for each family and one for all."""
    return [(name, *_accuracy(each)) for name, each in {**found.families, "all": found.accuracy}.items()]


def sentences(found: Metrics) -> list[str]:
    """The scores beside accuracy, each with what it is."""
    low, high = found.resampled
    said = [f"Accuracy over resamples of whole groups, 95 %: {percent(low)} to {percent(high)}."]
    if found.brier is not None and found.ece is not None:
        said.append(
            f"Brier score {found.brier:.3f} (0 to 2), expected calibration error {found.ece:.3f} ({BINS} equal bins); "
            "lower is better."
        )
    if found.ordinal_error is not None:
        said.append(f"Ordinal error {found.ordinal_error:.2f} levels, mean over {found.ordinal_rows} score questions.")
    if found.client is not None and found.model is not None:
        said.append(f"Client p50, p95, p99: {_latency(found.client)}; in the model: {_latency(found.model)}.")
    said.append(
        f"{found.evaluated_tokens:,} tokens evaluated, {found.reused_tokens:,} reused."
        + ("" if found.option_mass is None else f" Median option mass {found.option_mass:.3f}.")
    )
    return said


def differences(run: Run, other: Run, comparison: Comparison) -> list[str]:
    """How the run differs from the other one, in sentences."""
    said = [
        f"{run.configuration} minus {other.configuration}, over {comparison.rows} rows that both were asked:",
        (
            f"  accuracy {_points(comparison.accuracy)}, McNemar's exact p {comparison.mcnemar_p:.3g} (right only in "
            f"the first: {comparison.only_right_here}, only in the second: {comparison.only_right_there})"
        ),
    ]
    if comparison.brier is not None:
        said.append(f"  Brier score {signed(comparison.brier)}, over {comparison.answered} rows that both answered")
    for name, difference in (("client", comparison.client_seconds), ("model", comparison.model_seconds)):
        if difference is not None:
            said.append(f"  mean {name} latency {signed(difference, ' s')}")
    if comparison.evaluated_tokens is not None:
        said.append(f"  mean tokens evaluated {signed(comparison.evaluated_tokens, digits=1)}; the others were reused")
    said.append(
        f"  another choice in {comparison.other_choice} of them, another prompt in {comparison.other_prompt}; "
        "intervals: 95 % of resampled groups"
    )
    return said


def document(run: Run, found: Metrics, *, against: tuple[Run, Metrics, Comparison] | None) -> dict[str, Any]:
    """The same for programs, without the rows."""
    shown = _run(run, found)
    if against is not None:
        other, other_found, comparison = against
        shown["against"] = {**_run(other, other_found), "difference": asdict(comparison)}
    return shown


def _run(run: Run, found: Metrics) -> dict[str, Any]:
    described = {name: value for name, value in asdict(run).items() if name != "rows"}
    errors = [{"id": row.id, "error": row.error} for row in run.rows if row.error is not None]
    return {**described, "rows": len(run.rows), "errors": errors, "ece_bins": BINS, "metrics": asdict(found)}


def seconds(value: float) -> str:
    """With the unit, to a millisecond."""
    return f"{value:.3f} s"


def signed(difference: Difference, unit: str = "", *, digits: int = 3) -> str:
    """With its interval."""
    value, low, high = (f"{each:+.{digits}f}" for each in (difference.value, difference.low, difference.high))
    return f"{value}{unit} ({low} to {high})"


def percent(share: float | None) -> str:
    """A share in percent; nothing where there is none."""
    return "" if share is None else f"{share:.1%}"


def _points(difference: Difference) -> str:
    value, low, high = (100 * each for each in (difference.value, difference.low, difference.high))
    return f"{value:+.1f} points ({low:+.1f} to {high:+.1f})"


def _accuracy(found: Accuracy) -> Sequence[str]:
    return (
        f"{found.right} of {found.rows}",
        percent(found.share),
        f"{percent(found.low)} to {percent(found.high)}",
    )


def _latency(found: Latency) -> str:
    return ", ".join(seconds(value) for value in (found.p50, found.p95, found.p99))
