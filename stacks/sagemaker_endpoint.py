"""One SageMaker endpoint: role, model, configuration, log group, and who may invoke it."""

from collections.abc import Mapping, Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.config import Endpoint, Environment, TextEndpoint, Vpc
from stacks.instances import GPU_AMI, has_local_disk
from stacks.logs import Logs
from stacks.rollout import deployment_config
from stacks.scaling import scale_by_backlog, scale_by_requests

# Part of the scaling target's name and of every metric: the same in all endpoints, for ever.
VARIANT = "main"

_CONFIG = sagemaker.CfnEndpointConfig


def expiring_prefixes(environment: Environment) -> dict[str, int]:
    """Where the environment's endpoints put callers' data into the bucket, and after how many days it goes."""
    days: dict[str, int] = {}
    for endpoint in environment.endpoints:
        name = environment.endpoint_name(endpoint)
        if endpoint.data_capture is not None:
            days[_capture_prefix(name)] = endpoint.data_capture.retention_days
        if endpoint.asynchronous is not None:
            days[_asynchronous_prefix(name)] = endpoint.asynchronous.retention_days
    return days


def _capture_prefix(endpoint_name: str) -> str:
    return f"data-capture/{endpoint_name}/"


def _asynchronous_prefix(endpoint_name: str) -> str:
    return f"asynchronous/{endpoint_name}/"


class SageMakerEndpoint(Construct):
    """An image over a model, under a stable name."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: Endpoint,
        endpoint_name: str,
        image_uri: str,
        variables: Mapping[str, str],
        model_data: sagemaker.CfnModel.ModelDataSourceProperty | None,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        key: kms.IKey | None,
        logs: Logs,
        rollback_alarms: Sequence[cloudwatch.IAlarm],
    ) -> None:
        """`model_data`: None where the container fetches its model itself."""
        super().__init__(scope, id_)
        self.config = config
        self._name = endpoint_name
        self._bucket = bucket
        self._key = key
        self.arn = cdk.Stack.of(self).format_arn(service="sagemaker", resource="endpoint", resource_name=endpoint_name)
        self.log_group = logs.group(self, "Logs", name=f"/aws/sagemaker/Endpoints/{endpoint_name}")
        self.role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"))
        repository.grant_pull(self.role)
        self.log_group.grant_write(self.role)
        self._grant_metrics()
        if model_data is not None:
            self._grant_model()
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=self.role.role_arn,
            enable_network_isolation=config.network_isolation,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=image_uri, environment=dict(variables), model_data_source=model_data
            ),
            vpc_config=self._vpc(config.vpc) if config.vpc else None,
        )
        # The role's ARN alone does not wait for its policy.
        model.node.add_dependency(self.role)
        # No name on model and configuration: every property of theirs is create-only, so a change replaces them.
        self.endpoint_config = _CONFIG(
            self,
            "Config",
            production_variants=[_variant(config, model.attr_model_name)],
            kms_key_id=self._volume_key(),
            data_capture_config=self._data_capture(),
            # On by default: AWS would scrape the container's /metrics into a store of its own, and bill it.
            metrics_config=_CONFIG.MetricsConfigProperty(enable_detailed_observability=False),
            async_inference_config=self._asynchronous(),
        )
        self.resource = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=endpoint_name,
            endpoint_config_name=self.endpoint_config.attr_endpoint_config_name,
            # Without it a deploy resets the number of instances that scaling chose.
            retain_all_variant_properties=config.scaling is not None or config.asynchronous is not None,
            deployment_config=deployment_config(config.rollout, rollback_alarms),
        )
        self.resource.node.add_dependency(self.log_group, self.role)
        if config.scaling is not None:
            scale_by_requests(
                self, self.resource, variant=VARIANT, min_instances=config.instances, scaling=config.scaling
            )
        if config.asynchronous is not None:
            scale_by_backlog(
                self, self.resource, variant=VARIANT, endpoint_name=endpoint_name, scaling=config.asynchronous
            )
        self.invoke_policy = self._invoke_policy()

    def _grant_metrics(self) -> None:
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["cloudwatch:PutMetricData"],
                resources=["*"],
                conditions={"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Endpoints"}},
            )
        )

    def _grant_model(self) -> None:
        # Every model, not only this one: while an update runs, the old configuration may still start instances.
        self.role.add_to_policy(
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[self._bucket.arn_for_objects("models/*")])
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[self._bucket.bucket_arn],
                conditions={"StringLike": {"s3:prefix": "models/*"}},
            )
        )
        self._grant_key("kms:Decrypt")

    def _grant_key(self, *actions: str) -> None:
        if self._key is not None:
            self.role.add_to_policy(iam.PolicyStatement(actions=list(actions), resources=[self._key.key_arn]))

    def _vpc(self, vpc: Vpc) -> sagemaker.CfnModel.VpcConfigProperty:
        """The model's VPC, with the rights that SageMaker's developer guide lists for CreateModel in one."""
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "ec2:CreateNetworkInterface",
                    "ec2:CreateNetworkInterfacePermission",
                    "ec2:DeleteNetworkInterface",
                    "ec2:DeleteNetworkInterfacePermission",
                    "ec2:DescribeDhcpOptions",
                    "ec2:DescribeNetworkInterfaces",
                    "ec2:DescribeSecurityGroups",
                    "ec2:DescribeSubnets",
                    "ec2:DescribeVpcs",
                ],
                resources=["*"],
            )
        )
        return sagemaker.CfnModel.VpcConfigProperty(
            subnets=list(vpc.subnet_ids), security_group_ids=list(vpc.security_group_ids)
        )

    def _volume_key(self) -> str | None:
        """The key of the instances' volumes; types with a disk of their own, encrypted by its hardware, refuse one."""
        if self._key is None or any(map(has_local_disk, self.config.instance_types)):
            return None
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["kms:CreateGrant"],
                resources=[self._key.key_arn],
                conditions={"Bool": {"kms:GrantIsForAWSResource": "true"}},
            )
        )
        self._grant_key("kms:DescribeKey")
        return self._key.key_arn

    def _data_capture(self) -> sagemaker.CfnEndpointConfig.DataCaptureConfigProperty | None:
        capture = self.config.data_capture
        if capture is None:
            return None
        prefix = _capture_prefix(self._name)
        self.role.add_to_policy(
            iam.PolicyStatement(actions=["s3:PutObject"], resources=[self._bucket.arn_for_objects(f"{prefix}*")])
        )
        self._grant_key("kms:GenerateDataKey")
        return _CONFIG.DataCaptureConfigProperty(
            enable_capture=True,
            initial_sampling_percentage=capture.percent,
            destination_s3_uri=self._bucket.s3_url_for_object(prefix.rstrip("/")),
            kms_key_id=self._key.key_arn if self._key else None,
            capture_options=[_CONFIG.CaptureOptionProperty(capture_mode=mode) for mode in ("Input", "Output")],
            capture_content_type_header=_CONFIG.CaptureContentTypeHeaderProperty(
                json_content_types=["application/json"]
            ),
        )

    def _asynchronous(self) -> sagemaker.CfnEndpointConfig.AsyncInferenceConfigProperty | None:
        asynchronous = self.config.asynchronous
        if asynchronous is None:
            return None
        prefix = _asynchronous_prefix(self._name)
        self.role.add_to_policy(
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[self._bucket.arn_for_objects(f"{prefix}input/*")])
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:PutObject"],
                resources=[self._bucket.arn_for_objects(f"{prefix}{part}/*") for part in ("output", "failure")],
            )
        )
        self._grant_key("kms:Decrypt", "kms:GenerateDataKey")
        return _CONFIG.AsyncInferenceConfigProperty(
            client_config=_CONFIG.AsyncInferenceClientConfigProperty(
                max_concurrent_invocations_per_instance=asynchronous.concurrent_requests
            ),
            output_config=_CONFIG.AsyncInferenceOutputConfigProperty(
                s3_output_path=self._bucket.s3_url_for_object(f"{prefix}output"),
                s3_failure_path=self._bucket.s3_url_for_object(f"{prefix}failure"),
                kms_key_id=self._key.key_arn if self._key else None,
            ),
        )

    def _invoke_policy(self) -> iam.ManagedPolicy:
        """What a caller needs to use this endpoint, and nothing else."""
        policy = iam.ManagedPolicy(self, "Invoke", description=f"Invoke the endpoint {self._name}, and nothing else")
        if self.config.asynchronous is None:
            actions = ["sagemaker:InvokeEndpoint"]
            if isinstance(self.config, TextEndpoint):
                actions.append("sagemaker:InvokeEndpointWithResponseStream")
            policy.add_statements(iam.PolicyStatement(actions=actions, resources=[self.arn]))
            return policy
        # Requests and answers are objects: to invoke it is to write the one and to read the other.
        prefix = _asynchronous_prefix(self._name)
        policy.add_statements(
            iam.PolicyStatement(actions=["sagemaker:InvokeEndpointAsync"], resources=[self.arn]),
            iam.PolicyStatement(actions=["s3:PutObject"], resources=[self._bucket.arn_for_objects(f"{prefix}input/*")]),
            iam.PolicyStatement(
                actions=["s3:GetObject"],
                resources=[self._bucket.arn_for_objects(f"{prefix}{part}/*") for part in ("output", "failure")],
            ),
        )
        if self._key is not None:
            policy.add_statements(
                iam.PolicyStatement(
                    actions=["kms:Decrypt", "kms:GenerateDataKey"],
                    resources=[self._key.key_arn],
                    conditions={"StringLike": {"kms:ViaService": f"s3.{cdk.Aws.REGION}.amazonaws.com"}},
                )
            )
        return policy


def _variant(config: Endpoint, model_name: str) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
    """The one production variant: a plain instance type, or an ordered pool of types."""
    types = config.instance_types
    pool = [
        _CONFIG.InstancePoolProperty(instance_type=instance_type, priority=priority)
        for priority, instance_type in enumerate(types, start=1)
    ]
    is_pool = len(types) > 1
    return _CONFIG.ProductionVariantProperty(
        variant_name=VARIANT,
        model_name=model_name,
        initial_instance_count=config.instances,
        initial_variant_weight=1,
        instance_type=None if is_pool else types[0],
        instance_pools=pool if is_pool else None,
        variant_instance_provision_timeout_in_seconds=config.provision_timeout_seconds if is_pool else None,
        container_startup_health_check_timeout_in_seconds=config.startup_timeout_seconds,
        model_data_download_timeout_in_seconds=config.download_timeout_seconds,
        inference_ami_version=GPU_AMI if config.on_gpu else None,
        routing_config=_CONFIG.RoutingConfigProperty(routing_strategy="LEAST_OUTSTANDING_REQUESTS"),
    )
