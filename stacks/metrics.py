"""The metrics that alarms and the dashboard read: SageMaker's own, and those that the adapter embeds in its log.

SageMaker's are listed in its developer guide, "Amazon SageMaker AI metrics in Amazon CloudWatch"; with a pool of types
each exists per InstanceType too ("Deploy to multiple instance types with instance pools").
"""

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

# What the adapter is told to call the namespace of its metrics (SEMIF_EMF_NAMESPACE).
ADAPTER_NAMESPACE = "DecisionEndpoints"
MICROSECONDS = 1_000_000

_MINUTE = cdk.Duration.minutes(1)


@dataclass(frozen=True, kw_only=True)
class EndpointMetrics:
    """The metrics of one endpoint, by its name: they exist before the endpoint does, and outlive it."""

    endpoint_name: str
    variant_name: str

    def invocation(
        self, name: str, statistic: str, *, period: cdk.Duration = _MINUTE, label: str | None = None
    ) -> cloudwatch.Metric:
        """What SageMaker measures of each call; latencies in microseconds."""
        return self._sagemaker("AWS/SageMaker", name, statistic, period=period, label=label)

    def utilization(
        self,
        name: str,
        statistic: str,
        *,
        period: cdk.Duration = _MINUTE,
        label: str | None = None,
        instance_type: str | None = None,
    ) -> cloudwatch.Metric:
        """What every instance reports once a minute, in percent; of one type of a pool, or of all instances."""
        return self._sagemaker(
            "/aws/sagemaker/Endpoints", name, statistic, period=period, label=label, instance_type=instance_type
        )

    def adapter(
        self, name: str, statistic: str, *, period: cdk.Duration = _MINUTE, label: str | None = None
    ) -> cloudwatch.Metric:
        """What the adapter of a decision endpoint reports twice a minute, with requests or without."""
        return cloudwatch.Metric(
            namespace=ADAPTER_NAMESPACE,
            metric_name=name,
            dimensions_map={"EndpointName": self.endpoint_name},
            statistic=statistic,
            period=period,
            label=label,
        )

    def _sagemaker(
        self,
        namespace: str,
        name: str,
        statistic: str,
        *,
        period: cdk.Duration,
        label: str | None,
        instance_type: str | None = None,
    ) -> cloudwatch.Metric:
        dimensions = {"EndpointName": self.endpoint_name, "VariantName": self.variant_name}
        if instance_type is not None:
            dimensions["InstanceType"] = instance_type
        return cloudwatch.Metric(
            namespace=namespace,
            metric_name=name,
            dimensions_map=dimensions,
            statistic=statistic,
            period=period,
            label=label,
        )
