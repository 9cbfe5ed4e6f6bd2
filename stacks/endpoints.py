"""The stateless stack: builds, the SageMaker endpoints that serve what they made, and what watches them."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from aws_cdk import aws_sns as sns
from constructs import Construct

from stacks.alarms import AlarmTopic, EndpointAlarms
from stacks.build_runner import BuildRunner
from stacks.builds import AdapterImageBuild, BaseImageCopy, ModelBuild
from stacks.config import PREFIX, DecisionEndpoint, Endpoint, Environment, TextEndpoint
from stacks.containers import variables
from stacks.dashboard import EnvironmentDashboard, Shown
from stacks.logs import Logs
from stacks.metrics import EndpointMetrics
from stacks.rollout import RolloutCheck
from stacks.sagemaker_endpoint import VARIANT, SageMakerEndpoint

_MODEL_DATA = sagemaker.CfnModel.ModelDataSourceProperty


class EndpointsStack(cdk.Stack):
    """One model, the images of each kind of instance, and every endpoint of the environment that runs them."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        env: cdk.Environment,
        environment_config: Environment,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, id_, env=env, description="Decision endpoints and the builds behind them")
        config = environment_config
        logs = Logs(retention_days=config.log_retention_days, key=key)
        runner = BuildRunner(self, "BuildRunner", logs=logs)
        check = RolloutCheck(self, "RolloutCheck", logs=logs)
        model_data = _build_model(self, config, runner=runner, bucket=bucket, key=key, logs=logs)
        images = {
            on_gpu: _Images(self, config, on_gpu=on_gpu, runner=runner, repository=repository, logs=logs)
            for on_gpu in sorted({endpoint.on_gpu for endpoint in config.endpoints})
        }
        topic = None
        if any(endpoint.alarms for endpoint in config.endpoints):
            topic = AlarmTopic(self, "Alarms", email=config.alarm_email, key=key).topic
        shown: list[Shown] = []
        alarms: list[cloudwatch.IAlarm] = []
        for endpoint in config.endpoints:
            title = "".join(part.capitalize() for part in endpoint.name.split("-"))
            name = config.endpoint_name(endpoint)
            metrics = EndpointMetrics(endpoint_name=name, variant_name=VARIANT)
            its_alarms = _alarms(self, f"{title}Alarms", endpoint, metrics=metrics, topic=topic)
            served = SageMakerEndpoint(
                self,
                f"{title}Endpoint",
                config=endpoint,
                endpoint_name=name,
                image_uri=images[endpoint.on_gpu].uri_for(endpoint),
                variables=variables(endpoint, endpoint_name=name, model=config.model),
                model_data=model_data if _takes_artifact(endpoint) else None,
                bucket=bucket,
                repository=repository,
                key=key,
                logs=logs,
                rollback_alarms=its_alarms.rollback if its_alarms else [],
            )
            if its_alarms is not None:
                its_alarms.grant_describe(served.role)
                its_alarms.wait_for(served.resource)
                alarms.extend(its_alarms.all)
            check.check(
                served,
                "RolloutCheck",
                config=endpoint,
                endpoint=served.resource,
                endpoint_config_name=served.endpoint_config.attr_endpoint_config_name,
                endpoint_arn=served.arn,
            )
            shown.append(_shown(endpoint, metrics, served))
            cdk.CfnOutput(self, f"{title}EndpointName", value=name, description="What callers invoke")
            cdk.CfnOutput(
                self,
                f"{title}EndpointInvokePolicy",
                value=served.invoke_policy.managed_policy_arn,
                description="The policy of whoever may invoke it",
            )
        EnvironmentDashboard(self, "Dashboard", name=f"{PREFIX}-{config.name}", endpoints=shown, alarms=alarms)


def _takes_artifact(endpoint: Endpoint) -> bool:
    """Whether the endpoint serves the environment's model."""
    return not (isinstance(endpoint, TextEndpoint) and endpoint.hub_model)


def _build_model(
    stack: cdk.Stack,
    config: Environment,
    *,
    runner: BuildRunner,
    bucket: s3.IBucket,
    key: kms.IKey | None,
    logs: Logs,
) -> sagemaker.CfnModel.ModelDataSourceProperty | None:
    """Package the model, and say where its files lie; None where no endpoint takes it."""
    if not any(map(_takes_artifact, config.endpoints)):
        return None
    model = ModelBuild(
        stack,
        "ModelBuild",
        runner=runner,
        model=config.model,
        archive=config.model_archive,
        calibrations=config.calibrations,
        bucket=bucket,
        key=key,
        logs=logs,
    )
    cdk.CfnOutput(stack, "ModelPrefix", value=model.prefix, description="Where the model lies in the bucket")
    uri = bucket.s3_url_for_object(model.prefix)
    kind = ("S3Object", "Gzip") if config.model_archive else ("S3Prefix", "None")
    return _MODEL_DATA(
        s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
            s3_uri=f"{uri}model.tar.gz" if config.model_archive else uri,
            s3_data_type=kind[0],
            compression_type=kind[1],
        )
    )


class _Images:
    """The images of one kind of instance, in the account's own repository."""

    def __init__(
        self,
        stack: cdk.Stack,
        config: Environment,
        *,
        on_gpu: bool,
        runner: BuildRunner,
        repository: ecr.IRepository,
        logs: Logs,
    ) -> None:
        """Copy the base, and build the adapter's image on it where a decision endpoint needs it."""
        kind = "Gpu" if on_gpu else "Cpu"
        base_image = config.base_images.gpu if on_gpu else config.base_images.cpu
        self._repository = repository
        self._base = BaseImageCopy(
            stack, f"{kind}BaseImage", runner=runner, base_image=base_image, repository=repository, logs=logs
        ).digest
        cdk.CfnOutput(stack, f"{kind}BaseImageDigest", value=self._base, description="What text endpoints run")
        self._adapter: str | None = None
        if any(isinstance(e, DecisionEndpoint) and e.on_gpu == on_gpu for e in config.endpoints):
            self._adapter = AdapterImageBuild(
                stack,
                f"{kind}AdapterImage",
                runner=runner,
                base_image=base_image,
                base_digest=self._base,
                repository=repository,
                logs=logs,
            ).digest
            cdk.CfnOutput(
                stack, f"{kind}AdapterImageDigest", value=self._adapter, description="What decision endpoints run"
            )

    def uri_for(self, endpoint: Endpoint) -> str:
        """The image of such an endpoint, by digest."""
        digest = self._adapter if isinstance(endpoint, DecisionEndpoint) else self._base
        assert digest is not None  # noqa: S101  built above, where there is a decision endpoint
        return self._repository.repository_uri_for_digest(digest)


def _alarms(
    stack: cdk.Stack, id_: str, endpoint: Endpoint, *, metrics: EndpointMetrics, topic: sns.ITopic | None
) -> EndpointAlarms | None:
    if endpoint.alarms is None or topic is None:
        return None
    return EndpointAlarms(
        stack,
        id_,
        metrics=metrics,
        thresholds=endpoint.alarms,
        decides=isinstance(endpoint, DecisionEndpoint),
        has_gpu=endpoint.on_gpu,
        # Without work an asynchronous endpoint has none.
        min_instances=0 if endpoint.asynchronous else endpoint.instances,
        topic=topic,
    )


def _shown(endpoint: Endpoint, metrics: EndpointMetrics, served: SageMakerEndpoint) -> Shown:
    return Shown(
        metrics=metrics,
        log_group_name=served.log_group.log_group_name,
        decides=isinstance(endpoint, DecisionEndpoint),
        has_gpu=endpoint.on_gpu,
        instance_types=endpoint.instance_types,
    )
