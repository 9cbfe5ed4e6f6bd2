"""What a container is told: the environment variables of each kind of endpoint."""

from stacks.config import DecisionEndpoint, Endpoint, TextEndpoint
from stacks.metrics import ADAPTER_NAMESPACE
from stacks.models import Model

_MODEL_DIR = "/opt/ml/model"

# The adapter's default, and what 32 vCPUs evaluate of the default model well within SageMaker's minute.
_MIN_CONTEXT_TOKENS = 8192
_CONTEXT_TOKENS_PER_VCPU = 256
_MAX_CONTEXT_TOKENS = 32_768

# Writing takes all of a CPU: an answer at a time for every 8 vCPUs. A GPU writes several for the price of one.
_VCPUS_PER_ANSWER = 8
_MAX_PARALLEL = 4

# llama.cpp's server has no word for "all"; no model has so many.
_ALL_LAYERS = "999"


def variables(endpoint: Endpoint, *, endpoint_name: str, model: Model) -> dict[str, str]:
    """The container's environment variables, those given in the endpoint's `environment` included."""
    if isinstance(endpoint, TextEndpoint):
        return {**_text_variables(endpoint, model), **endpoint.environment}
    return {**_decision_variables(endpoint, endpoint_name), **endpoint.environment}


def _decision_variables(endpoint: DecisionEndpoint, endpoint_name: str) -> dict[str, str]:
    return {
        "SEMIF_THREADS": str(_threads(endpoint)),
        "SEMIF_MAX_TOKENS": str(_context_tokens(endpoint)),
        **({"SEMIF_N_GPU_LAYERS": "-1"} if endpoint.on_gpu else {}),
        # Its metrics' dimension, which SageMaker does not tell the container.
        "SEMIF_ENDPOINT_NAME": endpoint_name,
        "SEMIF_EMF_NAMESPACE": ADAPTER_NAMESPACE,
    }


def _text_variables(endpoint: TextEndpoint, model: Model) -> dict[str, str]:
    if endpoint.hub_model is None:
        # Named, because a second GGUF in the artifact could win the image's own search.
        source = {"MODEL": f"{_MODEL_DIR}/{model.file}", "ALIAS": model.name}
    else:
        source = {"HF_REPO": endpoint.hub_model.repository, "HF_FILE": endpoint.hub_model.file}
    parallel = endpoint.parallel or _parallel(endpoint)
    settings = {
        **source,
        "THREADS": str(_threads(endpoint)),
        # The server divides it among the answers that it writes at a time.
        "CTX_SIZE": str(_context_tokens(endpoint) * parallel),
        "PARALLEL": str(parallel),
        "METRICS": "true",
        **({"N_GPU_LAYERS": _ALL_LAYERS} if endpoint.on_gpu else {}),
    }
    return {f"SM_LLAMA_CPP_{name}": value for name, value in settings.items()}


def _threads(endpoint: Endpoint) -> int:
    return endpoint.threads or endpoint.vcpus


def _context_tokens(endpoint: Endpoint) -> int:
    by_vcpus = endpoint.vcpus * _CONTEXT_TOKENS_PER_VCPU
    return endpoint.context_tokens or min(max(by_vcpus, _MIN_CONTEXT_TOKENS), _MAX_CONTEXT_TOKENS)


def _parallel(endpoint: TextEndpoint) -> int:
    if endpoint.on_gpu:
        return _MAX_PARALLEL
    return min(max(endpoint.vcpus // _VCPUS_PER_ANSWER, 1), _MAX_PARALLEL)
