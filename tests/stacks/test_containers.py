"""What a container is told, and what of it follows from the instance type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.settings import load_settings
from stacks.config import ENVIRONMENTS, DecisionEndpoint, TextEndpoint
from stacks.containers import variables
from stacks.instances import GPU_POOL
from stacks.models import QWEN35_4B, HubModel

SIZES = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge")
VCPUS = dict(zip(SIZES, (2, 4, 8, 16, 32, 48, 96, 192), strict=True))
NAME = "decision-endpoints-x-y"


def told(endpoint: DecisionEndpoint | TextEndpoint) -> dict[str, str]:
    return variables(endpoint, endpoint_name=NAME, model=QWEN35_4B)


def test_a_decision_endpoint_on_a_cpu() -> None:
    assert told(DecisionEndpoint(name="d", instance_type="ml.c6i.8xlarge")) == {
        "SEMIF_THREADS": "32",
        "SEMIF_MAX_TOKENS": "8192",
        "SEMIF_ENDPOINT_NAME": NAME,
        "SEMIF_EMF_NAMESPACE": "DecisionEndpoints",
    }


def test_a_decision_endpoint_on_gpus_has_all_layers_there() -> None:
    found = told(DecisionEndpoint(name="d", instance_pool=GPU_POOL))
    assert found["SEMIF_N_GPU_LAYERS"] == "-1"
    # What every type of the pool has.
    assert found["SEMIF_THREADS"] == "4"


def test_a_text_endpoint_on_a_cpu() -> None:
    assert told(TextEndpoint(name="t", instance_type="ml.c6i.4xlarge")) == {
        "SM_LLAMA_CPP_MODEL": "/opt/ml/model/Qwen_Qwen3.5-4B-Q4_K_M.gguf",
        "SM_LLAMA_CPP_ALIAS": "Qwen3.5-4B",
        "SM_LLAMA_CPP_THREADS": "16",
        "SM_LLAMA_CPP_CTX_SIZE": "16384",
        "SM_LLAMA_CPP_PARALLEL": "2",
        "SM_LLAMA_CPP_METRICS": "true",
    }


def test_a_text_endpoint_on_gpus_has_all_layers_there() -> None:
    found = told(TextEndpoint(name="t", instance_pool=GPU_POOL))
    assert found["SM_LLAMA_CPP_N_GPU_LAYERS"] == "999"
    assert (found["SM_LLAMA_CPP_PARALLEL"], found["SM_LLAMA_CPP_CTX_SIZE"]) == ("4", "32768")


def test_a_model_from_the_hub_takes_the_place_of_the_file() -> None:
    hub = HubModel(repository="owner/name", file="m.gguf")
    found = told(TextEndpoint(name="t", instance_type="ml.g5.xlarge", hub_model=hub, network_isolation=False))
    assert (found["SM_LLAMA_CPP_HF_REPO"], found["SM_LLAMA_CPP_HF_FILE"]) == ("owner/name", "m.gguf")
    assert "SM_LLAMA_CPP_MODEL" not in found


@given(
    size=st.sampled_from(SIZES),
    threads=st.none() | st.integers(1, 256),
    context=st.none() | st.integers(512, 100_000),
    parallel=st.none() | st.integers(1, 16),
)
def test_what_is_given_wins_and_the_rest_follows_from_the_vcpus(
    size: str, threads: int | None, context: int | None, parallel: int | None
) -> None:
    vcpus, type_ = VCPUS[size], f"ml.c6i.{size}"
    tokens = context or min(max(8192, 256 * vcpus), 32_768)
    decision = told(DecisionEndpoint(name="d", instance_type=type_, threads=threads, context_tokens=context))
    assert (decision["SEMIF_THREADS"], decision["SEMIF_MAX_TOKENS"]) == (str(threads or vcpus), str(tokens))
    writing = told(
        TextEndpoint(name="t", instance_type=type_, threads=threads, context_tokens=context, parallel=parallel)
    )
    answers = parallel or min(max(vcpus // 8, 1), 4)
    assert writing["SM_LLAMA_CPP_THREADS"] == str(threads or vcpus)
    assert writing["SM_LLAMA_CPP_PARALLEL"] == str(answers)
    # Each answer has the whole context to itself.
    assert writing["SM_LLAMA_CPP_CTX_SIZE"] == str(tokens * answers)


def test_further_settings_are_added() -> None:
    endpoint = DecisionEndpoint(name="d", instance_type="ml.c6i.large", environment={"SEMIF_CACHE_BYTES": "0"})
    assert told(endpoint)["SEMIF_CACHE_BYTES"] == "0"
    writing = TextEndpoint(name="t", instance_type="ml.c6i.large", environment={"SM_LLAMA_CPP_BATCH_SIZE": "64"})
    assert told(writing)["SM_LLAMA_CPP_BATCH_SIZE"] == "64"


@pytest.mark.parametrize("name", sorted(ENVIRONMENTS))
def test_the_adapter_takes_what_it_is_told(name: str) -> None:
    environment = ENVIRONMENTS[name]
    for endpoint in environment.endpoints:
        if isinstance(endpoint, DecisionEndpoint):
            full = environment.endpoint_name(endpoint)
            settings = load_settings(variables(endpoint, endpoint_name=full, model=environment.model))
            assert (settings.threads, settings.endpoint_name) == (endpoint.vcpus, full)
            assert settings.n_gpu_layers == (-1 if endpoint.on_gpu else 0)
