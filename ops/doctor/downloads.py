"""The doctor's checks of what the model build downloads: that it can be reached, and has the pinned size."""

from __future__ import annotations

import base64
import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import IO

from ops.doctor.row import Row
from stacks.config import Environment, TextEndpoint
from stacks.models import HubModel, HuggingFaceFile, Model, PyPIFile, Tokenizer

_TIMEOUT_SECONDS = 15
# PyPI's longest pages have some 10 MB.
_INDEX_LIMIT_BYTES = 1 << 25
_CORRECT = "correct the model in stacks/config.py: it is not the pinned file"
# No network, no HTTP, or an address that is none, such as of HF_ENDPOINT.
_UNANSWERED = (OSError, http.client.HTTPException, ValueError)
_NOT_HERE = "cannot be reached from here; the build in AWS downloads it, not this machine"


@dataclass(frozen=True)
class Download:
    """What a server says of a file without sending it."""

    # None: it did not say.
    bytes: int | None
    # The file's checksum, where the server names it.
    sha256: str | None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and keeps the checksum that Hugging Face names in the first answer, before its CDN."""

    def __init__(self) -> None:
        self.sha256: str | None = None

    def redirect_request(  # noqa: PLR0917 - the signature is the standard library's
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        self.sha256 = self.sha256 or _sha256(headers)
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type] # typeshed: HTTPMessage


def ask(address: str) -> Download:
    """What the server says of the file at this address, redirects followed. Raises OSError.

    It asks for the first byte, not with HEAD: Hugging Face redirects to addresses of a CDN that are signed for GET. The
    size is in Content-Range, or in Content-Length where the server takes no range; the body is not read. For a file in
    LFS the first answer has its SHA-256 as X-Linked-Etag (source: huggingface_hub, get_hf_file_metadata).
    """
    redirects = _Redirects()
    opener = urllib.request.build_opener(redirects)
    request = urllib.request.Request(address, headers={"Range": "bytes=0-0"})  # noqa: S310 - the hub's own scheme
    with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
        headers: Message = answer.headers
        whole = re.fullmatch(r"bytes 0-0/(\d+)", headers.get("Content-Range", ""))
        length = headers.get("Content-Length", "") if answer.status == HTTPStatus.OK else ""
        size = int(whole[1]) if whole else int(length) if length.isdecimal() else None
        return Download(size, redirects.sha256 or _sha256(headers))


def _sha256(headers: Message) -> str | None:
    found = re.fullmatch(r'"?([0-9a-f]{64})"?', headers.get("X-Linked-Etag", ""))
    return found[1] if found else None


def hugging_face_address(repository: str, revision: str, path: str) -> str:
    """Where the model build downloads a file, as stacks/model_build/sources.py has it, HF_ENDPOINT included."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return f"{hub}/{repository}/resolve/{revision}/{urllib.parse.quote(path)}"


def model(pinned: Model) -> Sequence[Row]:
    """The model's file."""
    if isinstance(pinned.source, PyPIFile):
        return [_wheel(pinned.source)]
    return [_file("model", pinned.source, pinned.bytes, pinned.sha256)]


def tokenizer(pinned: Tokenizer) -> Sequence[Row]:
    """The reference tokenizer's file, whose size is not pinned."""
    file = hugging_face_address(pinned.repository, pinned.revision, "tokenizer.json")
    return [_reachable("tokenizer", file, None, None)]


def hub_models(environment: Environment) -> list[HubModel]:
    """The models that text endpoints download themselves when they start."""
    return [e.hub_model for e in environment.endpoints if isinstance(e, TextEndpoint) and e.hub_model is not None]


def hub_model(pinned: HubModel) -> Sequence[Row]:
    """A text endpoint's file, whatever its newest revision is."""
    return [_reachable("hub model", hugging_face_address(pinned.repository, "main", pinned.file), None, None)]


def _file(check: str, source: HuggingFaceFile, size: int, sha256: str) -> Row:
    return _reachable(check, hugging_face_address(source.repository, source.revision, source.path), size, sha256)


def _reachable(check: str, address: str, size: int | None, sha256: str | None) -> Row:
    try:
        found = ask(address)
    except urllib.error.HTTPError as error:
        return _refused(check, address, error)
    except _UNANSWERED as error:
        return Row(check, f"{_host(address)} {_NOT_HERE} ({_reason(error)})", "not checked")
    return _compared(check, address, found, size, sha256)


def _compared(check: str, address: str, found: Download, size: int | None, sha256: str | None) -> Row:
    if sha256 is not None and found.sha256 not in (None, sha256):
        return Row(check, f"{address} has sha256 {found.sha256}; pinned is {sha256}", "failed", _CORRECT)
    if size is None:
        return Row(check, address, "ok")
    if found.bytes is None:
        return Row(check, f"{address} is there, but does not say how large it is", "warning")
    if found.bytes != size:
        return Row(check, f"{address} has {found.bytes:,} bytes; pinned are {size:,}", "failed", _CORRECT)
    checksum = " and the pinned sha256" if found.sha256 is not None else ""
    return Row(check, f"{address} has the pinned {size:,} bytes{checksum}", "ok")


def _wheel(source: PyPIFile) -> Row:
    """Whether the package index has a wheel of the version; only the model build sees the file inside.

    The index is that of PIP_INDEX_URL. Its pages name the files in HTML or JSON (PEP 503, PEP 691).
    """
    index = os.environ.get("PIP_INDEX_URL")
    if not index:
        found = f"{source.package} {source.version}, a Python package: looked up where PIP_INDEX_URL names an index"
        return Row("model", found, "not checked")
    address = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', source.package).lower()}/"
    try:
        with urllib.request.urlopen(_with_password(address), timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            page = answer.read(_INDEX_LIMIT_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return _refused("model", _without_secrets(address), error)
    except _UNANSWERED as error:
        return Row("model", f"{_host(address)} {_NOT_HERE} ({_reason(error)})", "not checked")
    # The first of a file's name is the package's, with underscores (PEP 427).
    name = re.sub(r"[-_.]+", "_", source.package)
    wheel = re.search(rf"{re.escape(name)}-{re.escape(source.version)}-[\w.-]+\.whl", page, re.IGNORECASE)
    if wheel is None:
        found = f"{_host(address)} has no wheel of {source.package} {source.version}"
        return Row("model", found, "failed", "correct the model in stacks/config.py")
    return Row("model", f"{_host(address)} has {wheel[0]}; the model build checks the file inside", "ok")


def _refused(check: str, address: str, error: urllib.error.HTTPError) -> Row:
    error.close()
    found = f"{address} answers {error.code}"
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return Row(check, found, "failed", "correct the model in stacks/config.py: everybody must be able to have it")
    return Row(check, found, "not checked", "try again later")


def _with_password(address: str) -> urllib.request.Request:
    # urllib takes a password in an address for a part of the host's name.
    parts = urllib.parse.urlsplit(address)
    request = urllib.request.Request(_without_secrets(address))  # noqa: S310 - the index's own scheme
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    return request


def _without_secrets(address: str) -> str:
    # An index may have a password in its address.
    parts = urllib.parse.urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _host(address: str) -> str:
    return urllib.parse.urlsplit(address).hostname or address


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error) or type(error).__name__
