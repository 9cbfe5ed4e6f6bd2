"""The adapter's settings: environment variables with the prefix SEMIF_, checked once at start-up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "SEMIF_"
TOKENIZER_PREFIX = PREFIX + "TOKENIZER_"


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message is one line that names it."""


class Settings(BaseSettings):
    """What an operator may set. Names and defaults are part of the wire contract (API.md, "Settings")."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    model_dir: Path = Field(default=Path("/opt/ml/model"), description="where SageMaker puts the model's files")
    gguf_path: Path | None = Field(default=None, description="the GGUF itself, where the directory holds several")
    host: str = Field(default="0.0.0.0", description="address to listen on")  # noqa: S104 - a container's only way in
    port: int = Field(default=8080, ge=1, le=65535)
    threads: int = Field(default_factory=lambda: len(os.sched_getaffinity(0)), ge=1, le=1024)
    n_gpu_layers: int = Field(default=0, ge=-1, description="layers on the GPU; -1 is all")
    max_tokens: int = Field(default=8192, ge=64, le=1_048_576, description="longest prompt, in tokens")
    max_request_tokens: int = Field(default=131_072, ge=64, description="prompt tokens of one request together")
    max_shared_decisions: int = Field(default=64, ge=1, le=4096, description="decisions in one request")
    max_in_flight: int = Field(default=512, ge=1, le=65_536, description="decisions waiting or running")
    max_body_bytes: int = Field(default=25 * 1024 * 1024, ge=1024)
    api_key: Annotated[SecretStr, Field(min_length=1, max_length=1024)] | None = Field(
        default=None, description="what callers must send as bearer token; none is asked for without it"
    )
    cache_bytes: int = Field(default=1024**3, ge=0, description="memory for the states kept across requests")
    flash_attention: Literal["on", "off", "measure"] | None = Field(
        default=None, description="on on a GPU and off on the CPU; `measure` tries both when the process starts"
    )
    logit_tolerance: float = Field(
        default=0.1, ge=0, description="how far reuse may move a logit where the backend is not exact (a GPU)"
    )
    calibration: str | None = Field(default=None, description="of System One and OpenAI Decisions, which name none")
    llama_cpp_lib_dir: Path | None = Field(default=None, description="llama.cpp's backends, where they are plugins")
    deadline_seconds: float = Field(default=55.0, gt=0, le=3600, description="SageMaker gives up after 60 s")
    playground: bool = Field(default=False, description="a page at / from which a person asks")
    endpoint_name: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9]){0,62}$", description="SageMaker does not tell the container"
    )
    emf_namespace: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._/#-]{1,255}$",
        description="where CloudWatch puts the metrics that the log embeds; none are without it",
    )

    @field_validator("emf_namespace")
    @classmethod
    def _needs_endpoint_name(cls, namespace: str | None, others: ValidationInfo) -> str | None:
        if namespace is not None and others.data.get("endpoint_name") is None:
            raise ValueError("needs SEMIF_ENDPOINT_NAME too, the metrics' dimension")
        return namespace


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment.

    Raises `SettingsError` with one line that names every bad variable, its value and what is allowed.
    """
    try:
        if environ is None:
            return Settings()
        known = {
            name: environ[PREFIX + name.upper()] for name in Settings.model_fields if environ.get(PREFIX + name.upper())
        }
        return Settings.model_validate(known)
    except ValidationError as error:
        raise SettingsError(f"bad setting: {'; '.join(map(_describe, error.errors()))}") from error


def _describe(fault: ErrorDetails) -> str:
    name = str(fault["loc"][0])
    value = "(secret)" if name == "api_key" else repr(fault["input"])
    return f"{PREFIX}{name.upper()}={value}: {fault['msg']}"


def tokenizer_claims(environ: Mapping[str, str]) -> dict[str, str]:
    """What the SEMIF_TOKENIZER_* variables claim about the tokenizer, by lower-case name (`repo`, `revision`)."""
    return {
        name[len(TOKENIZER_PREFIX) :].lower(): value
        for name, value in environ.items()
        if name.startswith(TOKENIZER_PREFIX) and value
    }
