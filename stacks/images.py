"""The pinned base images, and where each region keeps them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stacks.checks import require_match

# The accounts of AWS's Deep Learning Containers. Sources: AWS's list of available images, and its page on llama.cpp.
DLC_ACCOUNTS: Mapping[str, str] = MappingProxyType(
    {
        "af-south-1": "626614931356",
        "ap-east-1": "871362719292",
        "ap-east-2": "975050140332",
        "ap-northeast-1": "763104351884",
        "ap-northeast-2": "763104351884",
        "ap-south-1": "763104351884",
        "ap-south-2": "772153158452",
        "ap-southeast-1": "763104351884",
        "ap-southeast-2": "763104351884",
        "ap-southeast-3": "907027046896",
        "ap-southeast-4": "457447274322",
        "ap-southeast-6": "633930458069",
        "ca-central-1": "763104351884",
        "eu-central-1": "763104351884",
        "eu-central-2": "380420809688",
        "eu-north-1": "763104351884",
        "eu-south-1": "692866216735",
        "eu-south-2": "503227376785",
        "eu-west-1": "763104351884",
        "eu-west-2": "763104351884",
        "eu-west-3": "763104351884",
        "me-central-1": "914824155844",
        "me-south-1": "217643126080",
        "sa-east-1": "763104351884",
        "us-east-1": "763104351884",
        "us-east-2": "763104351884",
        "us-west-1": "763104351884",
        "us-west-2": "763104351884",
    }
)


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A Deep Learning Container for llama.cpp, and the llama-cpp-python whose structs match its libllama."""

    # In the region's registry of Deep Learning Containers.
    repository: str
    digest: str
    binding_commit: str

    def __post_init__(self) -> None:
        _name = r"[a-z0-9]+(?:[._/-][a-z0-9]+)*"
        require_match(_name, "BaseImage.repository", self.repository, "a repository's name, without registry and tag")
        require_match(r"sha256:[0-9a-f]{64}", "BaseImage.digest", self.digest, "sha256: and 64 hexadecimal digits")
        require_match(r"[0-9a-f]{40}", "BaseImage.binding_commit", self.binding_commit, "a commit's 40 hex digits")


@dataclass(frozen=True, kw_only=True)
class BaseImages:
    """The base of each kind of instance, by digest: the published tags move, and llama.cpp's options with them."""

    cpu: BaseImage
    # For CUDA 13.
    gpu: BaseImage


LLAMA_CPP = BaseImages(
    cpu=BaseImage(
        repository="llama-cpp",
        digest="sha256:1f19c220f5f169228f20cdddca00f4838be22a3a1ce9002bc444006adc3d6d43",
        binding_commit="8a0810fa04bde084bd3446d126831ae5bd65e373",
    ),
    gpu=BaseImage(
        repository="llama-cpp",
        digest="sha256:9f2eb2d9cbdc3172c2046117c4a43401bc95dbabdc3e2aeaa35daa11565c8b36",
        binding_commit="ea3b56bdc386d5a6f31120338ffe907211b0907c",
    ),
)
