"""What follows from an instance type's name: vCPUs, whether there is a GPU, the host image that its GPU needs."""

import re

from stacks.checks import require_match

# A CPU image is built for x86-64: a 'g' behind the generation is Graviton, which cannot run it.
_CPU_TYPE = r"ml\.(?:c|m|r)\d(?!\w*g)[a-z-]*\.(?:large|\d*xlarge)"
# The hosts on which the AMI below is known to start a container with CUDA 13.
_GPU_TYPE = r"ml\.(?:g4dn|g5|g6|g6e)\.\d*xlarge"
_ALLOWED = (
    "an x86-64 CPU type of the families c, m, r, such as ml.c6i.8xlarge, "
    "or a GPU type of the families g4dn, g5, g6, g6e, such as ml.g6e.xlarge"
)

# Driver 580, CUDA 13. The default host of g4dn and g5 has driver 470: a CUDA 13 image does not start on it
# (CannotStartContainerError), or runs on the CPU and nobody notices.
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"

# One GPU each, in order of preference: 48 GB, 24 GB, 24 GB, 16 GB of GPU memory.
GPU_POOL = ("ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlarge", "ml.g4dn.2xlarge")


def check_instance_type(where: str, instance_type: str) -> None:
    """Raise ConfigError for a type on which neither image runs."""
    require_match(f"{_CPU_TYPE}|{_GPU_TYPE}", where, instance_type, _ALLOWED)


def has_gpu(instance_type: str) -> bool:
    """Whether the type has a GPU that the CUDA image uses."""
    return re.fullmatch(_GPU_TYPE, instance_type) is not None


def has_local_disk(instance_type: str) -> bool:
    """Whether the type brings its own encrypted disk: SageMaker refuses a key for the volume of such a type."""
    return has_gpu(instance_type) or re.match(r"ml\.[a-z]+\d+[a-z]*d", instance_type) is not None


def vcpus(instance_type: str) -> int:
    """The type's vCPUs: in all families that may serve, `large` has 2 and `Nxlarge` has 4 N."""
    size = instance_type.rpartition(".")[2]
    if size == "large":
        return 2
    return 4 * int(size.removesuffix("xlarge") or 1)
