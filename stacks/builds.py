"""Builds that run inside the deploy: CodeBuild projects, and custom resources that start them and wait."""

import hashlib
import json
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as assets
from aws_cdk import custom_resources
from constructs import Construct

from stacks.config import BaseImage, Model
from stacks.logs import log_group

_ROOT = Path(__file__).resolve().parent.parent

# A custom resource lives an hour at most: the build with its wait in the queue ends before the poll does, the
# poll before CloudFormation gives up, so that the one who knows the reason is the one who reports it.
_BUILD_TIMEOUT = cdk.Duration.minutes(45)
_QUEUE_TIMEOUT = cdk.Duration.minutes(8)
_POLL_TIMEOUT = cdk.Duration.minutes(55)
_RESOURCE_TIMEOUT = cdk.Duration.minutes(58)
_POLL_INTERVAL = cdk.Duration.seconds(5)


def _content_hash(*parts: str) -> str:
    """32 hexadecimal digits that change when any part does."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class BuildRunner(Construct):
    """Starts CodeBuild builds for custom resources and waits for them; one per stack."""

    def __init__(self, scope: Construct, id_: str, *, log_retention_days: int) -> None:
        super().__init__(scope, id_)
        code = lambda_.Code.from_asset(
            str(_ROOT / "lambda" / "build_runner"), exclude=["*", "!handler.py"], ignore_mode=cdk.IgnoreMode.DOCKER
        )
        logs = log_group(self, "Logs", retention_days=log_retention_days)
        # One role of our own for both: CDK's default would bring the managed policy that may make any log group.
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
        logs.grant_write(self.role)

        def function(name: str, handler: str, timeout: cdk.Duration) -> lambda_.Function:
            return lambda_.Function(
                self,
                name,
                code=code,
                handler=handler,
                runtime=lambda_.Runtime.PYTHON_3_14,
                role=self.role.without_policy_updates(),
                log_group=logs,
                logging_format=lambda_.LoggingFormat.JSON,
                memory_size=256,
                timeout=timeout,
            )

        framework_logs = log_group(self, "FrameworkLogs", retention_days=log_retention_days)

        def framework_role(name: str) -> iam.Role:
            role = iam.Role(self, name, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
            framework_logs.grant_write(role)
            return role

        self._provider = custom_resources.Provider(
            self,
            "Provider",
            on_event_handler=function("OnEvent", "handler.on_event", cdk.Duration.minutes(2)),
            is_complete_handler=function("IsComplete", "handler.is_complete", cdk.Duration.minutes(1)),
            query_interval=_POLL_INTERVAL,
            total_timeout=_POLL_TIMEOUT,
            log_group=framework_logs,
            framework_on_event_role=framework_role("FrameworkOnEventRole"),
            framework_complete_and_timeout_role=framework_role("FrameworkIsCompleteRole"),
            # The framework's functions log every poll already; the state machine's own log would need the right
            # to change the log deliveries of the whole account.
            disable_waiter_state_machine_logging=True,
        )

    def run(self, scope: Construct, id_: str, *, project: codebuild.Project, content_hash: str) -> cdk.CustomResource:
        """A resource that runs the project's build when it is made and whenever the hash changes.

        Its attributes are the variables that the buildspec exports.
        """
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "codebuild:StartBuild",
                    "codebuild:StopBuild",
                    "codebuild:BatchGetBuilds",
                    "codebuild:ListBuildsForProject",
                ],
                resources=[project.project_arn],
            )
        )
        resource = cdk.CustomResource(
            scope,
            id_,
            resource_type="Custom::Build",
            service_token=self._provider.service_token,
            service_timeout=_RESOURCE_TIMEOUT,
            properties={"ProjectName": project.project_name, "ContentHash": content_hash},
        )
        resource.node.add_dependency(project, self.role)
        return resource


class _Build(Construct):
    """A CodeBuild project with a role, a log group and a source directory of its own."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        source: assets.Asset,
        buildspec: str,
        variables: dict[str, str],
        content_hash: str,
        privileged: bool,
        log_retention_days: int,
    ) -> None:
        super().__init__(scope, id_)
        logs = log_group(self, "Logs", retention_days=log_retention_days)
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        logs.grant_write(self.role)
        logs.grant(runner.role, "logs:GetLogEvents")
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
                compute_type=codebuild.ComputeType.SMALL,
                privileged=privileged,
            ),
            environment_variables={
                name: codebuild.BuildEnvironmentVariable(value=value) for name, value in variables.items()
            },
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=logs)),
            timeout=_BUILD_TIMEOUT,
            queued_timeout=_QUEUE_TIMEOUT,
        )
        self.resource = runner.run(self, "Run", project=project, content_hash=content_hash)
        # With the role goes its policy: a build that starts before it fails.
        self.resource.node.add_dependency(self.role, logs)


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
        bucket: s3.IBucket,
        log_retention_days: int,
    ) -> None:
        source = assets.Asset(
            scope,
            f"{id_}Source",
            path=str(_ROOT / "stacks" / "model_build"),
            exclude=["**/__pycache__"],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        variables = {
            "MODEL_NAME": model.name,
            "MODEL_FILE": model.file,
            "MODEL_BYTES": str(model.bytes),
            "MODEL_SHA256": model.sha256,
            "MODEL_SOURCE": json.dumps(model.source.describe(), sort_keys=True),
        }
        super().__init__(
            scope,
            id_,
            runner=runner,
            source=source,
            buildspec="buildspec.yml",
            variables={**variables, "MODEL_BUCKET": bucket.bucket_name},
            content_hash=_content_hash(source.asset_hash, json.dumps(variables, sort_keys=True)),
            privileged=False,
            log_retention_days=log_retention_days,
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
        self.prefix = self.resource.get_att_string("MODEL_PREFIX")


class ImageBuild(_Build):
    """Builds the adapter's image into the repository; `digest` is what an endpoint runs."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        runner: BuildRunner,
        base_image: BaseImage,
        repository: ecr.IRepository,
        log_retention_days: int,
    ) -> None:
        # The context of the build, what it installs, and the script that runs it: nothing else decides the image.
        source = assets.Asset(
            scope,
            f"{id_}Source",
            path=str(_ROOT),
            exclude=[
                "*",
                "!container",
                "!requirements",
                "requirements/*",
                "!requirements/build.txt",
                "!requirements/container.txt",
                "!stacks",
                "stacks/*",
                "!stacks/image_build",
                "**/__pycache__",
            ],
            ignore_mode=cdk.IgnoreMode.DOCKER,
        )
        content_hash = _content_hash(source.asset_hash, base_image.reference, base_image.binding_commit)
        super().__init__(
            scope,
            id_,
            runner=runner,
            source=source,
            buildspec="stacks/image_build/buildspec.yml",
            variables={
                "REPOSITORY_NAME": repository.repository_name,
                "REPOSITORY_URI": repository.repository_uri,
                "IMAGE_TAG": content_hash,
                "BASE_IMAGE": base_image.reference,
                "BINDING_COMMIT": base_image.binding_commit,
            },
            content_hash=content_hash,
            privileged=True,
            log_retention_days=log_retention_days,
        )
        repository.grant_pull_push(self.role)
        self.digest = self.resource.get_att_string("IMAGE_DIGEST")
