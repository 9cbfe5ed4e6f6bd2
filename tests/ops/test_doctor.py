"""`decide doctor` as it is typed: against the emulator, an account that refuses, and no account at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import Stubber

import ops.doctor.command
from ops.cli import main
from ops.doctor import downloads
from ops.doctor.row import Row
from tests.emulator_fixture import Emulator, running_emulator
from tests.ops.stubbed import account, client

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOTSTRAP = "/cdk-bootstrap/hnb659fds/version"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator that nobody has bootstrapped."""
    with running_emulator(tmp_path_factory.mktemp("emulator")) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody(no_account: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No account of whoever runs the tests, and no download."""
    monkeypatch.setattr(downloads, "model", lambda _: [Row("model", "as it should be", "ok")])
    monkeypatch.setattr(downloads, "tokenizer", lambda _: [Row("tokenizer", "as it should be", "ok")])


def examined(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of `decide doctor ARGUMENTS --json`, by check."""
    assert main(["doctor", *arguments, "--json"]) == status
    shown = json.loads(capsys.readouterr().out)
    assert shown["ready"] is (status == 0)
    return {row["check"]: row for row in shown["checks"]}


def test_against_the_emulator(emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    address = ("local", "--endpoint-url", emulator.endpoint_url)
    before = examined(capsys, 1, *address)
    assert (before["CDK bootstrap"]["verdict"], before["CDK bootstrap"]["advice"]) == ("failed", "make demo")
    emulator.client("ssm").put_parameter(Name=BOOTSTRAP, Value="30", Type="String")
    after = examined(capsys, 0, *address)
    # What the emulator has is checked, and what it lacks is said not to be: nothing is ok by default.
    assert {check: row["verdict"] for check, row in after.items()} == {
        "credentials": "ok",
        "account": "ok",
        "region": "ok",
        "CDK bootstrap": "ok",
        "quotas": "not checked",
        "types in the region": "not checked",
        "base image (CPU)": "not checked",
        "model": "ok",
        "Node": "ok",
        "CDK command line": "ok",
        "Python packages": "ok",
    }
    assert after["credentials"]["found"] == "arn:aws:iam::000000000000:root"
    assert after["quotas"]["found"] == "the emulator has no Service Quotas"


def test_the_table_ends_with_what_to_do_and_a_sum(emulator: Emulator, capsys: pytest.CaptureFixture[str]) -> None:
    emulator.client("ssm").put_parameter(Name=BOOTSTRAP, Value="5", Type="String", Overwrite=True)
    assert main(["doctor", "local", "--endpoint-url", emulator.endpoint_url]) == 1
    out = capsys.readouterr().out
    assert "version '5'; at least 6 is needed" in out
    assert "What to do:\n  CDK bootstrap: make demo\n" in out
    assert "Environment 'local' is not ready to deploy: 1 failed, 3 not checked, 7 ok." in out


def test_without_credentials_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    rows = examined(capsys, 1, "dev")
    assert rows["credentials"]["verdict"] == "failed"
    assert "aws sso login" in rows["credentials"]["found"]
    assert rows["bootstrap, quotas, types, images"]["verdict"] == "not checked"
    assert rows["tokenizer"]["verdict"] == "ok"


def test_without_a_region(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    assert examined(capsys, 1, "dev")["region"]["verdict"] == "failed"


def test_an_account_that_refuses_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is a row that names its permission; none fails the environment."""
    clients = {name: client(name) for name in ("sts", "ssm", "service-quotas", "sagemaker", "pricing", "ecr")}
    refused = {
        "ssm": ["get_parameter"],
        "service-quotas": ["list_service_quotas"],
        "sagemaker": ["list_endpoints"],
        "pricing": ["get_products"],
        "ecr": ["batch_get_image", "batch_get_image"],
    }
    for name, stubbed in clients.items():
        stubber = Stubber(stubbed)
        if name == "sts":
            caller = {"UserId": "AIDA", "Account": "111122223333", "Arn": "arn:aws:iam::111122223333:user/me"}
            stubber.add_response("get_caller_identity", caller, {})
        for operation in refused.get(name, ()):
            stubber.add_client_error(operation, "AccessDeniedException", "is not authorized", http_status_code=400)
        stubber.activate()
    monkeypatch.setattr(
        ops.doctor.command,
        "connect",
        lambda *_: account(**{name.replace("-", "_"): one for name, one in clients.items()}),
    )
    rows = examined(capsys, 0, "staging")
    unchecked = {check: row["found"] for check, row in rows.items() if row["verdict"] == "not checked"}
    dlc = "arn:aws:ecr:us-east-1:763104351884:repository/llama-cpp"
    assert unchecked == {
        check: f"the credentials may not do {action}"
        for check, action in {
            "CDK bootstrap": f"ssm:GetParameter on {BOOTSTRAP}",
            "quotas": "servicequotas:ListServiceQuotas and servicequotas:ListAWSDefaultServiceQuotas",
            "types in the region": "pricing:GetProducts",
            "base image (CPU)": f"ecr:BatchGetImage on {dlc}",
            "base image (GPU)": f"ecr:BatchGetImage on {dlc}",
        }.items()
    }


def test_an_environment_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nope"]) == 2
    assert "known environments: dev, local, prod, staging" in capsys.readouterr().err


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "dev", "--endpoint-url", "127.0.0.1:4566"]) == 2
    assert "it must be an address such as http://127.0.0.1:4566" in capsys.readouterr().err
