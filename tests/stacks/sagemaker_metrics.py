"""The metrics that SageMaker publishes of an endpoint, as AWS documents them: what an alarm may watch.

Sources, in the SageMaker AI developer guide: "Amazon SageMaker AI metrics in Amazon CloudWatch" (endpoint metrics and
endpoint invocation metrics; those of inference components, multi-model and serverless endpoints are left out), and
"Deploy to multiple instance types with instance pools" (the dimension InstanceType).
"""

from __future__ import annotations

DOCUMENTED: dict[str, dict[str, str]] = {
    "AWS/SageMaker": {
        "ConcurrentRequestsPerModel": "Min, Max",
        "Invocation4XXErrors": "Average, Sum",
        "Invocation5XXErrors": "Average, Sum",
        "InvocationModelErrors": "Average, Sum",
        "Invocations": "Sum",
        "InvocationsPerInstance": "Sum",
        "ModelLatency": "Average, Sum, Min, Max, Sample Count, Percentiles",  # microseconds
        "OverheadLatency": "Average, Sum, Min, Max, Sample Count",  # microseconds
    },
    # No statistics are named for these; each is a percentage, reported every minute.
    "/aws/sagemaker/Endpoints": {
        "CPUUtilization": "",
        "DiskUtilization": "",
        "GPUMemoryUtilization": "",
        "GPUUtilization": "",
        "MemoryUtilization": "",
    },
}
DIMENSIONS = ({"EndpointName", "VariantName"}, {"EndpointName", "VariantName", "InstanceType"})
_NAMES = {"Average": "Average", "Sum": "Sum", "Minimum": "Min", "Maximum": "Max", "SampleCount": "Sample Count"}


def is_documented(namespace: str, name: str, statistic: str) -> bool:
    """Whether SageMaker publishes such a metric and the statistic means something."""
    valid = DOCUMENTED.get(namespace, {}).get(name)
    if valid is None:
        return False
    return valid == "" or _NAMES.get(statistic, "Percentiles") in valid.split(", ")
