"""How an endpoint's instances follow its load: real-time ones by concurrent requests, asynchronous ones by backlog.

L1, because the L2 target makes a role that SageMaker does not use: scaling has a service-linked one.
"""

import aws_cdk as cdk
from aws_cdk import aws_applicationautoscaling as autoscaling
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.config import Asynchronous, Scaling

_POLICY = autoscaling.CfnScalingPolicy


def scale_by_requests(
    scope: Construct, endpoint: sagemaker.CfnEndpoint, *, variant: str, min_instances: int, scaling: Scaling
) -> None:
    """Keep the concurrent requests per instance near the target."""
    target = _target(scope, endpoint, variant, min_instances, scaling.max_instances)
    if scaling.schedule:
        target.scheduled_actions = [
            autoscaling.CfnScalableTarget.ScheduledActionProperty(
                scheduled_action_name=f"scheduled-{number}",
                schedule=action.schedule,
                timezone=action.timezone,
                scalable_target_action=autoscaling.CfnScalableTarget.ScalableTargetActionProperty(
                    min_capacity=action.min_instances, max_capacity=action.max_instances
                ),
            )
            for number, action in enumerate(scaling.schedule, start=1)
        ]
    _POLICY(
        scope,
        "ScalingPolicy",
        policy_name=f"{variant}-concurrent-requests",
        policy_type="TargetTrackingScaling",
        scaling_target_id=target.attr_id,
        target_tracking_scaling_policy_configuration=_POLICY.TargetTrackingScalingPolicyConfigurationProperty(
            target_value=scaling.concurrent_requests,
            scale_in_cooldown=scaling.scale_in_cooldown_seconds,
            scale_out_cooldown=scaling.scale_out_cooldown_seconds,
            predefined_metric_specification=_POLICY.PredefinedMetricSpecificationProperty(
                predefined_metric_type="SageMakerVariantConcurrentRequestsPerModelHighResolution"
            ),
        ),
    )


def scale_by_backlog(
    scope: Construct, endpoint: sagemaker.CfnEndpoint, *, variant: str, endpoint_name: str, scaling: Asynchronous
) -> None:
    """Keep the backlog per instance near the target, and no instance where there is no backlog."""
    target = _target(scope, endpoint, variant, 0, scaling.max_instances)
    dimensions = {"EndpointName": endpoint_name}
    _POLICY(
        scope,
        "ScalingPolicy",
        policy_name=f"{variant}-backlog",
        policy_type="TargetTrackingScaling",
        scaling_target_id=target.attr_id,
        target_tracking_scaling_policy_configuration=_POLICY.TargetTrackingScalingPolicyConfigurationProperty(
            target_value=scaling.backlog_per_instance,
            scale_in_cooldown=scaling.scale_in_cooldown_seconds,
            scale_out_cooldown=scaling.scale_out_cooldown_seconds,
            customized_metric_specification=_POLICY.CustomizedMetricSpecificationProperty(
                namespace="AWS/SageMaker",
                metric_name="ApproximateBacklogSizePerInstance",
                statistic="Average",
                dimensions=[
                    _POLICY.MetricDimensionProperty(name=name, value=value) for name, value in dimensions.items()
                ],
            ),
        ),
    )
    # Per instance there is no number where there is no instance: the first one is started by an alarm of its own.
    first = _POLICY(
        scope,
        "FirstInstancePolicy",
        policy_name=f"{variant}-first-instance",
        policy_type="StepScaling",
        scaling_target_id=target.attr_id,
        step_scaling_policy_configuration=_POLICY.StepScalingPolicyConfigurationProperty(
            adjustment_type="ChangeInCapacity",
            metric_aggregation_type="Average",
            cooldown=scaling.scale_out_cooldown_seconds,
            step_adjustments=[_POLICY.StepAdjustmentProperty(metric_interval_lower_bound=0, scaling_adjustment=1)],
        ),
    )
    cloudwatch.CfnAlarm(
        scope,
        "BacklogWithoutInstance",
        alarm_description=f"{endpoint_name}: requests wait and no instance runs; starts the first",
        namespace="AWS/SageMaker",
        metric_name="HasBacklogWithoutCapacity",
        dimensions=[cloudwatch.CfnAlarm.DimensionProperty(name=n, value=v) for n, v in dimensions.items()],
        statistic="Average",
        period=int(cdk.Duration.minutes(1).to_seconds()),
        evaluation_periods=1,
        threshold=1,
        comparison_operator="GreaterThanOrEqualToThreshold",
        treat_missing_data="notBreaching",
        alarm_actions=[first.ref],
    )


def _target(
    scope: Construct, endpoint: sagemaker.CfnEndpoint, variant: str, min_instances: int, max_instances: int
) -> autoscaling.CfnScalableTarget:
    return autoscaling.CfnScalableTarget(
        scope,
        "ScalableTarget",
        service_namespace="sagemaker",
        scalable_dimension="sagemaker:variant:DesiredInstanceCount",
        resource_id=f"endpoint/{endpoint.attr_endpoint_name}/variant/{variant}",
        min_capacity=min_instances,
        max_capacity=max_instances,
    )
