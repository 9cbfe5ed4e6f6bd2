"""The builds of an environment: its model, its base images and the adapter's images, each named after its content."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from stacks.build_runner import BUILD_TIMEOUT, QUEUE_TIMEOUT, BuildRunner
from stacks.images import DLC_ACCOUNTS, BaseImage
from stacks.logs import Logs
from stacks.models import Model

_ROOT = Path(__file__).resolve().parent.parent
_ACCOUNTS_TABLE = "DeepLearningContainers"


def _content_hash(*parts: str) -> str:
    """32 hexadecimal digits that change when any part does."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _source(scope: Construct, id_: str, *paths: str) -> assets.Asset:
    """The repository's files and folders of these paths, and no others: nothing else decides what a build makes."""
    folders = {str(parent) for path in paths for parent in Path(path).parents if str(parent) != "."}
    # As in a .dockerignore: a folder that is let in again is shut again but for what follows.
    opened = [line for folder in sorted(folders) for line in (f"!{folder}", f"{folder}/*")]
    return assets.Asset(
        scope,
        id_,
        path=str(_ROOT),
        exclude=["*", *opened, *(f"!{path}" for path in paths), "**/__pycache__"],
        ignore_mode=cdk.IgnoreMode.DOCKER,
    )


class _Build(Construct):
    """A CodeBuild project with a role, a log group and a source of its own, and the resource that runs it."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        source: assets.Asset,
        buildspec: str,
        variables: Mapping[str, str],
        content_hash: str,
        privileged: bool,
        logs: Logs,
    ) -> None:
        super().__init__(scope, id_)
        log_group = logs.group(self, "Logs")
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        log_group.grant_write(self.role)
        _grant_source(self.role, source)
        project = codebuild.Project(
            self,
            "Project",
            # CDK would add the right to make log groups and report groups by name; this role has what it uses.
            role=self.role.without_policy_updates(),
            source=codebuild.Source.s3(bucket=source.bucket, path=source.s3_object_key),
            build_spec=codebuild.BuildSpec.from_source_filename(buildspec),
            environment=codebuild.BuildEnvironment(
                build_image=codebuild.LinuxBuildImage.AMAZON_LINUX_2023_5,
                compute_type=codebuild.ComputeType.MEDIUM,
                privileged=privileged,
            ),
            environment_variables={
                name: codebuild.BuildEnvironmentVariable(value=value) for name, value in variables.items()
            },
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=log_group)),
            timeout=BUILD_TIMEOUT,
            queued_timeout=QUEUE_TIMEOUT,
        )
        self.resource = runner.run(self, "Run", project=project, log_group=log_group, content_hash=content_hash)
        # With the role goes its policy: a build that starts before it fails.
        self.resource.node.add_dependency(self.role)


def _grant_source(role: iam.Role, source: assets.Asset) -> None:
    """What CodeBuild asks for to read one archive; `grant_read` would open the whole bucket of every CDK app."""
    role.add_to_policy(
        iam.PolicyStatement(
            actions=["s3:GetObject", "s3:GetObjectVersion"],
            resources=[source.bucket.arn_for_objects(source.s3_object_key)],
        )
    )
    role.add_to_policy(
        iam.PolicyStatement(actions=["s3:GetBucketAcl", "s3:GetBucketLocation"], resources=[source.bucket.bucket_arn])
    )


class ModelBuild(_Build):
    """Packages the pinned model into the bucket; `prefix` is where it lies, with a slash at its end."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        model: Model,
        archive: bool,
        calibrations: str | None,
        bucket: s3.IBucket,
        key: kms.IKey | None,
        logs: Logs,
    ) -> None:
        """`archive`: one `model.tar.gz` in place of the files as they are. `calibrations`: a file of the repository."""
        files = () if calibrations is None else (calibrations,)
        source = _source(scope, f"{id_}Source", "requirements/build.txt", "stacks/model_build", *files)
        variables = {
            "MODEL_NAME": model.name,
            "MODEL_FILE": model.file,
            "MODEL_BYTES": str(model.bytes),
            "MODEL_SHA256": model.sha256,
            "MODEL_SOURCE": json.dumps(model.source.describe(), sort_keys=True),
            "MODEL_TOKENIZER": json.dumps(model.tokenizer and model.tokenizer.describe(), sort_keys=True),
            "MODEL_ARCHIVE": json.dumps(archive),
        }
        if calibrations is not None:
            variables["MODEL_CALIBRATIONS"] = calibrations
        super().__init__(
            scope,
            id_,
            runner=runner,
            source=source,
            buildspec="stacks/model_build/buildspec.yml",
            variables={**variables, "MODEL_BUCKET": bucket.bucket_name},
            content_hash=_content_hash(source.asset_hash, json.dumps(variables, sort_keys=True)),
            privileged=False,
            logs=logs,
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[bucket.bucket_arn],
                conditions={"StringLike": {"s3:prefix": "models/*"}},
            )
        )
        # It adds; it neither reads nor deletes.
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:PutObject", "s3:AbortMultipartUpload"], resources=[bucket.arn_for_objects("models/*")]
            )
        )
        if key is not None:
            # An upload in parts reads them back to join them.
            self.role.add_to_policy(
                iam.PolicyStatement(actions=["kms:GenerateDataKey", "kms:Decrypt"], resources=[key.key_arn])
            )
        self.prefix = self.resource.get_att_string("MODEL_PREFIX")


def _base_image_account(stack: cdk.Stack) -> str:
    """The account whose registry has the base images in the stack's region; a token where the region is one."""
    if not cdk.Token.is_unresolved(stack.region):
        return DLC_ACCOUNTS[stack.region]
    table = stack.node.try_find_child(_ACCOUNTS_TABLE)
    if not isinstance(table, cdk.CfnMapping):
        table = cdk.CfnMapping(
            stack, _ACCOUNTS_TABLE, mapping={region: {"account": account} for region, account in DLC_ACCOUNTS.items()}
        )
    return table.find_in_map(cdk.Aws.REGION, "account")


class BaseImageCopy(_Build):
    """Copies a base image into the repository; `digest` is what it has there."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        base_image: BaseImage,
        repository: ecr.IRepository,
        logs: Logs,
    ) -> None:
        source = _source(scope, f"{id_}Source", "stacks/image_build")
        account = _base_image_account(cdk.Stack.of(scope))
        registry = f"{account}.dkr.ecr.{cdk.Aws.REGION}.{cdk.Aws.URL_SUFFIX}"
        content_hash = _content_hash(source.asset_hash, base_image.repository, base_image.digest)
        super().__init__(
            scope,
            id_,
            runner=runner,
            source=source,
            buildspec="stacks/image_build/base.yml",
            variables={
                "REPOSITORY_NAME": repository.repository_name,
                "REPOSITORY_URI": repository.repository_uri,
                # The source's digest alone: a script that changes copies nothing anew.
                "IMAGE_TAG": f"base-{base_image.digest.removeprefix('sha256:')[:32]}",
                "SOURCE_IMAGE": f"{registry}/{base_image.repository}@{base_image.digest}",
            },
            content_hash=content_hash,
            privileged=True,
            logs=logs,
        )
        repository.grant_pull_push(self.role)
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                resources=[
                    cdk.Stack.of(self).format_arn(
                        service="ecr", account=account, resource="repository", resource_name=base_image.repository
                    )
                ],
            )
        )
        self.digest = self.resource.get_att_string("IMAGE_DIGEST")


class AdapterImageBuild(_Build):
    """Builds the adapter's image into the repository; `digest` is what a decision endpoint runs."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        base_image: BaseImage,
        base_digest: str,
        repository: ecr.IRepository,
        logs: Logs,
    ) -> None:
        """`base_digest`: the base image's copy in the repository."""
        source = _source(
            scope,
            f"{id_}Source",
            "container",
            "requirements/image-build.txt",
            "requirements/container.txt",
            "stacks/image_build",
        )
        content_hash = _content_hash(source.asset_hash, base_image.digest, base_image.binding_commit)
        super().__init__(
            scope,
            id_,
            runner=runner,
            source=source,
            buildspec="stacks/image_build/adapter.yml",
            variables={
                "REPOSITORY_NAME": repository.repository_name,
                "REPOSITORY_URI": repository.repository_uri,
                "IMAGE_TAG": f"adapter-{content_hash}",
                "BASE_IMAGE": repository.repository_uri_for_digest(base_digest),
                "BINDING_COMMIT": base_image.binding_commit,
            },
            content_hash=content_hash,
            privileged=True,
            logs=logs,
        )
        repository.grant_pull_push(self.role)
        self.digest = self.resource.get_att_string("IMAGE_DIGEST")
