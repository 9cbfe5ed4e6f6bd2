"""The doctor's checks of the account and the region: who asks, CDK's bootstrap, and AWS's own images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from ops.doctor.row import Row
from ops.errors import aws_sentence
from stacks.config import Environment
from stacks.images import DLC_ACCOUNTS, BaseImage

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
# MIN_BOOTSTRAP_STACK_VERSION of aws-cdk-lib 2.275's default synthesizer, which the templates' rule asserts too.
BOOTSTRAP_MINIMUM = 6

# Docker's manifests and OCI's, alone and as an index: ECR refuses to give one that is not asked for.
_MANIFESTS = [
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
]


@dataclass(frozen=True)
class Identity:
    """Whose credentials they are."""

    rows: tuple[Row, ...]
    # None: AWS takes no credentials.
    account: str | None


def identity(sts: Any, environment: Environment, *, emulator: bool) -> Identity:
    """Whose credentials they are, and whether they are of the account that the environment names."""
    try:
        caller = sts.get_caller_identity()
    except (BotoCoreError, ClientError) as error:
        return no_identity(error)
    account = str(caller["Account"])
    return Identity((Row("credentials", str(caller["Arn"]), "ok"), _account(account, environment, emulator)), account)


def no_identity(error: BotoCoreError | ClientError) -> Identity:
    """No identity: credentials or region are missing, or AWS does not take the credentials."""
    check = "region" if isinstance(error, NoRegionError) else "credentials"
    return Identity((Row(check, aws_sentence(error), "failed"),), None)


def _account(account: str, environment: Environment, emulator: bool) -> Row:
    if environment.account is None:
        return Row("account", f"{account}; stacks/config.py names none", "ok")
    if environment.account == account:
        return Row("account", account, "ok")
    if emulator:
        return Row(
            "account", f"{account} is the emulator's; stacks/config.py names {environment.account}", "not checked"
        )
    found = f"{account}, but stacks/config.py names {environment.account}"
    return Row("account", found, "failed", f"use credentials of {environment.account} (AWS_PROFILE)")


def region(name: str) -> Sequence[Row]:
    """Whether AWS publishes Deep Learning Containers in the region, by stacks/images.py."""
    if name in DLC_ACCOUNTS:
        return [Row("region", f"{name}, with Deep Learning Containers of account {DLC_ACCOUNTS[name]}", "ok")]
    found = f"{name} has no Deep Learning Containers that stacks/images.py knows"
    return [Row("region", found, "failed", f"set region in stacks/config.py, or AWS_REGION: {', '.join(DLC_ACCOUNTS)}")]


def bootstrap(ssm: Any, account: str, region_name: str, *, emulator: bool) -> Sequence[Row]:
    """The version of CDK's bootstrap stack, which its own parameter tells.

    Raises botocore's errors for everything but a parameter that does not exist.
    """
    command = "make demo" if emulator else f"cdk bootstrap aws://{account}/{region_name}"
    try:
        value = ssm.get_parameter(Name=BOOTSTRAP_PARAMETER)["Parameter"]["Value"]
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "ParameterNotFound":
            raise
        return [Row("CDK bootstrap", f"{region_name} is not bootstrapped", "failed", command)]
    version = int(value) if value.isdecimal() else 0
    if version >= BOOTSTRAP_MINIMUM:
        return [Row("CDK bootstrap", f"version {version} (at least {BOOTSTRAP_MINIMUM})", "ok")]
    found = f"version {value!r}; at least {BOOTSTRAP_MINIMUM} is needed"
    return [Row("CDK bootstrap", found, "failed", command)]


def base_image_action(region_name: str, image: BaseImage) -> str:
    """What `base_image` needs, with the resource."""
    registry = DLC_ACCOUNTS[region_name]
    return f"ecr:BatchGetImage on arn:aws:ecr:{region_name}:{registry}:repository/{image.repository}"


def base_image(ecr: Any, kind: str, image: BaseImage, region_name: str) -> Sequence[Row]:
    """Whether the pinned digest is in the region's registry of Deep Learning Containers.

    BatchGetImage, because it is what a `docker pull` needs anyway: AWS's repositories let other accounts pull, which
    says nothing of DescribeImages. It answers with the manifest, without a layer. Raises botocore's errors for
    everything but a repository that does not exist.
    """
    name = f"base image ({kind})"
    registry = f"{DLC_ACCOUNTS[region_name]}.dkr.ecr.{region_name}.amazonaws.com/{image.repository}"
    advice = f"pin a digest of {region_name} in stacks/images.py, or deploy to another region"
    try:
        answer = ecr.batch_get_image(
            registryId=DLC_ACCOUNTS[region_name],
            repositoryName=image.repository,
            imageIds=[{"imageDigest": image.digest}],
            acceptedMediaTypes=_MANIFESTS,
        )
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") != "RepositoryNotFoundException":
            raise
        return [Row(name, f"there is no repository {registry}", "failed", advice)]
    if answer.get("images"):
        return [Row(name, f"{image.digest[:19]}… is in {registry}", "ok")]
    reasons = ", ".join(str(failure.get("failureCode", "no reason")) for failure in answer.get("failures", []))
    return [Row(name, f"{image.digest} is not in {registry} ({reasons or 'no reason'})", "failed", advice)]
