"""What an environment may be, and what the refusal of anything else says."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stacks import config
from stacks.config import (
    DEV,
    LOCAL,
    QWEN35_4B,
    SMOLLM2_135M,
    BaseImage,
    ConfigError,
    DecisionEndpoint,
    HuggingFaceFile,
    Model,
    PyPIFile,
    Scaling,
    environment_named,
)

ENDPOINT = DecisionEndpoint(name="decision", instance_type="ml.c6i.xlarge")
HUB_FILE = HuggingFaceFile(repository="a/b", revision="0" * 40, path="m.gguf")


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
    refused(lambda: environment_named(name), "known environments: dev, local")


@pytest.mark.parametrize("environment", [LOCAL, DEV])
def test_a_known_environment_is_found_by_its_name(environment: config.Environment) -> None:
    assert environment_named(environment.name) is environment


def test_the_shipped_models_are_the_published_files() -> None:
    assert (SMOLLM2_135M.file, SMOLLM2_135M.bytes) == ("SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432)
    assert (QWEN35_4B.file, QWEN35_4B.bytes) == ("Qwen_Qwen3.5-4B-Q4_K_M.gguf", 3_013_027_808)
    assert LOCAL.model is SMOLLM2_135M
    assert DEV.model is QWEN35_4B


def test_nothing_can_be_changed_after_the_check() -> None:
    with pytest.raises(FrozenInstanceError):
        ENDPOINT.instance_type = "ml.c6g.xlarge"  # type: ignore[misc]
    variables = {"SEMIF_THREADS": "2"}
    endpoint = replace(ENDPOINT, environment=variables)
    variables["PATH"] = "/"
    assert dict(endpoint.environment) == {"SEMIF_THREADS": "2"}
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
    "type_",
    ["ml.c6i.8xlarge", "ml.m5.large", "ml.r5.2xlarge", "ml.c7i.48xlarge", "ml.m5d.xlarge", "ml.c5n.xlarge"],
)
def test_x86_cpu_types_may_serve(type_: str) -> None:
    assert replace(ENDPOINT, instance_type=type_).instance_type == type_


@pytest.mark.parametrize(
    "type_",
    [
        "c6i.xlarge",
        "ml.c6i",
        "ml.c6g.xlarge",
        "ml.c7gn.xlarge",
        "ml.r8gd.large",
        "ml.g5.xlarge",
        "ml.c6i.xlarge ",
        "ml.inf2.xlarge",
    ],
)
def test_other_types_may_not(type_: str) -> None:
    refused(lambda: replace(ENDPOINT, instance_type=type_), "instance_type", repr(type_), "x86-64 CPU type")
    pool = ("ml.c6i.xlarge", type_)
    refused(lambda: replace(ENDPOINT, instance_type=None, instance_pool=pool), "instance_pool", repr(type_))


@given(st.lists(st.sampled_from([f"ml.{f}.xlarge" for f in ("c5", "c6i", "c7i", "m5", "m6i", "r5")]), max_size=7))
def test_a_pool_has_one_to_five_different_types(types: list[str]) -> None:
    def pooled() -> DecisionEndpoint:
        return replace(ENDPOINT, instance_type=None, instance_pool=tuple(types))

    if 1 <= len(types) <= 5 and len(set(types)) == len(types):
        assert pooled().instance_pool == tuple(types)
    else:
        refused(pooled)


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("startup_timeout_seconds", 60, 3600),
        ("download_timeout_seconds", 60, 3600),
        ("provision_timeout_seconds", 300, 3600),
        ("instances", 1, 100),
    ],
)
@given(value=st.one_of(st.integers(min_value=-10, max_value=5000), st.booleans(), st.floats()))
def test_numbers_have_bounds(field: str, low: int, high: int, value: Any) -> None:
    changes: dict[str, Any] = {field: value}
    if type(value) is int and low <= value <= high:
        assert getattr(replace(ENDPOINT, **changes), field) == value
    else:
        refused(lambda: replace(ENDPOINT, **changes), field, repr(value), str(low), str(high))


def test_scaling_needs_room_above_the_minimum() -> None:
    scaling = Scaling(max_instances=3, concurrent_requests=4)
    assert replace(ENDPOINT, instances=2, scaling=scaling).scaling == scaling
    refused(lambda: replace(ENDPOINT, instances=3, scaling=scaling), "scaling.max_instances", "more than instances (3)")
    refused(lambda: Scaling(max_instances=1, concurrent_requests=4), "Scaling.max_instances", "from 2 to 100")


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({"PATH": "/"}, ("'PATH'", "SEMIF_")),
        ({"SEMIF_threads": "2"}, ("'SEMIF_threads'", "upper-case")),
        ({"SEMIF_API_KEY": "hush"}, ("'SEMIF_API_KEY'", "secret")),
        ({"SEMIF_THREADS": 2}, ("SEMIF_THREADS", "2", "a string")),
        ({"SEMIF_X": "a" * 1025}, ("SEMIF_X", "at most 1024")),
        ({f"SEMIF_{number}": "" for number in range(101)}, ("101 variables", "at most 100")),
    ],
)
def test_an_endpoints_variables_are_the_adapters_and_no_secret(variables: Any, parts: tuple[str, ...]) -> None:
    refused(lambda: replace(ENDPOINT, environment=variables), "'decision': environment", *parts)


def test_the_refusal_of_a_secret_does_not_repeat_it() -> None:
    with pytest.raises(ConfigError) as raised:
        replace(ENDPOINT, environment={"SEMIF_API_KEY": "hush"})
    assert "hush" not in str(raised.value)


@given(st.text(max_size=40))
def test_an_endpoints_name_fits_into_sagemakers(name: str) -> None:
    try:
        endpoint = replace(ENDPOINT, name=name)
    except ConfigError:
        return
    full = replace(LOCAL, endpoints=(endpoint,)).endpoint_name(endpoint)
    assert re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", full)


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
        (lambda: replace(SMOLLM2_135M, sha256="B" * 64), ("Model.sha256", "64 lower-case hexadecimal digits")),
        (lambda: replace(SMOLLM2_135M, bytes=0), ("Model.bytes", "0", "from 4 to")),
        (lambda: Model(name="m", source="m.gguf", bytes=9, sha256="0" * 64), ("Model.source", "a HuggingFaceFile")),  # type: ignore[arg-type]
        (
            lambda: BaseImage(repository="a.b/c", digest="latest", binding_commit="0" * 40),
            ("BaseImage.digest", "'latest'", "sha256:"),
        ),
        (
            lambda: BaseImage(repository="a.b/c:v1", digest="sha256:" + "0" * 64, binding_commit="0" * 40),
            ("BaseImage.repository", "without a tag"),
        ),
        (lambda: replace(LOCAL, name="Local"), ("Environment.name", "'Local'", "lower-case")),
        (lambda: replace(LOCAL, log_retention_days=2), ("'local': log_retention_days", "2", "1, 3, 5, 7")),
        (lambda: replace(LOCAL, account="1234"), ("'local': account", "'1234'", "12 digits")),
        (lambda: replace(LOCAL, region="Frankfurt"), ("'local': region", "'Frankfurt'")),
        (lambda: replace(LOCAL, removable="yes"), ("'local': removable", "'yes'", "True, False")),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_names_field_value_and_what_is_allowed(make: Any, parts: tuple[str, ...]) -> None:
    refused(make, *parts)
