"""Builds the stacks of one environment, or the pipeline that deploys environments, and wires them."""

import aws_cdk as cdk

from stacks.artifacts import ArtifactsStack
from stacks.config import PREFIX, Environment, environment_named
from stacks.delivery import Pipeline
from stacks.endpoints import EndpointsStack
from stacks.pipeline import PipelineStack
from stacks.sagemaker_endpoint import expiring_prefixes


def build(app: cdk.App, environment: Environment) -> tuple[ArtifactsStack, EndpointsStack]:
    """Add the environment's two stacks to the app: what holds data apart from what does not."""
    # An environment that fixes neither leaves both open, which keeps the template free of lookups.
    target = cdk.Environment(account=environment.account, region=environment.region)
    artifacts = ArtifactsStack(
        app,
        f"{PREFIX}-{environment.name}-artifacts",
        env=target,
        removable=environment.removable,
        log_retention_days=environment.log_retention_days,
        customer_managed_key=environment.customer_managed_key,
        expiring_prefixes=expiring_prefixes(environment),
    )
    endpoints = EndpointsStack(
        app,
        f"{PREFIX}-{environment.name}-endpoints",
        env=target,
        environment_config=environment,
        bucket=artifacts.bucket,
        repository=artifacts.repository,
        key=artifacts.key,
    )
    for stack in (artifacts, endpoints):
        cdk.Tags.of(stack).add("project", PREFIX)
        cdk.Tags.of(stack).add("environment", environment.name)
    return artifacts, endpoints


def build_pipeline(app: cdk.App, pipeline: Pipeline) -> PipelineStack:
    """Add the stack that delivers the pipeline's two environments. Raises ConfigError where it cannot."""
    stack = PipelineStack(
        app,
        f"{PREFIX}-pipeline",
        pipeline=pipeline,
        staging=environment_named(pipeline.staging),
        production=environment_named(pipeline.production),
    )
    cdk.Tags.of(stack).add("project", PREFIX)
    return stack
