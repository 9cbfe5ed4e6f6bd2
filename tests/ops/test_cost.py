"""`decide cost`: amounts worked out by hand, where prices come from, and what a run's decisions cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

import ops.cost
from ops.cli import main
from ops.cost import lines_of, read_run
from ops.errors import UsageError
from stacks.config import Asynchronous, DecisionEndpoint, environment_named
from tests.ops.price_list import asked_for, product
from tests.ops.stubbed import account, client

pytestmark = pytest.mark.usefixtures("no_account")

OFFLINE = ("--offline", "--region", "us-east-1", "--json")


@pytest.fixture
def pricing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The price list's client of an account in eu-central-1, which reaches nobody."""
    price_list = client("pricing")
    monkeypatch.setattr(ops.cost, "connect", lambda *_: account("eu-central-1", pricing=price_list))
    return price_list


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["cost", *arguments]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_prod_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json(capsys, "prod", *OFFLINE)
    rows = {(row["endpoint"], row["on"]): row for row in shown["endpoints"]}
    gpu = rows["decision-gpu", "first choice"]
    assert (gpu["instance_type"], gpu["hourly_each"]) == ("ml.g6e.xlarge", 2.61)
    # 2 and 6 of them; a month has 730 hours.
    assert (gpu["hourly_min"], gpu["hourly_max"]) == (5.22, 15.66)
    assert (gpu["monthly_min"], gpu["monthly_max"]) == (3810.6, 11431.8)
    # Of g6.2xlarge, g5.2xlarge and g4dn.2xlarge the second costs most.
    fallback = rows["decision-gpu", "dearest fallback"]
    assert (fallback["instance_type"], fallback["hourly_max"]) == ("ml.g5.2xlarge", 9.12)
    assert ("decision-cpu", "dearest fallback") not in rows
    # (2 + 1) of 1.632 and (2 + 2) of 2.61; at most (4 + 2) and (6 + 4).
    assert shown["totals"][0] == {
        "on": "first choices",
        "hourly_min": 15.336,
        "hourly_max": 35.892,
        "monthly_min": 11195.28,
        "monthly_max": 26201.16,
    }
    # The CPU endpoints as before, and (2 + 2) of 1.52, at most (6 + 4).
    assert shown["totals"][1]["hourly_min"] == 10.976
    assert shown["totals"][1]["hourly_max"] == 24.992


@pytest.mark.parametrize(
    ("environment", "monthly"),
    [("local", (74.46, 148.92)), ("dev", (1191.36, 2382.72)), ("staging", (3096.66, 6193.32))],
)
def test_a_month_of_the_other_environments(
    capsys: pytest.CaptureFixture[str], environment: str, monthly: tuple[float, float]
) -> None:
    total = as_json(capsys, environment, *OFFLINE)["totals"][0]
    assert (total["monthly_min"], total["monthly_max"]) == monthly


def test_an_asynchronous_endpoint_costs_nothing_at_rest_even_at_an_unknown_price() -> None:
    endpoint = DecisionEndpoint(name="a", instance_type="ml.c6i.large", asynchronous=Asynchronous(max_instances=3))
    (known,) = lines_of(endpoint, {("ml.c6i.large", True): Decimal("0.102")})
    assert (known.at_minimum, known.at_maximum) == (Decimal(0), Decimal("0.306"))
    (unknown,) = lines_of(endpoint, {("ml.c6i.large", True): None})
    assert (unknown.at_minimum, unknown.at_maximum) == (Decimal(0), None)


def test_the_dearest_fallback_is_unknown_while_one_price_is() -> None:
    endpoint = environment_named("staging").endpoints[1]
    prices = {(instance_type, False): Decimal(1) for instance_type in endpoint.instance_types}
    _, fallback = lines_of(endpoint, {**prices, ("ml.g4dn.2xlarge", False): None})
    assert (fallback.instance_type, fallback.at_maximum) == (None, None)


def test_a_region_that_the_table_lacks_is_said_to_be_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "dev", "--offline", "--region", "eu-west-1"]) == 0
    out = capsys.readouterr().out
    assert "table of 2026-09-27 has no prices of eu-west-1, only of us-east-1" in out
    assert "Unknown price: ml.c6i.8xlarge" in out
    assert "1.63" not in out


def test_the_table_says_of_when_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "dev", "--offline", "--region", "us-east-1"]) == 0
    assert "prices of us-east-1 as of 2026-09-27, which may have changed" in capsys.readouterr().out


def test_without_credentials_the_table_is_used_and_the_reason_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "dev", "--region", "us-east-1"]) == 0
    captured = capsys.readouterr()
    assert "there are no AWS credentials" in captured.err
    assert "2,382.72" in captured.out


def test_without_a_region_it_says_how_to_name_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "dev", "--offline"]) == 2
    assert "--region us-east-1" in capsys.readouterr().err


def test_aws_region_counts_as_it_does_for_the_cdk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert as_json(capsys, "dev", "--offline", "--json")["totals"][0]["monthly_min"] == 1191.36


def test_prices_are_the_price_lists_of_the_accounts_region(capsys: pytest.CaptureFixture[str], pricing: Any) -> None:
    with Stubber(pricing) as stubber:
        listed = [product("EUC1-Host:ml.c6i.8xlarge", "ml.c6i.8xlarge", "1.9000000000", region="eu-central-1")]
        stubber.add_response("get_products", {"PriceList": listed}, asked_for("ml.c6i.8xlarge", "eu-central-1"))
        shown = as_json(capsys, "dev", "--json")
    assert shown["prices"] == "on-demand prices of eu-central-1 by the AWS price list, read now"
    assert shown["totals"][0]["hourly_max"] == 3.8


def test_where_aws_refuses_its_prices_the_table_is_used(capsys: pytest.CaptureFixture[str], pricing: Any) -> None:
    with Stubber(pricing) as stubber:
        stubber.add_client_error(
            "get_products", "AccessDeniedException", "no pricing:GetProducts", http_status_code=400
        )
        assert main(["cost", "dev", "--region", "us-east-1"]) == 0
    captured = capsys.readouterr()
    assert "GetProducts answered AccessDeniedException: no pricing:GetProducts" in captured.err
    assert "as of 2026-09-27" in captured.out


def test_the_emulator_has_no_price_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "local", "--endpoint-url", "http://127.0.0.1:9"]) == 0
    captured = capsys.readouterr()
    assert "The emulator has no price list" in captured.err
    assert "ml.c6i.large" in captured.out


@pytest.fixture
def run_file(tmp_path: Path) -> Callable[[Any], str]:
    """Writes a run file; its path."""

    def write(content: Any) -> str:
        path = tmp_path / "run.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


RUN = {"throughput": {"decisions": 231, "wall_seconds": 90.5, "concurrency": 4}, "rows": []}


def test_what_a_thousand_decisions_cost(capsys: pytest.CaptureFixture[str], run_file: Callable[[Any], str]) -> None:
    decisions = as_json(capsys, "dev", *OFFLINE, "--bench", run_file(RUN))["decisions"]
    # 231 in 90.5 s are 9,188.95 an hour, for 1.632 USD.
    assert decisions["per_hour"] == pytest.approx(9188.9503, abs=1e-3)
    assert decisions["usd_per_1000"] == pytest.approx(0.177605, abs=1e-6)
    assert decisions["instance_type"] == "ml.c6i.8xlarge"


def test_what_the_figure_assumes_is_said(capsys: pytest.CaptureFixture[str], run_file: Callable[[Any], str]) -> None:
    assert main(["cost", "dev", *OFFLINE[:-1], "--bench", run_file(RUN)]) == 0
    out = capsys.readouterr().out
    assert "1,000 decisions: 0.1776 USD on one ml.c6i.8xlarge" in out
    assert "assumes that one instance served the whole run and is as busy all the time" in out


def test_a_pool_must_say_which_type_served_the_run(
    capsys: pytest.CaptureFixture[str], run_file: Callable[[Any], str]
) -> None:
    path = run_file(RUN)
    assert main(["cost", "staging", *OFFLINE, "--bench", path]) == 2
    assert "--instance-type" in capsys.readouterr().err
    decisions = as_json(capsys, "staging", *OFFLINE, "--bench", path, "--instance-type", "ml.g6.2xlarge")["decisions"]
    # 1.222 x 90.5 / 3600 / 231 x 1000
    assert decisions["usd_per_1000"] == pytest.approx(0.132986, abs=1e-6)


def test_a_type_without_a_price_costs_an_unknown_amount(
    capsys: pytest.CaptureFixture[str], run_file: Callable[[Any], str]
) -> None:
    shown = as_json(capsys, "dev", *OFFLINE, "--bench", run_file(RUN), "--instance-type", "ml.p9.xlarge")
    assert shown["decisions"]["usd_per_1000"] is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ([], "has no `throughput`"),
        ({"rows": []}, "has no `throughput`"),
        ({"throughput": {"decisions": 0, "wall_seconds": 1, "concurrency": 1}}, "above 0"),
        ({"throughput": {"decisions": 5, "wall_seconds": 0, "concurrency": 1}}, "above 0"),
        ({"throughput": {"decisions": True, "wall_seconds": 1, "concurrency": 1}}, "above 0"),
        ({"throughput": {"decisions": 5, "wall_seconds": "1", "concurrency": 1}}, "above 0"),
        ('{"throughput": {"decisions": 5, "wall_seconds": NaN, "concurrency": 1}}', "above 0"),
    ],
)
def test_a_file_that_is_no_run(
    capsys: pytest.CaptureFixture[str], run_file: Callable[[Any], str], content: Any, said: str
) -> None:
    assert main(["cost", "dev", *OFFLINE, "--bench", run_file(content)]) == 2
    assert said in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_run(tmp_path / "none.json")


def test_a_region_in_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_region = replace(environment_named("dev"), region="us-east-1")
    monkeypatch.setattr(ops.cost, "environment", lambda _: in_region)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert as_json(capsys, "dev", "--offline", "--json")["totals"][0]["monthly_max"] == 2382.72
