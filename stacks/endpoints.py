"""The stateless stack: builds, and the SageMaker endpoints that serve what they made."""

import aws_cdk as cdk
from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.builds import BuildRunner, ImageBuild, ModelBuild
from stacks.config import DecisionEndpoint, Environment, Scaling
from stacks.logs import log_group

# Part of the scaling target's name and of every metric: the same in all endpoints, for ever.
_VARIANT = "main"


class EndpointsStack(cdk.Stack):
    """One model, one image, and every endpoint of the environment that runs them."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        env: cdk.Environment,
        environment_config: Environment,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
    ) -> None:
        super().__init__(scope, id_, env=env, description="Decision endpoints and the builds behind them")
        config = environment_config
        runner = BuildRunner(self, "BuildRunner", log_retention_days=config.log_retention_days)
        model = ModelBuild(
            self,
            "ModelBuild",
            runner=runner,
            model=config.model,
            bucket=bucket,
            log_retention_days=config.log_retention_days,
        )
        image = ImageBuild(
            self,
            "ImageBuild",
            runner=runner,
            base_image=config.base_image,
            repository=repository,
            log_retention_days=config.log_retention_days,
        )
        cdk.CfnOutput(self, "ModelPrefix", value=model.prefix, description="Where the model lies in the bucket")
        cdk.CfnOutput(self, "ImageDigest", value=image.digest, description="The image that the endpoints run")
        for endpoint in config.endpoints:
            title = "".join(part.capitalize() for part in endpoint.name.split("-"))
            Endpoint(
                self,
                f"{title}Endpoint",
                config=endpoint,
                endpoint_name=config.endpoint_name(endpoint),
                image_uri=repository.repository_uri_for_digest(image.digest),
                model_uri=bucket.s3_url_for_object(model.prefix),
                bucket=bucket,
                repository=repository,
                log_retention_days=config.log_retention_days,
            )
            cdk.CfnOutput(
                self, f"{title}EndpointName", value=config.endpoint_name(endpoint), description="What callers invoke"
            )


class Endpoint(Construct):
    """A SageMaker endpoint that runs the adapter's image over the model in the bucket."""

    def __init__(
        self,
        scope: Construct,
        id_: str,
        *,
        config: DecisionEndpoint,
        endpoint_name: str,
        image_uri: str,
        model_uri: str,
        bucket: s3.IBucket,
        repository: ecr.IRepository,
        log_retention_days: int,
    ) -> None:
        super().__init__(scope, id_)
        logs = log_group(
            self, "Logs", retention_days=log_retention_days, name=f"/aws/sagemaker/Endpoints/{endpoint_name}"
        )
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"))
        # Every model, not only this one: while an update runs, the old configuration may still start instances.
        role.add_to_policy(
            iam.PolicyStatement(actions=["s3:GetObject"], resources=[bucket.arn_for_objects("models/*")])
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["s3:ListBucket"],
                resources=[bucket.bucket_arn],
                conditions={"StringLike": {"s3:prefix": "models/*"}},
            )
        )
        repository.grant_pull(role)
        logs.grant_write(role)
        role.add_to_policy(
            iam.PolicyStatement(
                actions=["cloudwatch:PutMetricData"],
                resources=["*"],
                conditions={"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Endpoints"}},
            )
        )
        model = sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=role.role_arn,
            enable_network_isolation=True,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=image_uri,
                environment=dict(config.environment),
                # Files as they are: a GGUF hardly compresses, and unpacking costs start-up time.
                model_data_source=sagemaker.CfnModel.ModelDataSourceProperty(
                    s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
                        s3_uri=model_uri, s3_data_type="S3Prefix", compression_type="None"
                    )
                ),
            ),
        )
        # The role's ARN alone does not wait for its policy.
        model.node.add_dependency(role)
        # No name on model and configuration: every property of theirs is create-only, so a change replaces them.
        endpoint_config = sagemaker.CfnEndpointConfig(
            self, "Config", production_variants=[_variant(config, model.attr_model_name)]
        )
        endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=endpoint_name,
            endpoint_config_name=endpoint_config.attr_endpoint_config_name,
            # Without it a deploy resets the number of instances that scaling chose.
            retain_all_variant_properties=config.scaling is not None,
        )
        endpoint.node.add_dependency(logs)
        if config.scaling is not None:
            _scale(self, endpoint, minimum=config.instances, scaling=config.scaling)


def _variant(config: DecisionEndpoint, model_name: str) -> sagemaker.CfnEndpointConfig.ProductionVariantProperty:
    """The one production variant: a plain instance type, or an ordered pool of types."""
    pool = [
        sagemaker.CfnEndpointConfig.InstancePoolProperty(instance_type=instance_type, priority=priority)
        for priority, instance_type in enumerate(config.instance_pool, start=1)
    ]
    return sagemaker.CfnEndpointConfig.ProductionVariantProperty(
        variant_name=_VARIANT,
        model_name=model_name,
        initial_instance_count=config.instances,
        initial_variant_weight=1,
        instance_type=config.instance_type,
        instance_pools=pool or None,
        variant_instance_provision_timeout_in_seconds=config.provision_timeout_seconds if pool else None,
        container_startup_health_check_timeout_in_seconds=config.startup_timeout_seconds,
        model_data_download_timeout_in_seconds=config.download_timeout_seconds,
        routing_config=sagemaker.CfnEndpointConfig.RoutingConfigProperty(routing_strategy="LEAST_OUTSTANDING_REQUESTS"),
    )


def _scale(scope: Construct, endpoint: sagemaker.CfnEndpoint, *, minimum: int, scaling: Scaling) -> None:
    """Keep the concurrent requests per instance near the target.

    L1, because the L2 target makes a role that SageMaker does not use: scaling has a service-linked one.
    """
    target = autoscaling.CfnScalableTarget(
        scope,
        "ScalableTarget",
        service_namespace="sagemaker",
        scalable_dimension="sagemaker:variant:DesiredInstanceCount",
        resource_id=f"endpoint/{endpoint.attr_endpoint_name}/variant/{_VARIANT}",
        min_capacity=minimum,
        max_capacity=scaling.max_instances,
    )
    autoscaling.CfnScalingPolicy(
        scope,
        "ScalingPolicy",
        policy_name=f"{_VARIANT}-concurrent-requests",
        policy_type="TargetTrackingScaling",
        scaling_target_id=target.attr_id,
        target_tracking_scaling_policy_configuration=(
            autoscaling.CfnScalingPolicy.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=scaling.concurrent_requests,
                scale_in_cooldown=scaling.scale_in_cooldown_seconds,
                scale_out_cooldown=scaling.scale_out_cooldown_seconds,
                predefined_metric_specification=autoscaling.CfnScalingPolicy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type="SageMakerVariantConcurrentRequestsPerModelHighResolution"
                ),
            )
        ),
    )
