"""An HTTP server on loopback that answers as a test says, where a real adapter would not do it on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# The decision and how many requests came before, to a status, headers and a body.
Answer = Callable[[Mapping[str, Any], int], tuple[int, Mapping[str, str], Any]]


@dataclass
class Scripted:
    """A server that listens; `bodies` and `keys` (Authorization) are of the requests so far."""

    url: str
    bodies: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    # Set by each request that comes.
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def result(decision: Mapping[str, Any], first: float = 0.75) -> dict[str, Any]:
    """A wire result for a decision of two options."""
    return {
        "id": decision["id"],
        "option_ids": [option["id"] for option in decision["options"]],
        "probabilities": [first, 1 - first],
    }


def answered(decision: Mapping[str, Any], _before: int) -> tuple[int, Mapping[str, str], Any]:
    """An answer to every decision."""
    return 200, {}, {"result": result(decision)}


@contextmanager
def scripted(answer: Answer) -> Iterator[Scripted]:
    """Serve until the end of the block."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                before = len(server.bodies)
                server.bodies.append(body)
                server.keys.append(self.headers["Authorization"])
            server.came.release()
            status, headers, said = answer(body.get("decision", {}), before)
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server = Scripted(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
