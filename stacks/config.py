"""What differs between environments: one frozen dataclass each, checked when it is made.

An environment of your own is one more `Environment` at the end of this file, and nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from stacks.calibrations import check_calibrations
from stacks.checks import ConfigError, require, require_between, require_match, require_one_of, require_type
from stacks.delivery import Pipeline
from stacks.images import DLC_ACCOUNTS, LLAMA_CPP, BaseImages
from stacks.instances import GPU_POOL, check_instance_type, has_gpu, vcpus
from stacks.models import QWEN35_4B, SMOLLM2_135M, HubModel, Model
from stacks.thresholds import Thresholds

PREFIX = "decision-endpoints"

# SageMaker's own limits: CreateModel (environment), ProductionVariant (time-outs), Endpoint (name, roll-out).
_MAX_ENVIRONMENT_VARIABLES = 100
_MAX_ENVIRONMENT_VALUE = 1024
_ENDPOINT_NAME_MAX = 63
_TIMEOUT_SECONDS = (60, 3600)
_PROVISION_TIMEOUT_SECONDS = (300, 3600)
_WAIT_SECONDS = (0, 3600)
_MAX_POOL_TYPES = 5
_ROOT = Path(__file__).resolve().parent.parent
# The periods that CloudWatch Logs knows, up to a year.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365)


@dataclass(frozen=True, kw_only=True)
class ScheduledCapacity:
    """Other bounds of the number of instances from a point in time on, such as more for the working day."""

    schedule: str
    min_instances: int
    max_instances: int
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        require_match(
            r"(?:cron|rate|at)\([^()]+\)",
            "ScheduledCapacity.schedule",
            self.schedule,
            "cron(...), rate(...) or at(...), as Application Auto Scaling writes them",
        )
        require_match(r"[A-Za-z][\w+/-]*", "ScheduledCapacity.timezone", self.timezone, "a zone such as Europe/Berlin")
        # A real-time endpoint has one instance at least.
        require_between((1, 100), "ScheduledCapacity.min_instances", self.min_instances)
        require_between((self.min_instances, 100), "ScheduledCapacity.max_instances", self.max_instances)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Target tracking of the concurrent requests per instance; the endpoint's `instances` are the minimum."""

    max_instances: int
    concurrent_requests: int
    scale_out_cooldown_seconds: int = 60
    scale_in_cooldown_seconds: int = 600
    schedule: tuple[ScheduledCapacity, ...] = ()

    def __post_init__(self) -> None:
        require_between((2, 100), "Scaling.max_instances", self.max_instances)
        require_between((1, 1000), "Scaling.concurrent_requests", self.concurrent_requests)
        for name in ("scale_out_cooldown_seconds", "scale_in_cooldown_seconds"):
            require_between((0, 3600), f"Scaling.{name}", getattr(self, name))
        require_type(tuple, "Scaling.schedule", self.schedule, "a tuple of ScheduledCapacity")


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Asynchronous invocations for offline work: requests and answers are objects, and no work means no instance."""

    max_instances: int
    # What one instance may have before it, waiting or running, until another starts.
    backlog_per_instance: int = 16
    # How many requests SageMaker sends to one container at a time.
    concurrent_requests: int = 4
    scale_out_cooldown_seconds: int = 60
    scale_in_cooldown_seconds: int = 600
    # Inputs, answers and failures are deleted after this.
    retention_days: int = 7

    def __post_init__(self) -> None:
        require_between((1, 100), "Asynchronous.max_instances", self.max_instances)
        require_between((1, 10_000), "Asynchronous.backlog_per_instance", self.backlog_per_instance)
        require_between((1, 1000), "Asynchronous.concurrent_requests", self.concurrent_requests)
        for name in ("scale_out_cooldown_seconds", "scale_in_cooldown_seconds"):
            require_between((0, 3600), f"Asynchronous.{name}", getattr(self, name))
        require_between((1, 3650), "Asynchronous.retention_days", self.retention_days)


@dataclass(frozen=True, kw_only=True)
class BlueGreen:
    """An update that starts a whole new fleet and moves the traffic over: needs quota for twice the instances."""

    traffic: str = "all-at-once"
    # How much of the fleet is the canary, or one linear step.
    step_percent: int = 50
    # Between two steps, and after the last one: how long the roll-back alarms are watched. They ring after three bad
    # minutes, of which CloudWatch hears a minute or two later.
    wait_seconds: int = 600

    def __post_init__(self) -> None:
        require_one_of(("all-at-once", "canary", "linear"), "BlueGreen.traffic", self.traffic)
        require_between((10, 50), "BlueGreen.step_percent", self.step_percent)
        require_between(_WAIT_SECONDS, "BlueGreen.wait_seconds", self.wait_seconds)

    @property
    def has_steps(self) -> bool:
        """Whether the traffic moves a share at a time."""
        return self.traffic != "all-at-once"


@dataclass(frozen=True, kw_only=True)
class Rolling:
    """An update that replaces a few instances at a time: needs quota for these few only."""

    step_percent: int = 50
    # As with BlueGreen.
    wait_seconds: int = 600
    has_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_between((5, 50), "Rolling.step_percent", self.step_percent)
        require_between(_WAIT_SECONDS, "Rolling.wait_seconds", self.wait_seconds)


@dataclass(frozen=True, kw_only=True)
class DataCapture:
    """A share of requests and answers, callers' texts included, kept in the environment's bucket."""

    percent: int
    retention_days: int = 30

    def __post_init__(self) -> None:
        require_between((1, 100), "DataCapture.percent", self.percent)
        require_between((1, 3650), "DataCapture.retention_days", self.retention_days)


@dataclass(frozen=True, kw_only=True)
class Vpc:
    """Existing subnets and security groups; from there the endpoint must reach S3, say by a gateway endpoint."""

    subnet_ids: tuple[str, ...]
    security_group_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        # CreateModel's limits.
        for name, pattern, limit in (("subnet_ids", "subnet", 16), ("security_group_ids", "sg", 5)):
            ids = getattr(self, name)
            fits = isinstance(ids, tuple) and 1 <= len(ids) <= limit
            require(fits, f"Vpc.{name}", ids, f"a tuple of 1 to {limit} ids")
            for id_ in ids:
                require_match(
                    rf"{pattern}-[0-9a-f]{{8,17}}", f"Vpc.{name}", id_, f"ids such as {pattern}-0123456789abcdef0"
                )


@dataclass(frozen=True, kw_only=True)
class _Endpoint:
    """What decision and text endpoints have in common."""

    name: str
    # Exactly one of the two: one type, or a pool of up to five that SageMaker tries in this order.
    instance_type: str | None = None
    instance_pool: tuple[str, ...] = ()
    # At the start, and the minimum of scaling.
    instances: int = 1
    scaling: Scaling | None = None
    asynchronous: Asynchronous | None = None
    # None takes what the instance type's vCPUs give.
    threads: int | None = None
    # Tokens of the longest prompt (with its answer, where there is one); None takes what the vCPUs can serve in time.
    context_tokens: int | None = None
    # Further settings of the container.
    environment: Mapping[str, str] = field(default_factory=dict)
    network_isolation: bool = True
    vpc: Vpc | None = None
    # None: SageMaker's own, blue/green all at once.
    rollout: BlueGreen | Rolling | None = None
    # With them there are alarms, and a fault or slow answers during an update roll it back.
    alarms: Thresholds | None = None
    data_capture: DataCapture | None = None
    # The container loads the model and answers one decision before it calls itself ready.
    startup_timeout_seconds: int = 900
    download_timeout_seconds: int = 1800
    # How long SageMaker tries one type of a pool before it goes on to the next.
    provision_timeout_seconds: int = 600

    _SETTINGS_PREFIX: ClassVar[str]
    # Settings that a field stands for, and settings that are secrets.
    _SETTING_FIELDS: ClassVar[Mapping[str, str]]
    _SECRETS: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        kind = type(self).__name__
        where = f"{kind} {self.name!r}"
        require_match(
            r"(?=.{1,30}$)[a-z][a-z0-9]*(?:-[a-z][a-z0-9]*)*",
            f"{kind}.name",
            self.name,
            "1 to 30 lower-case letters and digits, in words that begin with a letter and are joined by hyphens",
        )
        self._check_placement(where)
        require_between((1, 100), f"{where}: instances", self.instances)
        self._check_scaling(where)
        if self.threads is not None:
            require_between((1, 256), f"{where}: threads", self.threads)
        if self.context_tokens is not None:
            require_between((512, 1_048_576), f"{where}: context_tokens", self.context_tokens)
        require_type((Thresholds, type(None)), f"{where}: alarms", self.alarms, "Thresholds, None")
        require_type(bool, f"{where}: network_isolation", self.network_isolation, "True, False")
        require_between(_TIMEOUT_SECONDS, f"{where}: startup_timeout_seconds", self.startup_timeout_seconds)
        require_between(_TIMEOUT_SECONDS, f"{where}: download_timeout_seconds", self.download_timeout_seconds)
        require_between(
            _PROVISION_TIMEOUT_SECONDS, f"{where}: provision_timeout_seconds", self.provision_timeout_seconds
        )
        self._check_environment(where)

    def _check_placement(self, where: str) -> None:
        given = [f for f in ("instance_type", "instance_pool") if getattr(self, f)]
        require(
            len(given) == 1,
            f"{where}: instance_type and instance_pool",
            (self.instance_type, self.instance_pool),
            "exactly one of the two",
        )
        if self.instance_type:
            check_instance_type(f"{where}: instance_type", self.instance_type)
            return
        at = f"{where}: instance_pool"
        require_type(tuple, at, self.instance_pool, "a tuple of types")
        require(
            len(self.instance_pool) <= _MAX_POOL_TYPES,
            at,
            self.instance_pool,
            f"1 to {_MAX_POOL_TYPES} types, the preferred one first",
        )
        require(len(set(self.instance_pool)) == len(self.instance_pool), at, self.instance_pool, "every type once")
        for instance_type in self.instance_pool:
            check_instance_type(at, instance_type)
        kinds = {has_gpu(instance_type) for instance_type in self.instance_pool}
        require(len(kinds) == 1, at, self.instance_pool, "CPU types only or GPU types only: their images differ")

    def _check_scaling(self, where: str) -> None:
        if self.scaling is not None:
            require(
                self.scaling.max_instances > self.instances,
                f"{where}: scaling.max_instances",
                self.scaling.max_instances,
                f"more than instances ({self.instances}); leave scaling out to keep the number fixed",
            )
        if self.asynchronous is not None:
            require(
                self.scaling is None, f"{where}: scaling", self.scaling, "None: `asynchronous` scales by its backlog"
            )
            require(
                self.asynchronous.max_instances >= self.instances,
                f"{where}: asynchronous.max_instances",
                self.asynchronous.max_instances,
                f"at least instances ({self.instances})",
            )
            require(
                self.data_capture is None,
                f"{where}: data_capture",
                self.data_capture,
                "None: inputs and answers of `asynchronous` lie in the bucket anyway",
            )
        if self.rollout is not None:
            require(
                not self.rollout.has_steps or self.instances * self.rollout.step_percent >= 100,  # noqa: PLR2004  percent
                f"{where}: rollout.step_percent",
                self.rollout.step_percent,
                f"a share that is one of the {self.instances} instances at least; with a single one, all-at-once",
            )

    def _check_environment(self, where: str) -> None:
        at = f"{where}: environment"
        require(
            len(self.environment) <= _MAX_ENVIRONMENT_VARIABLES,
            at,
            f"{len(self.environment)} variables",
            f"at most {_MAX_ENVIRONMENT_VARIABLES}",
        )
        prefix = self._SETTINGS_PREFIX
        for name, value in self.environment.items():
            require_match(rf"{prefix}[A-Z0-9_]+", f"{at}: name", name, f"{prefix} and upper-case letters, digits, '_'")
            setting = name.removeprefix(prefix)
            # A template is no place for a secret: whoever may read the stack reads the model's environment.
            require(setting not in self._SECRETS, f"{at}: name", name, "every setting that is no secret")
            stands_for_it = self._SETTING_FIELDS.get(setting)
            require(stands_for_it is None, f"{at}: name", name, f"other settings: {stands_for_it} gives this one")
            require(
                isinstance(value, str) and len(value) <= _MAX_ENVIRONMENT_VALUE,
                f"{at}: {name}",
                value,
                f"a string of at most {_MAX_ENVIRONMENT_VALUE} characters",
            )
        # A copy that cannot change: the caller's own dictionary could.
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))

    @property
    def instance_types(self) -> tuple[str, ...]:
        """The types that may serve, the preferred one first."""
        return self.instance_pool or (str(self.instance_type),)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on GPUs, with all of the model's layers."""
        return has_gpu(self.instance_types[0])

    @property
    def vcpus(self) -> int:
        """What every instance has, whichever type it is."""
        return min(map(vcpus, self.instance_types))


@dataclass(frozen=True, kw_only=True)
class DecisionEndpoint(_Endpoint):
    """A SageMaker endpoint that answers decisions, with the adapter's image."""

    _SETTINGS_PREFIX = "SEMIF_"
    _SETTING_FIELDS = MappingProxyType(
        {"THREADS": "threads", "MAX_TOKENS": "context_tokens", "N_GPU_LAYERS": "the instance type"}
    )
    _SECRETS = ("API_KEY",)


@dataclass(frozen=True, kw_only=True)
class TextEndpoint(_Endpoint):
    """A SageMaker endpoint that writes text: llama.cpp's server with OpenAI's chat completions, as AWS publishes it."""

    # How many answers one instance writes at a time, each with a context of its own; None follows from the vCPUs.
    parallel: int | None = None
    # A model from Hugging Face in place of the environment's.
    hub_model: HubModel | None = None

    _SETTINGS_PREFIX = "SM_LLAMA_CPP_"
    _SETTING_FIELDS = MappingProxyType(
        {
            "THREADS": "threads",
            "CTX_SIZE": "context_tokens",
            "PARALLEL": "parallel",
            "N_GPU_LAYERS": "the instance type",
            "MODEL": "the environment's model",
            "MODEL_DIR": "the environment's model",
            "HF_REPO": "hub_model",
            "HF_FILE": "hub_model",
        }
    )
    _SECRETS = ("API_KEY", "HF_TOKEN")

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"TextEndpoint {self.name!r}"
        if self.parallel is not None:
            require_between((1, 256), f"{where}: parallel", self.parallel)
        require(
            self.hub_model is None or not self.network_isolation,
            f"{where}: network_isolation",
            self.network_isolation,
            "False, because hub_model is downloaded from Hugging Face at start-up; or no hub_model",
        )


Endpoint = DecisionEndpoint | TextEndpoint


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One stage of the product: a model, the endpoints that serve it, and how carefully it is kept."""

    name: str
    model: Model
    endpoints: tuple[Endpoint, ...]
    base_images: BaseImages = LLAMA_CPP
    # How the model lies in the bucket. Files as they are start faster: a GGUF hardly compresses.
    model_archive: bool = False
    # Whether `cdk destroy` takes the data (bucket, images, key) away as well.
    removable: bool
    # A file of this repository that `decide calibrate` wrote for the model, such as "calibrations/prod.json": it lies
    # beside the model, and requests or SEMIF_CALIBRATION name what is in it.
    calibrations: str | None = None
    log_retention_days: int = 30
    # Whether bucket, images, volumes and logs are encrypted with a key of the environment's own, not with AWS's.
    customer_managed_key: bool = False
    # Who is told of the endpoints' alarms, once the address has been confirmed; None leaves the topic to you.
    alarm_email: str | None = None
    # Where to deploy; None leaves it to the CDK CLI's credentials.
    account: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        require_match(r"[a-z][a-z0-9]{0,11}", "Environment.name", self.name, "1 to 12 lower-case letters and digits")
        where = f"Environment {self.name!r}"
        require(
            isinstance(self.endpoints, tuple) and len(self.endpoints) > 0,
            f"{where}: endpoints",
            self.endpoints,
            "a tuple of at least one endpoint",
        )
        names = [endpoint.name for endpoint in self.endpoints]
        require(len(set(names)) == len(names), f"{where}: endpoints", names, "every name once")
        for endpoint in self.endpoints:
            full = self.endpoint_name(endpoint)
            require(
                len(full) <= _ENDPOINT_NAME_MAX,
                f"{where}: the endpoint's full name",
                full,
                f"at most {_ENDPOINT_NAME_MAX} characters",
            )
        self._check_calibrations(where)
        for name in ("removable", "model_archive", "customer_managed_key"):
            require_type(bool, f"{where}: {name}", getattr(self, name), "True, False")
        require_one_of(LOG_RETENTION_DAYS, f"{where}: log_retention_days", self.log_retention_days)
        if self.alarm_email is not None:
            require_match(r"[^@\s]+@[^@\s]+", f"{where}: alarm_email", self.alarm_email, "an e-mail address, or None")
        if self.account is not None:
            require_match(r"\d{12}", f"{where}: account", self.account, "12 digits, or None")
        if self.region is not None:
            require_one_of(DLC_ACCOUNTS, f"{where}: region", self.region)

    def _check_calibrations(self, where: str) -> None:
        """That every calibration which an endpoint names is in the file, and that the file fits the model."""
        held: Mapping[str, object] = {}
        if self.calibrations is not None:
            at = f"{where}: calibrations"
            # Every character stands for itself in the patterns by which the build's source is cut out.
            require_match(
                r"(?:(?!\.)[\w.-]+/)*(?!\.)[\w.-]+\.json",
                at,
                self.calibrations,
                "the path of a JSON file in this repository, such as calibrations/prod.json",
            )
            held = check_calibrations(_ROOT / self.calibrations, at, sha256=self.model.sha256)
        for endpoint in self.endpoints:
            name = endpoint.environment.get("SEMIF_CALIBRATION")
            require(
                name is None or name in held,
                f"{where}: endpoint {endpoint.name!r}: SEMIF_CALIBRATION",
                name,
                ", ".join(sorted(held)) or "none, because the environment's `calibrations` holds none",
            )

    def endpoint_name(self, endpoint: Endpoint) -> str:
        """The name that callers use: stable across every replacement of what lies behind it."""
        return f"{PREFIX}-{self.name}-{endpoint.name}"


LOCAL = Environment(
    name="local",
    model=SMOLLM2_135M,
    endpoints=(
        DecisionEndpoint(
            name="decision",
            instance_type="ml.c6i.large",
            scaling=Scaling(max_instances=2, concurrent_requests=4),
            environment={"SEMIF_PLAYGROUND": "1"},
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

STAGING = Environment(
    name="staging",
    model=QWEN35_4B,
    endpoints=(
        DecisionEndpoint(
            name="decision-cpu",
            instance_type="ml.c6i.8xlarge",
            scaling=Scaling(max_instances=2, concurrent_requests=4),
            alarms=Thresholds(),
        ),
        DecisionEndpoint(
            name="decision-gpu",
            instance_pool=GPU_POOL,
            scaling=Scaling(max_instances=2, concurrent_requests=16),
            alarms=Thresholds(p99_latency_seconds=2),
        ),
    ),
    removable=True,
    log_retention_days=14,
)

PROD = Environment(
    name="prod",
    model=QWEN35_4B,
    endpoints=(
        DecisionEndpoint(
            name="decision-cpu",
            instance_type="ml.c6i.8xlarge",
            instances=2,
            scaling=Scaling(max_instances=4, concurrent_requests=4),
            rollout=Rolling(),
            alarms=Thresholds(),
        ),
        DecisionEndpoint(
            name="decision-gpu",
            instance_pool=GPU_POOL,
            instances=2,
            scaling=Scaling(max_instances=6, concurrent_requests=16),
            rollout=BlueGreen(traffic="canary"),
            alarms=Thresholds(p99_latency_seconds=2),
        ),
        TextEndpoint(
            name="text-cpu",
            instance_type="ml.c6i.8xlarge",
            scaling=Scaling(max_instances=2, concurrent_requests=4),
            rollout=BlueGreen(),
            alarms=Thresholds(p99_latency_seconds=60),
        ),
        TextEndpoint(
            name="text-gpu",
            instance_pool=GPU_POOL,
            instances=2,
            scaling=Scaling(max_instances=4, concurrent_requests=4),
            rollout=BlueGreen(traffic="linear"),
            alarms=Thresholds(p99_latency_seconds=30),
        ),
    ),
    removable=False,
    log_retention_days=90,
    customer_managed_key=True,
)


def _by_name(environments: Iterable[Environment]) -> Mapping[str, Environment]:
    found = list(environments)
    names = [environment.name for environment in found]
    require(len(set(names)) == len(names), "the environments' names", names, "every name once")
    return MappingProxyType(dict(zip(names, found, strict=True)))


# Every environment above.
ENVIRONMENTS = _by_name(value for value in list(globals().values()) if isinstance(value, Environment))


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


# The pipeline of `cdk deploy -c pipeline=yes`: None until somebody has made a connection and writes it here, as in
# Pipeline(connection_arn="arn:aws:codeconnections:REGION:ACCOUNT:connection/ID", repository="owner/name").
PIPELINE: Pipeline | None = None


def configured_pipeline() -> Pipeline:
    """The pipeline. Raises ConfigError, which says what to write, where there is none."""
    if PIPELINE is None:
        raise ConfigError(
            "there is no pipeline: set PIPELINE in stacks/config.py to a Pipeline(connection_arn=..., ...)"
        )
    return PIPELINE
