"""The pipeline's stack: each commit is tested, deployed to one environment, verified, approved, deployed to the next.

It does what a person does with `cdk deploy`, and may do less: the steps that deploy can only assume the roles of CDK's
bootstrap, those that verify can only invoke. What is deployed is synthesised once, before the first deploy.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_codepipeline_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.artifacts import tame_emptying
from stacks.checks import ConfigError
from stacks.config import DecisionEndpoint, Environment
from stacks.delivery import Pipeline
from stacks.logs import Logs

_ROOT = Path(__file__).resolve().parent.parent
_LOGS = Logs(retention_days=90)
_ARTIFACT_DAYS = 30
# The repository's checks want Debian, a compiler, and the right to install a browser.
_TEST_IMAGE = codebuild.LinuxBuildImage.from_docker_registry("public.ecr.aws/docker/library/python:3.12-bookworm")
_RUNTIMES = {"nodejs": "22", "python": "3.12"}
# CodeBuild's default is one hour, its limit eight. The checks compile llama.cpp; a deploy waits for its endpoints.
_TEST_TIMEOUT = cdk.Duration.hours(2)
_DEPLOY_TIMEOUT = cdk.Duration.hours(4)


class PipelineStack(cdk.Stack):
    """One pipeline, its steps, and the bucket through which they hand on what they made."""

    def __init__(
        self, scope: Construct, id_: str, *, pipeline: Pipeline, staging: Environment, production: Environment
    ) -> None:
        super().__init__(scope, id_, description="Delivers the decision endpoints of one environment after the other")
        for environment in (staging, production):
            _check_account(pipeline, environment)
        self._bucket = s3.Bucket(
            self,
            "Artifacts",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[s3.LifecycleRule(id="old-artifacts", expiration=cdk.Duration.days(_ARTIFACT_DAYS))],
            auto_delete_objects=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
        tame_emptying(self._bucket, _LOGS)
        self._role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codepipeline.amazonaws.com"))
        self._role.add_to_policy(
            iam.PolicyStatement(actions=[pipeline.use_connection], resources=[pipeline.connection_arn])
        )
        # The connection sets the bucket's owner as the owner of what it writes.
        writing = ("s3:PutObject", "s3:PutObjectAcl")
        _grant_artifacts(self._role, self._bucket, "s3:GetObject", "s3:GetObjectVersion", *writing)
        source, assembly = codepipeline.Artifact("Source"), codepipeline.Artifact("Assembly")
        owner, _, name = pipeline.repository.rpartition("/")
        fetch = actions.CodeStarConnectionsSourceAction(
            action_name="Source",
            connection_arn=pipeline.connection_arn,
            owner=owner,
            repo=name,
            branch=pipeline.branch,
            output=source,
        )
        approve = actions.ManualApprovalAction(
            action_name="Approve",
            additional_information=f"{staging.name} is deployed and has been verified. Deploy to {production.name}?",
        )
        codepipeline.Pipeline(
            self,
            "Pipeline",
            artifact_bucket=self._bucket,
            cross_account_keys=False,
            # One commit after the other: a newer one does not push aside what waits for its approval.
            execution_mode=codepipeline.ExecutionMode.QUEUED,
            pipeline_type=codepipeline.PipelineType.V2,
            # CDK would add more than is used, and a role for every step besides.
            role=self._role.without_policy_updates(),
            use_pipeline_role_for_actions=True,
            stages=[
                codepipeline.StageProps(stage_name="Source", actions=[fetch]),
                codepipeline.StageProps(stage_name="Test", actions=[self._test(source)]),
                codepipeline.StageProps(
                    stage_name="Synth", actions=[self._synth(source, assembly, (staging, production))]
                ),
                codepipeline.StageProps(stage_name=_title(staging), actions=self._deliver(assembly, staging)),
                codepipeline.StageProps(stage_name="Approve", actions=[approve]),
                codepipeline.StageProps(stage_name=_title(production), actions=self._deliver(assembly, production)),
            ],
        )

    def _test(self, source: codepipeline.Artifact) -> actions.CodeBuildAction:
        step = _Step(
            self,
            "Test",
            bucket=self._bucket,
            commands=["bash .ci/run", "make audit"],
            image=_TEST_IMAGE,
            compute_type=codebuild.ComputeType.LARGE,
            timeout=_TEST_TIMEOUT,
        )
        return self._action("Test", step, source)

    def _synth(
        self, source: codepipeline.Artifact, assembly: codepipeline.Artifact, environments: Sequence[Environment]
    ) -> actions.CodeBuildAction:
        """The cloud assembly of each environment, with the assets, and what verifies it beside them."""
        step = _Step(
            self,
            "Synth",
            bucket=self._bucket,
            commands=[
                "python3 -m pip install --quiet --require-hashes -r requirements/cdk.txt",
                _install_cdk_cli(),
                *(f"cdk synth --quiet -c env={e.name} --output assembly/{e.name}" for e in environments),
                "cp -R stacks/verification assembly/",
            ],
            makes="assembly",
        )
        return self._action("Synth", step, source, makes=assembly)

    def _deliver(self, assembly: codepipeline.Artifact, environment: Environment) -> Sequence[codepipeline.IAction]:
        """Deploy the environment, then ask what it serves."""
        deploy = _Step(
            self,
            f"Deploy{_title(environment)}",
            bucket=self._bucket,
            commands=[_install_cdk_cli(), f"cdk deploy --app {environment.name} --all --require-approval never --ci"],
            statements=[iam.PolicyStatement(actions=["sts:AssumeRole"], resources=_bootstrap_roles(self, environment))],
            timeout=_DEPLOY_TIMEOUT,
        )
        endpoints = [endpoint for endpoint in environment.endpoints if endpoint.asynchronous is None]
        names = [environment.endpoint_name(endpoint) for endpoint in endpoints]
        asked = [
            {
                "name": name,
                "kind": "decision" if isinstance(endpoint, DecisionEndpoint) else "text",
                "model_sha256": environment.model.sha256,
            }
            for name, endpoint in zip(names, endpoints, strict=True)
        ]
        verify = _Step(
            self,
            f"Verify{_title(environment)}",
            bucket=self._bucket,
            commands=["python3 verification/verify.py"],
            variables={
                "ENDPOINTS": json.dumps(asked),
                **({"AWS_DEFAULT_REGION": environment.region} if environment.region else {}),
            },
            statements=[
                iam.PolicyStatement(
                    actions=["sagemaker:InvokeEndpoint"],
                    resources=[
                        self.format_arn(
                            service="sagemaker", region=environment.region, resource="endpoint", resource_name=name
                        )
                        for name in names
                    ],
                )
            ],
        )
        return [
            self._action("Deploy", deploy, assembly, run_order=1),
            self._action("Verify", verify, assembly, run_order=2),
        ]

    def _action(
        self,
        name: str,
        step: "_Step",
        takes: codepipeline.Artifact,
        *,
        makes: codepipeline.Artifact | None = None,
        run_order: int | None = None,
    ) -> actions.CodeBuildAction:
        self._role.add_to_policy(
            iam.PolicyStatement(
                actions=["codebuild:StartBuild", "codebuild:BatchGetBuilds"], resources=[step.project.project_arn]
            )
        )
        return actions.CodeBuildAction(
            action_name=name,
            project=step.project,
            input=takes,
            outputs=[makes] if makes else None,
            run_order=run_order,
        )


class _Step(Construct):
    """A CodeBuild project with a role and a log group of its own.

    Its commands are part of the pipeline, not of the commit that it delivers: a commit cannot change what deploys it.
    """

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        bucket: s3.IBucket,
        commands: Sequence[str],
        image: codebuild.IBuildImage | None = None,
        compute_type: codebuild.ComputeType = codebuild.ComputeType.SMALL,
        variables: Mapping[str, str] | None = None,
        statements: Sequence[iam.PolicyStatement] = (),
        makes: str | None = None,
        timeout: cdk.Duration | None = None,
    ) -> None:
        """`image`: one without CodeBuild's runtimes; `makes`: the folder that the step hands on."""
        super().__init__(scope, id_)
        logs = _LOGS.group(self, "Logs")
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("codebuild.amazonaws.com"))
        logs.grant_write(role)
        _grant_artifacts(role, bucket, "s3:GetObject", "s3:GetObjectVersion", *(["s3:PutObject"] if makes else []))
        for statement in statements:
            role.add_to_policy(statement)
        buildspec: dict[str, Any] = {"version": "0.2", "phases": {"build": {"commands": list(commands)}}}
        if image is None:
            buildspec["phases"]["install"] = {"runtime-versions": _RUNTIMES}
        if makes is not None:
            buildspec["artifacts"] = {"base-directory": makes, "files": ["**/*"]}
        self.project = codebuild.PipelineProject(
            self,
            "Project",
            role=role.without_policy_updates(),
            build_spec=codebuild.BuildSpec.from_object(buildspec),
            environment=codebuild.BuildEnvironment(
                build_image=image or codebuild.LinuxBuildImage.AMAZON_LINUX_2023_5, compute_type=compute_type
            ),
            environment_variables={
                name: codebuild.BuildEnvironmentVariable(value=value) for name, value in (variables or {}).items()
            },
            logging=codebuild.LoggingOptions(cloud_watch=codebuild.CloudWatchLoggingOptions(log_group=logs)),
            timeout=timeout,
        )
        # Without its policy a step that starts early fails.
        self.project.node.add_dependency(role)


def _check_account(pipeline: Pipeline, environment: Environment) -> None:
    """InvokeEndpoint takes a name, not an ARN: what verifies has to be in the endpoint's account."""
    account = pipeline.connection_arn.split(":")[4]
    if environment.account not in (None, account):
        raise ConfigError(
            f"Environment {environment.name!r}: account is {environment.account!r}; allowed in a pipeline: None, or "
            f"{account}, which has the connection: the endpoints can be verified from nowhere else"
        )


def _bootstrap_roles(stack: cdk.Stack, environment: Environment) -> list[str]:
    """The roles that `cdk bootstrap` made for those who deploy: one asks CloudFormation, one uploads the assets."""
    account, region = environment.account or stack.account, environment.region or stack.region
    qualifier = cdk.DefaultStackSynthesizer.DEFAULT_QUALIFIER
    return [
        stack.format_arn(
            service="iam",
            region="",
            account=account,
            resource="role",
            resource_name=f"cdk-{qualifier}-{kind}-role-{account}-{region}",
        )
        for kind in ("deploy", "file-publishing")
    ]


def _grant_artifacts(role: iam.Role, bucket: s3.IBucket, *object_actions: str) -> None:
    role.add_to_policy(iam.PolicyStatement(actions=list(object_actions), resources=[bucket.arn_for_objects("*")]))
    role.add_to_policy(
        iam.PolicyStatement(actions=["s3:GetBucketAcl", "s3:GetBucketLocation"], resources=[bucket.bucket_arn])
    )


def _install_cdk_cli() -> str:
    """The version that this repository uses; it has no dependencies that could move."""
    version = json.loads((_ROOT / "package.json").read_text())["devDependencies"]["aws-cdk"]
    return f"npm install --global --silent aws-cdk@{version}"


def _title(environment: Environment) -> str:
    return environment.name.capitalize()
