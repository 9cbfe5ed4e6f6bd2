"""Docker Registry HTTP API V2 client for the emulator's ECR, and the image names that lead to it."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import ssl
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.docker.image.rootfs.diff.tar.gzip"

_ECR_HOST = re.compile(r"\d{12}\.dkr\.ecr\.[a-z0-9-]+\.amazonaws\.com")
_NAME = re.compile(r"(?P<host>[^/]+)/(?P<repository>[^:@]+)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
_OK = 200
_CREATED = 201
_NOT_FOUND = 404


class RegistryError(Exception):
    """The registry refused, or holds no such image; the message says which image."""


class NoSuchImageError(RegistryError):
    """The registry lets its caller look, and has no such image."""


def digest_of(content: bytes) -> str:
    """The digest that addresses a blob or manifest."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def is_ecr_host(host: str) -> bool:
    """Whether a registry host is an account's ECR; those are served by the emulator."""
    return _ECR_HOST.fullmatch(host) is not None


@dataclass(frozen=True)
class ImageName:
    """`<account>.dkr.ecr.<region>.amazonaws.com/<repository>`, with a tag, a digest, or both."""

    host: str
    repository: str
    tag: str | None
    digest: str | None

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Raises RegistryError unless the image lies in ECR."""
        image = cls.parse_any(text)
        if image is None or not is_ecr_host(image.host):
            raise RegistryError(
                f"image {text} is not in ECR: expected <account>.dkr.ecr.<region>.amazonaws.com/<repository>"
                " with a tag or a digest"
            )
        return image

    @classmethod
    def parse_any(cls, text: str) -> ImageName | None:
        """The parts of a name in any registry; None when it is none."""
        match = _NAME.fullmatch(text)
        return cls(match["host"], match["repository"], match["tag"], match["digest"]) if match else None

    @property
    def reference(self) -> str:
        """What the registry looks the manifest up by."""
        return self.digest or self.tag or "latest"

    def with_digest(self, digest: str) -> str:
        """The name that pins this very image."""
        return f"{self.host}/{self.repository}@{digest}"


class Registry:
    """The registry at the emulator's address (`http://host:port`), asked as a Docker client asks ECR.

    `certificate` is a PEM file, for an https address; `password` comes from GetAuthorizationToken.
    """

    def __init__(self, url: str, *, certificate: str | None = None, password: str | None = None) -> None:
        self._netloc = urlsplit(url).netloc
        self._tls = ssl.create_default_context(cafile=certificate) if certificate else None
        self._headers: dict[str, str] = {}
        if password:
            self._headers["Authorization"] = f"Basic {base64.b64encode(f'AWS:{password}'.encode()).decode()}"

    def manifest(self, image: ImageName) -> bytes:
        """An image's manifest, checked against its digest where the name has one."""
        status, body = self._request("GET", image, f"manifests/{quote(image.reference)}")
        if status == _NOT_FOUND:
            raise NoSuchImageError(f"image {image.host}/{image.repository} has no {image.reference}")
        self._expect(status, body, image, _OK)
        digest = digest_of(body)
        if image.digest and digest != image.digest:
            raise RegistryError(f"manifest of {image.repository} is {digest}, not {image.digest}")
        return body

    def blob(self, image: ImageName, digest: str) -> bytes:
        """A layer or config, checked against its digest."""
        status, body = self._request("GET", image, f"blobs/{digest}")
        if status == _NOT_FOUND:
            raise NoSuchImageError(f"image {image.host}/{image.repository} has no blob {digest}")
        self._expect(status, body, image, _OK)
        if digest_of(body) != digest:
            raise RegistryError(f"blob {digest} of {image.repository} has different content")
        return body

    def push_blob(self, image: ImageName, content: bytes) -> None:
        """Upload one blob, unless the repository has it."""
        digest = digest_of(content)
        status, _ = self._request("HEAD", image, f"blobs/{digest}")
        if status == _OK:
            return
        status, body = self._request("POST", image, f"blobs/uploads/?digest={quote(digest, safe='')}", content)
        self._expect(status, body, image, _CREATED)

    def push_manifest(self, image: ImageName, manifest: bytes) -> str:
        """Publish a manifest under the image's tag; returns its digest."""
        headers = {"Content-Type": MANIFEST_TYPE}
        status, body = self._request("PUT", image, f"manifests/{quote(image.reference)}", manifest, headers)
        self._expect(status, body, image, _CREATED)
        return digest_of(manifest)

    def _request(
        self, method: str, image: ImageName, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        connection = (
            http.client.HTTPSConnection(self._netloc, timeout=120, context=self._tls)
            if self._tls
            else http.client.HTTPConnection(self._netloc, timeout=120)
        )
        # The host that the image's name has: a registry tells accounts apart by it.
        own = {"Host": image.host, **self._headers, **(headers or {})}
        try:
            connection.request(method, f"/v2/{image.repository}/{path}", body, own)
            response = connection.getresponse()
            return response.status, response.read()
        except OSError as error:
            raise RegistryError(f"the registry at {self._netloc} does not answer: {error}") from error
        finally:
            connection.close()

    @staticmethod
    def _expect(status: int, body: bytes, image: ImageName, expected: int) -> None:
        if status == expected:
            return
        try:
            reason = "; ".join(error["message"] for error in json.loads(body)["errors"])
        except (ValueError, KeyError, TypeError):
            reason = f"HTTP {status}"
        raise RegistryError(f"{image.host}/{image.repository}: {reason}")
