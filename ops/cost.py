"""`decide cost ENV`: what an environment costs by the hour and the month, and what a measured run's decisions cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import boto3
import typer
from botocore.exceptions import BotoCoreError, ClientError

from ops.aws import connect, region_of
from ops.capacity import Bounds, bounds
from ops.errors import UsageError, aws_sentence
from ops.options import EndpointUrl, EnvironmentName, Json, environment
from ops.output import note, say, show_json, show_table
from ops.prices import PRICE_LIST_REGION, listed_hourly, table
from stacks.config import DecisionEndpoint, Endpoint, Environment
from stacks.images import DLC_ACCOUNTS

# AWS's own month in its calculators: 365 days of 24 hours, divided by 12.
HOURS_PER_MONTH = 730
FIRST_CHOICE = "first choice"
DEAREST_FALLBACK = "dearest fallback"
NOT_INCLUDED = (
    "Not included: storage (objects, images, volumes), logs, metrics and alarms, keys, data in and out, the builds of "
    "a deploy, and the second fleet while an update runs."
)

# An instance type, and whether it serves asynchronously: AWS prices the two apart.
Product = tuple[str, bool]
# USD for an hour of one instance; None where it is unknown.
Prices = Mapping[Product, Decimal | None]


@dataclass(frozen=True)
class Line:
    """What one endpoint costs on one type."""

    endpoint: str
    choice: str
    # None: the pool's dearest fallback cannot be told while one of its prices is unknown.
    instance_type: str | None
    # USD for an hour of one instance; None is unknown.
    hourly: Decimal | None
    bounds: Bounds

    @property
    def at_minimum(self) -> Decimal | None:
        """USD an hour at the minimum of scaling."""
        return _times(self.hourly, self.bounds.minimum)

    @property
    def at_maximum(self) -> Decimal | None:
        """USD an hour at the maximum of scaling."""
        return _times(self.hourly, self.bounds.maximum)


@dataclass(frozen=True)
class PriceSource:
    """Prices of one region, and where they are from."""

    prices: Prices
    described: str


@dataclass(frozen=True)
class Run:
    """How many decisions a measured run made, and in how long."""

    decisions: int
    wall_seconds: Decimal
    concurrency: int

    @property
    def per_hour(self) -> Decimal:
        """Decisions an hour at the run's own pace."""
        return self.decisions * 3600 / self.wall_seconds

    def per_thousand(self, hourly: Decimal) -> Decimal:
        """USD for 1,000 decisions on an instance of that price, which does nothing else and never waits."""
        return hourly * 1000 / self.per_hour


@dataclass(frozen=True)
class RunCost:
    """A measured run, and what the instance costs that served it."""

    run: Run
    instance_type: str
    # USD for an hour of one instance; None is unknown.
    hourly: Decimal | None

    @property
    def per_thousand(self) -> Decimal | None:
        """USD for 1,000 decisions; None is unknown."""
        return None if self.hourly is None else self.run.per_thousand(self.hourly)


def lines_of(endpoint: Endpoint, prices: Prices) -> tuple[Line, ...]:
    """The endpoint on its first choice and, where it has a pool, on the dearest of the types after that."""
    asynchronous = endpoint.asynchronous is not None
    first, *others = endpoint.instance_types
    lines = [Line(endpoint.name, FIRST_CHOICE, first, prices[first, asynchronous], bounds(endpoint))]
    if others:
        instance_type, hourly = _dearest({other: prices[other, asynchronous] for other in others})
        lines.append(Line(endpoint.name, DEAREST_FALLBACK, instance_type, hourly, bounds(endpoint)))
    return tuple(lines)


def _dearest(prices: dict[str, Decimal | None]) -> tuple[str | None, Decimal | None]:
    known = {instance_type: price for instance_type, price in prices.items() if price is not None}
    if len(known) < len(prices):
        return None, None
    instance_type = max(known, key=lambda t: known[t])
    return instance_type, known[instance_type]


def total(lines: Sequence[Line], choice: str, amount: Callable[[Line], Decimal | None]) -> Decimal | None:
    """The sum over all endpoints, each by its line of that choice or its only one; None where a price is unknown."""
    by_endpoint = {line.endpoint: line for line in lines if line.choice == FIRST_CHOICE}
    by_endpoint.update({line.endpoint: line for line in lines if line.choice == choice})
    amounts = [amount(line) for line in by_endpoint.values()]
    known = [one for one in amounts if one is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _times(price: Decimal | None, count: int) -> Decimal | None:
    # No instance costs nothing, whatever an instance costs.
    return Decimal(0) if count == 0 else None if price is None else price * count


def price_source(
    of: Environment, wanted: Iterable[Product], *, endpoint_url: str | None, region: str | None, offline: bool
) -> PriceSource:
    """The wanted prices by the AWS price list where credentials lead to it; otherwise by the table, and a note why.

    Raises UsageError where nothing says which region's prices are meant.
    """
    wanted = tuple(wanted)
    if not offline:
        try:
            aws = connect(of, endpoint_url)
            if aws.is_emulator:
                note("The emulator has no price list: the repository's table is used.")
                return _table_source(wanted, region or aws.region)
            where = region or aws.region
            pricing = aws.client("pricing", region=PRICE_LIST_REGION)
            found = {one: listed_hourly(pricing, where, one[0], asynchronous=one[1]) for one in wanted}
            return PriceSource(found, f"on-demand prices of {where} by the AWS price list, read now")
        except (BotoCoreError, ClientError) as error:
            reason = aws_sentence(error)
        except ValueError as error:
            reason = str(error)
        note(f"The AWS price list was not read, the repository's table is used: {reason}.")
    return _table_source(wanted, _region(of, region))


def _table_source(wanted: Iterable[Product], region: str) -> PriceSource:
    prices = table()
    return PriceSource(
        {one: prices.hourly(region, one[0]) for one in wanted},
        f"prices of {region} as of {prices.date}, which may have changed ({prices.source})"
        if region in prices.regions
        else f"the repository's table of {prices.date} has no prices of {region}, only of {', '.join(prices.regions)}",
    )


def _region(of: Environment, given: str | None) -> str:
    region = given or region_of(of, boto3.Session())
    if region is None:
        raise UsageError("there is no region to take prices of: add --region, such as --region us-east-1")
    return region


def read_run(path: Path) -> Run:
    """The throughput in a run file of `decide bench`. Raises UsageError where there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except OSError as error:
        raise UsageError(f"--bench {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--bench {path} is no JSON: {error}") from error
    found = content.get("throughput") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise UsageError(f"--bench {path} has no `throughput`: it must be the run file of `decide bench`")
    decisions, seconds, concurrency = (found.get(name) for name in ("decisions", "wall_seconds", "concurrency"))
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (decisions, concurrency))
    if not whole or not isinstance(seconds, int | Decimal) or isinstance(seconds, bool) or not seconds > 0:
        raise UsageError(
            f"--bench {path}: throughput is {json.dumps(found, default=str)}; decisions and concurrency must be whole "
            "numbers above 0, wall_seconds a number above 0"
        )
    return Run(int(decisions or 0), Decimal(seconds), int(concurrency or 0))


def _type_of_run(of: Environment, given: str | None) -> str:
    """The type that the run was measured on: the given one, or the only one that can have served it."""
    if given is not None:
        return given
    types = {t for endpoint in of.endpoints if isinstance(endpoint, DecisionEndpoint) for t in endpoint.instance_types}
    if len(types) != 1:
        known = ", ".join(sorted(types)) or "none"
        raise UsageError(
            f"several types may have served the run of --bench ({known}): say which with --instance-type "
            "(`decide status` shows it)"
        )
    return types.pop()


def cost(
    env: EnvironmentName,
    *,
    bench: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also the cost of 1,000 decisions, by this run of decide bench.")
    ] = None,
    instance_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The type that served the run of --bench.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take the repository's dated table, without asking AWS.")
    ] = False,
    region: Annotated[str | None, typer.Option(metavar="REGION", help="Prices of this region.")] = None,
    endpoint_url: EndpointUrl = None,
    as_json: Json = False,
) -> None:
    """What an environment's instances cost by the hour and by the month of 730 hours.

    For each endpoint at the minimum and the maximum of its scaling, on its first choice and on the dearest fallback of
    its pool. Prices are AWS's list prices on demand, read now (pricing:GetProducts); without credentials, those of a
    dated table.

    Example: decide cost staging --offline --region us-east-1
    """
    of = environment(env)
    if region is not None and region not in DLC_ACCOUNTS:
        raise UsageError(f"--region is {region!r}; allowed: {', '.join(DLC_ACCOUNTS)}")
    run = None if bench is None else read_run(bench)
    run_type = None if run is None else _type_of_run(of, instance_type)
    wanted = {(t, e.asynchronous is not None): None for e in of.endpoints for t in e.instance_types}
    if run_type is not None:
        wanted[run_type, False] = None
    source = price_source(of, wanted, endpoint_url=endpoint_url, region=region, offline=offline)
    lines = [line for endpoint in of.endpoints for line in lines_of(endpoint, source.prices)]
    measured = None if run is None or run_type is None else RunCost(run, run_type, source.prices[run_type, False])
    if as_json:
        show_json(_as_json(of, source, lines, measured))
        return
    _show(of, source, lines)
    if measured is not None:
        say(_run_sentence(measured))


def _show(of: Environment, source: PriceSource, lines: Sequence[Line]) -> None:
    rows = [
        (
            line.endpoint,
            line.choice,
            line.instance_type or "unknown",
            _money(line.hourly, 4),
            _range(str(line.bounds.minimum), str(line.bounds.maximum)),
            _range(_money(line.at_minimum), _money(line.at_maximum)),
            _range(_monthly(line.at_minimum), _monthly(line.at_maximum)),
        )
        for line in lines
    ]
    for label, choice in _totals(lines):
        low, high = (total(lines, choice, amount) for amount in (_low, _high))
        rows.append(
            ("all", label, "", "", "", _range(_money(low), _money(high)), _range(_monthly(low), _monthly(high)))
        )
    columns = ("endpoint", "on", "type", "USD/h each", "instances", "USD/h", "USD/month")
    show_table(columns, rows, right=columns[3:])
    say()
    say(f"Environment {of.name!r}: {source.described}.")
    if unknown := sorted({line.instance_type or "a type of its pool" for line in lines if line.hourly is None}):
        say(f"Unknown price: {', '.join(unknown)}; see https://aws.amazon.com/sagemaker/pricing/.")
    say(NOT_INCLUDED)


def _totals(lines: Sequence[Line]) -> tuple[tuple[str, str], ...]:
    pooled = any(line.choice == DEAREST_FALLBACK for line in lines)
    return (("first choices", FIRST_CHOICE), *((("dearest fallbacks", DEAREST_FALLBACK),) if pooled else ()))


def _low(line: Line) -> Decimal | None:
    return line.at_minimum


def _high(line: Line) -> Decimal | None:
    return line.at_maximum


def _run_sentence(measured: RunCost) -> str:
    run = measured.run
    pace = f"{run.decisions:,} decisions in {run.wall_seconds:,} s, {run.concurrency} at a time"
    if measured.hourly is None:
        return f"1,000 decisions: unknown, as the price of {measured.instance_type} is ({pace})."
    return (
        f"1,000 decisions: {_money(measured.per_thousand, 4)} USD on one {measured.instance_type} at "
        f"{_money(measured.hourly, 4)} USD an hour, by the run's pace of {run.per_hour:,.0f} an hour ({pace}). It "
        "assumes that one instance served the whole run and is as busy all the time; an idle instance costs the same."
    )


def _as_json(of: Environment, source: PriceSource, lines: Sequence[Line], measured: RunCost | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "environment": of.name,
        "prices": source.described,
        "currency": "USD",
        "hours_per_month": HOURS_PER_MONTH,
        "endpoints": [
            {
                "endpoint": line.endpoint,
                "on": line.choice,
                "instance_type": line.instance_type,
                "hourly_each": _number(line.hourly),
                **_amounts(line.at_minimum, line.at_maximum),
                "min_instances": line.bounds.minimum,
                "max_instances": line.bounds.maximum,
            }
            for line in lines
        ],
        "totals": [
            {"on": label, **_amounts(total(lines, choice, _low), total(lines, choice, _high))}
            for label, choice in _totals(lines)
        ],
        "not_included": NOT_INCLUDED,
    }
    if measured is not None:
        shown["decisions"] = {
            "instance_type": measured.instance_type,
            "hourly_each": _number(measured.hourly),
            "per_hour": _number(measured.run.per_hour),
            "usd_per_1000": _number(measured.per_thousand),
            "concurrency": measured.run.concurrency,
            "assumes": "one instance served the run and is as busy all the time",
        }
    return shown


def _amounts(low: Decimal | None, high: Decimal | None) -> dict[str, float | None]:
    return {
        "hourly_min": _number(low),
        "hourly_max": _number(high),
        "monthly_min": _number(_times(low, HOURS_PER_MONTH)),
        "monthly_max": _number(_times(high, HOURS_PER_MONTH)),
    }


def _number(amount: Decimal | None) -> float | None:
    return None if amount is None else round(float(amount), 6)


def _money(amount: Decimal | None, digits: int = 2) -> str:
    return "unknown" if amount is None else f"{amount:,.{digits}f}"


def _monthly(hourly: Decimal | None) -> str:
    return _money(_times(hourly, HOURS_PER_MONTH))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
