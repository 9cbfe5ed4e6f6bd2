"""What breaks, or is broken by callers, in a running adapter: each fault is caused and its end observed."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard

from tests.container.conftest import Server, running_adapter, until_evaluating
from tests.models.make_models import model_path

Make = Callable[..., dict[str, Any]]
FAULTY = Path(__file__).with_name("faulty_adapter.py")
ENGINE_FAULT = 70


@pytest.fixture
def tiny_dir(tmp_path: Path) -> Path:
    """A model directory with a model that starts at once."""
    place = tmp_path / "model"
    place.mkdir()
    (place / "model.gguf").symlink_to(model_path("tiny-hybrid"))
    return place


@pytest.fixture
def faulty(tiny_dir: Path, tmp_path: Path) -> Iterator[Server]:
    """An adapter whose engine breaks when a file appears in `tmp_path`."""
    command = [sys.executable, str(FAULTY), str(tmp_path)]
    with running_adapter(tiny_dir, tmp_path / "log", command=command, SEMIF_DEADLINE_SECONDS="2") as server:
        yield server


def _until_ping_says_503(client: httpx.Client, server: Server) -> httpx.Response:
    for _ in range(60_000):
        response = client.get(f"{server.url}/ping", timeout=60)
        if response.status_code == 503:
            return response
        time.sleep(0.002)
    pytest.fail("/ping never said 503")


@pytest.mark.parametrize(
    ("fault", "reason"), [("die", "the engine has stopped"), ("wedge", "the engine is stuck: it was told to end")]
)
def test_a_broken_engine_ends_the_process(
    faulty: Server, decision: Make, tmp_path: Path, fault: str, reason: str
) -> None:
    (tmp_path / fault).touch()
    with ThreadPoolExecutor(1) as callers, httpx.Client() as client:
        waiting = callers.submit(faulty.invoke, {"decision": decision()})
        assert _until_ping_says_503(client, faulty).json()["error"].startswith(reason)
        late = faulty.invoke({"decision": decision()})
        assert (late.status_code, late.json()["retryable"], late.headers["retry-after"]) == (503, True, "30")
        assert "the process ends" not in late.json()["error"]  # told at once, not when all are
        told = waiting.result()  # who waited for the engine is told, too
    assert (told.status_code, told.headers["retry-after"]) == (503, "30")
    assert told.json()["error"].startswith(f"busy: {reason}")
    assert faulty.process.wait(60) == ENGINE_FAULT
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("{")]
    assert len(lines) == 1
    assert lines[0].startswith(f"adapter: {reason}")
    assert lines[0].endswith("the process ends, so that the platform starts another")


def test_while_draining_all_that_was_accepted_is_answered_and_nothing_else(
    tiny_dir: Path, decision: Make, tmp_path: Path
) -> None:
    command = [sys.executable, str(FAULTY), str(tmp_path)]
    with (
        running_adapter(tiny_dir, tmp_path / "log", command=command) as server,
        ThreadPoolExecutor(8) as callers,
        httpx.Client(timeout=60) as open_before,
        httpx.Client() as client,
    ):
        assert open_before.get(f"{server.url}/ping").status_code == 200
        (tmp_path / "wait").touch()
        bodies = [{"decision": decision(id=str(number), state=f"case {number}")} for number in range(8)]
        accepted = [callers.submit(server.invoke, body) for body in bodies]
        while "adapter_queue_depth 8.0" not in open_before.get(f"{server.url}/metrics").text:
            time.sleep(0.02)
        assert client.get(f"{server.url}/ping").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        draining = _until_ping_says_503(client, server)
        assert draining.json()["error"] == "draining"
        assert draining.headers["connection"] == "close"  # from the very first answer on
        on_open = open_before.post(f"{server.url}/invocations", json=bodies[0])
        on_new = server.invoke(bodies[0])
        for refused in (on_open, on_new):
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json() == {"error": "busy: shutting down", "retryable": True}
            assert refused.headers["connection"] == "close"
        assert server.process.poll() is None
        (tmp_path / "wait").unlink()
        answers = [one.result() for one in accepted]
        assert [answer.status_code for answer in answers] == [200] * 8
        assert [answer.json()["result"]["id"] for answer in answers] == [str(number) for number in range(8)]
        assert server.process.wait(30) == 0


def test_what_is_not_finished_25_s_after_sigterm_is_told_so(tiny_dir: Path, decision: Make, tmp_path: Path) -> None:
    command = [sys.executable, str(FAULTY), str(tmp_path)]
    with (
        running_adapter(tiny_dir, tmp_path / "log", command=command) as server,
        ThreadPoolExecutor(1) as callers,
    ):
        (tmp_path / "wait").touch()
        waiting = callers.submit(server.invoke, {"decision": decision()})
        until_evaluating(server)
        server.process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        told = waiting.result()
        assert (told.status_code, told.json()["error"]) == (503, "busy: shutting down")
        assert time.monotonic() - signalled > 20
        assert server.process.wait(30) == 0


def test_an_idle_adapter_ends_at_once(tiny_dir: Path, tmp_path: Path) -> None:
    with running_adapter(tiny_dir, tmp_path / "log") as server, httpx.Client() as idle:
        assert idle.get(f"{server.url}/ping").status_code == 200  # and keeps the connection
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0  # not after the 25 s of a drain
    assert [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("{")] == []


def _connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=120)


def _head(length: int | None, *more: str) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return "\r\n".join(("POST /invocations HTTP/1.1", "host: x", framing, *more, "", "")).encode()


def _read_all(caller: socket.socket) -> bytes:
    """What arrives until the other side closes."""
    received = b""
    while piece := caller.recv(65536):
        received += piece
    return received


@dataclass
class Held:
    """An adapter with room for one decision, and the file that makes its engine wait while it is there."""

    server: Server
    gate: Path
    log: Path


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """One for all callers that misbehave."""
    place = tmp_path_factory.mktemp("held")
    (place / "model.gguf").symlink_to(model_path("tiny-hybrid"))
    command = [sys.executable, str(FAULTY), str(place)]
    with running_adapter(place, place / "log", command=command, SEMIF_MAX_IN_FLIGHT="1") as server:
        yield Held(server, place / "wait", place / "log")


def test_slow_callers_hold_no_slot_and_are_sent_away(held: Held, decision: Make) -> None:
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as slow:
        callers = [_connect(held.server) for _ in range(4)]
        callers[0].sendall(_head(1000) + b'{"decision"')
        callers[1].sendall(_head(None) + b"1\r\n{\r\n")
        callers[2].sendall(b"POST /invocations HT")
        # callers[3] sends nothing
        assert [held.server.invoke({"decision": decision()}).status_code for _ in range(3)] == [200] * 3
        received = list(slow.map(_read_all, callers))  # until the adapter has closed all four
    assert time.monotonic() - begun > 15
    for told in received[:2]:
        head, _, body = told.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body) == {"error": "the body took more than 20 s to arrive", "retryable": True}
    assert received[2:] == [b"", b""]
    for caller in callers:
        caller.close()


def test_a_half_closed_connection_is_a_caller_who_left(held: Held, decision: Make) -> None:
    """Before its body's end, or while its decision waits: nothing is sent, no slot stays taken, none complains."""
    logged = len(held.log.read_text().splitlines())
    with _connect(held.server) as unfinished:
        unfinished.sendall(_head(1000) + b'{"decision"')
        unfinished.shutdown(socket.SHUT_WR)
        assert _read_all(unfinished) == b""
    held.gate.touch()
    body = json.dumps({"decision": decision()}).encode()
    with _connect(held.server) as asked:
        asked.sendall(_head(len(body)) + body)
        until_evaluating(held.server)
        asked.shutdown(socket.SHUT_WR)
        assert _read_all(asked) == b""
        while "adapter_queue_depth 0.0" not in httpx.get(f"{held.server.url}/metrics").text:
            time.sleep(0.02)
    held.gate.unlink()
    assert held.server.invoke({"decision": decision()}).status_code == 200
    entries = [json.loads(line) for line in held.log.read_text().splitlines()[logged:]]  # JSON alone: no traceback
    assert [entry["status"] for entry in entries if entry["path"] == "/invocations"][:2] == [499, 499]


def test_a_chunked_body_without_a_length_is_read(server: Server, decision: Make) -> None:
    def pieces() -> Iterator[bytes]:
        data = json.dumps({"decision": decision()}).encode()
        yield from (data[start : start + 50] for start in range(0, len(data), 50))

    response = httpx.post(f"{server.url}/invocations", content=pieces(), timeout=120)
    assert response.request.headers["transfer-encoding"] == "chunked"
    assert response.json()["result"]["input_tokens"] == 130


def test_a_chunked_body_that_does_not_end_is_refused_while_it_arrives(server: Server) -> None:
    with _connect(server) as caller:
        caller.sendall(_head(None))
        for _ in range(27):
            caller.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += caller.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"26214400 bytes allowed (SEMIF_MAX_BODY_BYTES)" in answer


def test_zstd_bodies_are_read_and_bombs_refused(server: Server, decision: Make) -> None:
    body = json.dumps({"decision": decision()}).encode()
    packed = zstandard.ZstdCompressor().compress(body)
    bomb = zstandard.ZstdCompressor().compress(bytes(8_000_000)) * 20_000  # 160 GB in 5 MB
    peak = _peak_bytes(server)
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    refused = httpx.post(f"{server.url}/invocations", content=bomb, headers=headers, timeout=120)
    assert refused.status_code == 413
    assert "26214400 bytes allowed (SEMIF_MAX_BODY_BYTES)" in refused.json()["error"]
    assert _peak_bytes(server) - peak < 200_000_000
    read = httpx.post(f"{server.url}/invocations", content=packed, headers=headers, timeout=120)
    assert read.json()["result"]["input_tokens"] == 130


def _peak_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
