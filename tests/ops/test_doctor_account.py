"""The doctor about credentials, region, bootstrap and base images, by AWS's own answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError
from botocore.stub import ANY, Stubber

from ops.doctor import account
from ops.doctor.row import Check, Row
from stacks.config import environment_named
from stacks.images import DLC_ACCOUNTS, LLAMA_CPP
from tests.ops.stubbed import client

DEV = environment_named("dev")
ARN = "arn:aws:sts::111122223333:assumed-role/deploy/me"
CALLER = {"UserId": "AROA:me", "Account": "111122223333", "Arn": ARN}


def identity(named: str | None, *, emulator: bool = False) -> account.Identity:
    sts = client("sts")
    with Stubber(sts) as stubber:
        stubber.add_response("get_caller_identity", CALLER, {})
        return account.identity(sts, replace(DEV, account=named), emulator=emulator)


def test_whose_credentials_they_are() -> None:
    found = identity("111122223333")
    assert found.account == "111122223333"
    assert [(row.check, row.found, row.verdict) for row in found.rows] == [
        ("credentials", ARN, "ok"),
        ("account", "111122223333", "ok"),
    ]


def test_credentials_of_another_account_than_the_environments() -> None:
    row = identity("444455556666").rows[1]
    assert (row.verdict, row.found) == ("failed", "111122223333, but stacks/config.py names 444455556666")
    assert "444455556666" in row.advice


def test_an_environment_that_names_no_account_takes_any() -> None:
    assert identity(None).rows[1].verdict == "ok"


def test_the_emulators_account_is_not_the_one_that_is_named() -> None:
    assert identity("444455556666", emulator=True).rows[1].verdict == "not checked"


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch"])
def test_credentials_that_aws_does_not_take(code: str) -> None:
    sts = client("sts")
    with Stubber(sts) as stubber:
        stubber.add_client_error("get_caller_identity", code, "said", http_status_code=403)
        found = account.identity(sts, DEV, emulator=False)
    (row,) = found.rows
    assert (found.account, row.check, row.verdict) == (None, "credentials", "failed")
    assert f"GetCallerIdentity answered {code}" in row.found


def test_without_credentials_or_a_region_the_row_says_which() -> None:
    assert account.no_identity(NoCredentialsError()).rows[0].check == "credentials"
    row = account.no_identity(NoRegionError()).rows[0]
    assert (row.check, row.verdict) == ("region", "failed")
    assert "AWS_REGION" in row.found


def test_a_region_without_deep_learning_containers() -> None:
    (row,) = account.region("mx-central-1")
    assert row.verdict == "failed"
    assert "us-east-1" in row.advice
    (row,) = account.region("eu-central-2")
    assert (row.verdict, "380420809688" in row.found) == ("ok", True)


def bootstrap(value: str | None, *, emulator: bool = False, code: str = "ParameterNotFound") -> Row:
    ssm = client("ssm")
    name = {"Name": "/cdk-bootstrap/hnb659fds/version"}
    with Stubber(ssm) as stubber:
        if value is None:
            stubber.add_client_error("get_parameter", code, "said", expected_params=name)
        else:
            parameter = {"Name": name["Name"], "Type": "String", "Value": value, "Version": 1}
            stubber.add_response("get_parameter", {"Parameter": parameter}, name)
        work = partial(account.bootstrap, ssm, "111122223333", "eu-west-1", emulator=emulator)
        (row,) = Check("CDK bootstrap", "ssm:GetParameter on it", work).rows(emulator=emulator)
    return row


@pytest.mark.parametrize(("value", "verdict"), [("5", "failed"), ("6", "ok"), ("30", "ok"), ("x", "failed")])
def test_the_bootstrap_version(value: str, verdict: str) -> None:
    assert bootstrap(value).verdict == verdict


def test_without_a_bootstrap_the_command_is_named() -> None:
    assert bootstrap(None).advice == "cdk bootstrap aws://111122223333/eu-west-1"
    assert bootstrap(None, emulator=True).advice == "make demo"


def test_a_refusal_is_a_row_with_the_permission() -> None:
    row = bootstrap(None, code="AccessDeniedException")
    assert (row.verdict, row.found) == ("not checked", "the credentials may not do ssm:GetParameter on it")


def test_any_other_error_is_a_row_in_awss_words() -> None:
    row = bootstrap(None, code="InternalServerError")
    assert (row.verdict, row.found) == ("not checked", "GetParameter answered InternalServerError: said")


def base_image(response: dict[str, Any] | None, code: str = "") -> Row:
    ecr = client("ecr", "eu-central-2")
    image = LLAMA_CPP.gpu
    asked = {
        "registryId": "380420809688",
        "repositoryName": "llama-cpp",
        "imageIds": [{"imageDigest": image.digest}],
        "acceptedMediaTypes": ANY,
    }
    with Stubber(ecr) as stubber:
        if response is None:
            stubber.add_client_error("batch_get_image", code, "said", expected_params=asked)
        else:
            stubber.add_response("batch_get_image", response, asked)
        action = account.base_image_action("eu-central-2", image)
        work = partial(account.base_image, ecr, "GPU", image, "eu-central-2")
        (row,) = Check("base image (GPU)", action, work).rows(emulator=False)
    return row


def test_a_digest_that_the_regions_registry_has() -> None:
    image = {
        "registryId": DLC_ACCOUNTS["eu-central-2"],
        "repositoryName": "llama-cpp",
        "imageId": {"imageDigest": LLAMA_CPP.gpu.digest},
        "imageManifest": "{}",
        "imageManifestMediaType": "application/vnd.docker.distribution.manifest.v2+json",
    }
    row = base_image({"images": [image], "failures": []})
    assert row.verdict == "ok"
    assert "380420809688.dkr.ecr.eu-central-2.amazonaws.com/llama-cpp" in row.found


def test_a_digest_that_it_lacks() -> None:
    failure = {
        "imageId": {"imageDigest": LLAMA_CPP.gpu.digest},
        "failureCode": "ImageNotFound",
        "failureReason": "Requested image not found",
    }
    row = base_image({"images": [], "failures": [failure]})
    assert (row.verdict, "ImageNotFound" in row.found) == ("failed", True)
    assert LLAMA_CPP.gpu.digest in row.found


def test_a_registry_without_the_repository() -> None:
    assert base_image(None, "RepositoryNotFoundException").verdict == "failed"


def test_a_registry_that_does_not_let_us_look() -> None:
    row = base_image(None, "AccessDeniedException")
    assert row.verdict == "not checked"
    assert "ecr:BatchGetImage on arn:aws:ecr:eu-central-2:380420809688:repository/llama-cpp" in row.found
