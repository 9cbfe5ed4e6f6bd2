"""What an environment may be, and what the refusal of anything else says."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from aws_cdk import region_info
from hypothesis import given
from hypothesis import strategies as st

from stacks import config, instances
from stacks.checks import ConfigError
from stacks.config import (
    DEV,
    ENVIRONMENTS,
    LOCAL,
    PROD,
    STAGING,
    Asynchronous,
    BlueGreen,
    DataCapture,
    DecisionEndpoint,
    Rolling,
    Scaling,
    ScheduledCapacity,
    TextEndpoint,
    Vpc,
    environment_named,
)
from stacks.images import DLC_ACCOUNTS, LLAMA_CPP, BaseImage
from stacks.instances import GPU_POOL, has_gpu, has_local_disk, vcpus
from stacks.models import QWEN35_4B, SMOLLM2_135M, HubModel, HuggingFaceFile, Model, PyPIFile, Tokenizer

ENDPOINT = DecisionEndpoint(name="decision", instance_type="ml.c6i.xlarge")
TEXT = TextEndpoint(name="text", instance_type="ml.c6i.xlarge")
HUB_FILE = HuggingFaceFile(repository="a/b", revision="0" * 40, path="m.gguf")
SUBNETS = {"subnet_ids": ("subnet-01234567",), "security_group_ids": ("sg-01234567",)}
KNOWN = "known environments: dev, local, prod, staging"


def refused(change: Any, *parts: str) -> None:
    """The change is refused with one line that has every part."""
    with pytest.raises(ConfigError) as raised:
        change()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", ["nope", "Local", "", None])
def test_an_unknown_environment_is_refused_with_the_known_ones(name: str | None) -> None:
    refused(lambda: environment_named(name), KNOWN)


@pytest.mark.parametrize("environment", [LOCAL, DEV, STAGING, PROD])
def test_a_known_environment_is_found_by_its_name(environment: config.Environment) -> None:
    assert environment_named(environment.name) is environment


def test_two_environments_of_one_name_are_refused() -> None:
    refused(lambda: config._by_name([LOCAL, DEV, replace(DEV, name="local")]), "['local', 'dev', 'local']", "once")


def test_the_shipped_models_are_the_published_files() -> None:
    assert (SMOLLM2_135M.file, SMOLLM2_135M.bytes) == ("SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432)
    assert (QWEN35_4B.file, QWEN35_4B.bytes) == ("Qwen_Qwen3.5-4B-Q4_K_M.gguf", 3_013_027_808)
    assert QWEN35_4B.tokenizer == Tokenizer(
        repository="Qwen/Qwen3.5-4B", revision="851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a"
    )
    assert {name: e.model for name, e in ENVIRONMENTS.items()} == {
        "local": SMOLLM2_135M,
        "dev": QWEN35_4B,
        "staging": QWEN35_4B,
        "prod": QWEN35_4B,
    }


def test_the_shipped_environments_have_the_placements_that_they_promise() -> None:
    def placements(environment: config.Environment) -> set[tuple[type, bool]]:
        return {(type(endpoint), endpoint.on_gpu) for endpoint in environment.endpoints}

    assert placements(LOCAL) == placements(DEV) == {(DecisionEndpoint, False)}
    assert placements(STAGING) == {(DecisionEndpoint, False), (DecisionEndpoint, True)}
    assert placements(PROD) == {(k, g) for k in (DecisionEndpoint, TextEndpoint) for g in (False, True)}
    assert all(endpoint.alarms and endpoint.rollout for endpoint in PROD.endpoints)
    assert [environment.name for environment in ENVIRONMENTS.values() if not environment.removable] == ["prod"]


def test_the_table_of_accounts_is_aws_own() -> None:
    """As CDK has it, which knows one region less."""
    known = {
        region.name: region_info.Fact.find(region.name, region_info.FactName.DLC_REPOSITORY_ACCOUNT)
        for region in region_info.RegionInfo.regions
        if region.partition == "aws"
    }
    assert {region: account for region, account in known.items() if account} | {"af-south-1": "626614931356"} == dict(
        DLC_ACCOUNTS
    )


def test_nothing_can_be_changed_after_the_check() -> None:
    with pytest.raises(FrozenInstanceError):
        ENDPOINT.instance_type = "ml.c6g.xlarge"  # type: ignore[misc]
    variables = {"SEMIF_CACHE_BYTES": "2"}
    endpoint = replace(ENDPOINT, environment=variables)
    variables["PATH"] = "/"
    assert dict(endpoint.environment) == {"SEMIF_CACHE_BYTES": "2"}
    with pytest.raises(TypeError):
        endpoint.environment["PATH"] = "/"  # type: ignore[index]


@pytest.mark.parametrize(
    ("type_", "pool"),
    [(None, ()), ("ml.c6i.xlarge", ("ml.c5.xlarge",)), ("", ())],
)
def test_exactly_one_of_type_and_pool(type_: str | None, pool: tuple[str, ...]) -> None:
    refused(
        lambda: replace(ENDPOINT, instance_type=type_, instance_pool=pool),
        "'decision': instance_type and instance_pool",
        repr(pool),
        "exactly one of the two",
    )


@pytest.mark.parametrize(
    ("type_", "gpu", "disk", "vcpu"),
    [
        ("ml.c6i.8xlarge", False, False, 32),
        ("ml.m5.large", False, False, 2),
        ("ml.r5.2xlarge", False, False, 8),
        ("ml.c7i.48xlarge", False, False, 192),
        ("ml.m5d.xlarge", False, True, 4),
        ("ml.c5n.xlarge", False, False, 4),
        ("ml.g4dn.2xlarge", True, True, 8),
        ("ml.g5.xlarge", True, True, 4),
        ("ml.g6.12xlarge", True, True, 48),
        ("ml.g6e.xlarge", True, True, 4),
    ],
)
def test_what_a_types_name_says_of_it(type_: str, gpu: bool, disk: bool, vcpu: int) -> None:
    endpoint = replace(ENDPOINT, instance_type=type_)
    assert (endpoint.instance_types, endpoint.on_gpu, endpoint.vcpus) == ((type_,), gpu, vcpu)
    assert (has_gpu(type_), has_local_disk(type_), vcpus(type_)) == (gpu, disk, vcpu)


@pytest.mark.parametrize(
    "type_",
    [
        "c6i.xlarge",
        "ml.c6i",
        "ml.c6g.xlarge",
        "ml.c7gn.xlarge",
        "ml.r8gd.large",
        "ml.c6i.xlarge ",
        "ml.inf2.xlarge",
        # GPUs for which no host image is known to fit the CUDA image.
        "ml.p3.2xlarge",
        "ml.p5.48xlarge",
        "ml.g5g.xlarge",
    ],
)
def test_other_types_may_not_serve(type_: str) -> None:
    refused(lambda: replace(ENDPOINT, instance_type=type_), "instance_type", repr(type_), "x86-64 CPU type", "g6e")
    pool = ("ml.c6i.xlarge", type_)
    refused(lambda: replace(ENDPOINT, instance_type=None, instance_pool=pool), "instance_pool", repr(type_))


@given(
    st.lists(st.sampled_from([f"ml.{f}.2xlarge" for f in ("c5", "c6i", "c7i", "m5", "g5", "g6e", "r5")]), max_size=7)
)
def test_a_pool_has_one_to_five_different_types_of_one_kind(types: list[str]) -> None:
    def pooled() -> DecisionEndpoint:
        return replace(ENDPOINT, instance_type=None, instance_pool=tuple(types))

    kinds = {type_.startswith("ml.g") for type_ in types}
    if 1 <= len(types) <= 5 and len(set(types)) == len(types) and len(kinds) == 1:
        assert pooled().instance_types == tuple(types)
        assert pooled().on_gpu == kinds.pop()
    else:
        refused(pooled)


def test_the_shipped_pool_is_in_order_of_preference_and_fits_the_host_image() -> None:
    assert GPU_POOL == ("ml.g6e.xlarge", "ml.g6.2xlarge", "ml.g5.2xlarge", "ml.g4dn.2xlarge")
    assert all(map(has_gpu, GPU_POOL))
    assert instances.GPU_AMI == "al2023-ami-sagemaker-inference-gpu-4-1"
    # What every instance of the pool has: 4 vCPUs of the g6e.
    assert replace(ENDPOINT, instance_type=None, instance_pool=GPU_POOL).vcpus == 4


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("startup_timeout_seconds", 60, 3600),
        ("download_timeout_seconds", 60, 3600),
        ("provision_timeout_seconds", 300, 3600),
        ("instances", 1, 100),
        ("threads", 1, 256),
        ("context_tokens", 512, 1_048_576),
        ("parallel", 1, 256),
    ],
)
@given(value=st.one_of(st.integers(min_value=-10, max_value=2**21), st.booleans(), st.floats()))
def test_numbers_have_bounds(field: str, low: int, high: int, value: Any) -> None:
    changes: dict[str, Any] = {field: value}
    if type(value) is int and low <= value <= high:
        assert getattr(replace(TEXT, **changes), field) == value
    else:
        refused(lambda: replace(TEXT, **changes), "TextEndpoint 'text'", field, repr(value), str(low), str(high))


def test_scaling_needs_room_above_the_minimum() -> None:
    scaling = Scaling(max_instances=3, concurrent_requests=4)
    assert replace(ENDPOINT, instances=2, scaling=scaling).scaling == scaling
    refused(lambda: replace(ENDPOINT, instances=3, scaling=scaling), "scaling.max_instances", "more than instances (3)")
    refused(lambda: Scaling(max_instances=1, concurrent_requests=4), "Scaling.max_instances", "from 2 to 100")


@given(
    instances=st.integers(1, 20),
    rollout=st.one_of(
        st.builds(
            BlueGreen,
            traffic=st.sampled_from(["all-at-once", "canary", "linear"]),
            step_percent=st.integers(10, 50),
        ),
        st.builds(Rolling, step_percent=st.integers(5, 50)),
    ),
)
def test_a_step_of_a_rollout_is_one_instance_at_least(instances: int, rollout: BlueGreen | Rolling) -> None:
    def rolled_out() -> DecisionEndpoint:
        return replace(ENDPOINT, instances=instances, rollout=rollout)

    whole = isinstance(rollout, BlueGreen) and rollout.traffic == "all-at-once"
    if whole or instances * rollout.step_percent / 100 >= 1:
        assert rolled_out().rollout == rollout
    else:
        refused(rolled_out, "rollout.step_percent", str(rollout.step_percent), f"{instances} instances", "all-at-once")


def test_an_asynchronous_endpoint_scales_by_its_own_rule() -> None:
    offline = Asynchronous(max_instances=2)
    assert replace(ENDPOINT, instances=2, asynchronous=offline).asynchronous == offline
    refused(lambda: replace(ENDPOINT, instances=3, asynchronous=offline), "asynchronous.max_instances", "2", "(3)")
    scaling = Scaling(max_instances=3, concurrent_requests=4)
    refused(lambda: replace(ENDPOINT, asynchronous=offline, scaling=scaling), "'decision': scaling", "None", "backlog")
    capture = DataCapture(percent=1)
    refused(lambda: replace(ENDPOINT, asynchronous=offline, data_capture=capture), "data_capture", "None")


def test_a_model_from_the_hub_needs_the_network() -> None:
    hub = HubModel(repository="owner/name", file="m.gguf")
    assert replace(TEXT, hub_model=hub, network_isolation=False).hub_model == hub
    refused(
        lambda: replace(TEXT, hub_model=hub), "TextEndpoint 'text': network_isolation is True", "False", "Hugging Face"
    )


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({"PATH": "/"}, ("'PATH'", "SEMIF_")),
        ({"SEMIF_cache": "2"}, ("'SEMIF_cache'", "upper-case")),
        ({"SEMIF_API_KEY": "hush"}, ("'SEMIF_API_KEY'", "secret")),
        ({"SEMIF_THREADS": "2"}, ("'SEMIF_THREADS'", "threads gives this one")),
        ({"SEMIF_N_GPU_LAYERS": "2"}, ("'SEMIF_N_GPU_LAYERS'", "the instance type")),
        ({"SEMIF_CACHE_BYTES": 2}, ("SEMIF_CACHE_BYTES", "2", "a string")),
        ({"SEMIF_X": "a" * 1025}, ("SEMIF_X", "at most 1024")),
        ({f"SEMIF_{number}": "" for number in range(101)}, ("101 variables", "at most 100")),
    ],
)
def test_an_endpoints_variables_are_the_adapters_and_no_secret(variables: Any, parts: tuple[str, ...]) -> None:
    refused(lambda: replace(ENDPOINT, environment=variables), "'decision': environment", *parts)


@pytest.mark.parametrize(
    ("variable", "part"),
    [
        ("SEMIF_CACHE_BYTES", "SM_LLAMA_CPP_"),
        ("SM_LLAMA_CPP_MODEL", "the environment's model"),
        ("SM_LLAMA_CPP_HF_REPO", "hub_model"),
        ("SM_LLAMA_CPP_CTX_SIZE", "context_tokens"),
        ("SM_LLAMA_CPP_PARALLEL", "parallel"),
        ("SM_LLAMA_CPP_API_KEY", "secret"),
        ("SM_LLAMA_CPP_HF_TOKEN", "secret"),
    ],
)
def test_a_text_endpoints_are_llama_cpps(variable: str, part: str) -> None:
    refused(lambda: replace(TEXT, environment={variable: "1"}), "'text': environment", repr(variable), part)


@pytest.mark.parametrize("name", ["SEMIF_API_KEY", "SM_LLAMA_CPP_HF_TOKEN"])
def test_the_refusal_of_a_secret_does_not_repeat_it(name: str) -> None:
    endpoint = ENDPOINT if name.startswith("SEMIF") else TEXT
    with pytest.raises(ConfigError) as raised:
        replace(endpoint, environment={name: "hush"})
    assert "hush" not in str(raised.value)


@given(st.from_regex(r"[a-z0-9A-Z-]{0,34}", fullmatch=True))
def test_an_endpoints_name_fits_into_sagemakers_and_into_logical_ids(name: str) -> None:
    try:
        endpoint = replace(ENDPOINT, name=name)
    except ConfigError:
        return
    full = replace(LOCAL, endpoints=(endpoint,)).endpoint_name(endpoint)
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", full)
    # Two names never share the title that their outputs and logical ids have: it can be taken apart again.
    title = "".join(part.capitalize() for part in name.split("-"))
    assert "-".join(part.lower() for part in re.findall("[A-Z][a-z0-9]*", title)) == name


def test_endpoints_are_at_least_one_and_have_different_names() -> None:
    refused(lambda: replace(LOCAL, endpoints=()), "'local': endpoints", "at least one")
    refused(lambda: replace(LOCAL, endpoints=(ENDPOINT, ENDPOINT)), "'local': endpoints", "every name once")


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: replace(HUB_FILE, revision="main"), ("HuggingFaceFile.revision", "'main'", "40 hexadecimal digits")),
        (lambda: replace(HUB_FILE, repository="model"), ("HuggingFaceFile.repository", "owner/name")),
        (lambda: replace(HUB_FILE, path="../m.gguf/"), ("HuggingFaceFile.path", "ends in .gguf")),
        (lambda: PyPIFile(package="a", version=">=1", path="m.gguf"), ("PyPIFile.version", "one exact version")),
        (lambda: PyPIFile(package="-r x", version="1", path="m.gguf"), ("PyPIFile.package", "'-r x'")),
        (lambda: Tokenizer(repository="a/b", revision="v1"), ("Tokenizer.revision", "'v1'", "no branch")),
        (lambda: HubModel(repository="a", file="m.gguf"), ("HubModel.repository", "owner/name")),
        (lambda: HubModel(repository="a/b", file="m.bin"), ("HubModel.file", "ends in .gguf")),
        (lambda: replace(SMOLLM2_135M, sha256="B" * 64), ("Model.sha256", "64 lower-case hexadecimal digits")),
        (lambda: replace(SMOLLM2_135M, bytes=0), ("Model.bytes", "0", "from 4 to")),
        (lambda: replace(SMOLLM2_135M, tokenizer="a/b"), ("Model.tokenizer", "a Tokenizer, None")),  # type: ignore[arg-type]
        (lambda: Model(name="m", source="m.gguf", bytes=9, sha256="0" * 64), ("Model.source", "a HuggingFaceFile")),  # type: ignore[arg-type]
        (
            lambda: BaseImage(repository="llama-cpp", digest="latest", binding_commit="0" * 40),
            ("BaseImage.digest", "'latest'", "sha256:"),
        ),
        (
            lambda: replace(LLAMA_CPP.cpu, repository="llama-cpp:v1"),
            ("BaseImage.repository", "without registry and tag"),
        ),
        (lambda: replace(LLAMA_CPP.cpu, binding_commit="main"), ("BaseImage.binding_commit", "'main'")),
        (lambda: BlueGreen(traffic="fast"), ("BlueGreen.traffic", "'fast'", "all-at-once, canary, linear")),
        (lambda: BlueGreen(step_percent=51), ("BlueGreen.step_percent", "51", "from 10 to 50")),
        (lambda: Rolling(step_percent=4), ("Rolling.step_percent", "4", "from 5 to 50")),
        (lambda: DataCapture(percent=0), ("DataCapture.percent", "0", "from 1 to 100")),
        (lambda: Asynchronous(max_instances=0), ("Asynchronous.max_instances", "0", "from 1 to 100")),
        (
            lambda: ScheduledCapacity(schedule="every day", min_instances=1, max_instances=1),
            ("ScheduledCapacity.schedule", "'every day'", "cron(...)"),
        ),
        (
            lambda: ScheduledCapacity(schedule="at(2026-12-24T00:00:00)", min_instances=0, max_instances=1),
            ("ScheduledCapacity.min_instances", "0", "from 1 to"),
        ),
        (
            lambda: ScheduledCapacity(schedule="rate(1 day)", min_instances=3, max_instances=2),
            ("ScheduledCapacity.max_instances", "2", "from 3 to"),
        ),
        (lambda: Vpc(**{**SUBNETS, "subnet_ids": ()}), ("Vpc.subnet_ids", "1 to 16")),
        (lambda: Vpc(**{**SUBNETS, "subnet_ids": ("vpc-01234567",)}), ("Vpc.subnet_ids", "'vpc-01234567'", "subnet-")),
        (lambda: Vpc(**{**SUBNETS, "security_group_ids": ("sg-1",)}), ("Vpc.security_group_ids", "'sg-1'")),
        (lambda: replace(ENDPOINT, name="1st"), ("DecisionEndpoint.name", "'1st'", "begin with a letter")),
        (lambda: replace(ENDPOINT, network_isolation="no"), ("network_isolation", "'no'", "True, False")),  # type: ignore[arg-type]
        (lambda: replace(ENDPOINT, alarms=1), ("'decision': alarms", "Thresholds, None")),  # type: ignore[arg-type]
        (lambda: replace(LOCAL, name="Local"), ("Environment.name", "'Local'", "lower-case")),
        (lambda: replace(LOCAL, log_retention_days=2), ("'local': log_retention_days", "2", "1, 3, 5, 7")),
        (lambda: replace(LOCAL, account="1234"), ("'local': account", "'1234'", "12 digits")),
        (lambda: replace(LOCAL, region="eu-mars-1"), ("'local': region", "'eu-mars-1'", "eu-central-1")),
        (lambda: replace(LOCAL, alarm_email="me"), ("'local': alarm_email", "'me'", "address")),
        (lambda: replace(LOCAL, removable="yes"), ("'local': removable", "'yes'", "True, False")),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(make: Any, parts: tuple[str, ...]) -> None:
    refused(make, *parts)


CALIBRATIONS = "tests/stacks/calibrations/options.json"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"calibrations": "../x.json"}, ("calibrations is '../x.json'", "JSON file in this repository")),
        ({"calibrations": "/etc/x.json"}, ("calibrations is '/etc/x.json'",)),
        ({"calibrations": "a/*.json"}, ("calibrations is 'a/*.json'",)),
        ({"calibrations": "a/../../x.json"}, ("calibrations is 'a/../../x.json'",)),
        ({"calibrations": 3}, ("calibrations is 3",)),
        (
            {"calibrations": "nowhere.json"},
            ("Environment 'local': calibrations", "nowhere.json cannot be read: No such"),
        ),
        ({"calibrations": "package.json"}, ("package.json: ", "'name' must be an object with its 'temperature'")),
        (
            {"calibrations": CALIBRATIONS, "model": QWEN35_4B},
            ("'support' was fitted for the model with sha256 b179c952", f"this one has sha256 {QWEN35_4B.sha256}"),
        ),
        (
            {"endpoints": (replace(ENDPOINT, environment={"SEMIF_CALIBRATION": "support"}),)},
            ("endpoint 'decision': SEMIF_CALIBRATION is 'support'", "none, because"),
        ),
        (
            {
                "calibrations": CALIBRATIONS,
                "endpoints": (replace(ENDPOINT, environment={"SEMIF_CALIBRATION": "suport"}),),
            },
            ("endpoint 'decision': SEMIF_CALIBRATION is 'suport'; allowed: support",),
        ),
    ],
)
def test_calibrations_are_a_file_that_fits_the_model_and_holds_what_is_named(
    change: dict[str, Any], parts: tuple[str, ...]
) -> None:
    refused(lambda: replace(LOCAL, **change), *parts)
