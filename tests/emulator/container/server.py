"""A model server for tests. BEHAVIOUR: `serve` (default), `silent` (never answers /ping), `exit` (ends at once)."""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked and what it knows; `status` and `sleep` in a request's body are obeyed."""

    def do_GET(self) -> None:
        """/ping."""
        self._answer(503 if os.environ.get("BEHAVIOUR") == "silent" else 200, {})

    def do_POST(self) -> None:
        """/invocations."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked: dict[str, Any] = json.loads(body) if body.startswith(b"{") else {}
        time.sleep(asked.get("sleep", 0))
        model_dir = Path(os.environ["SEMIF_MODEL_DIR"])
        files = {str(f.relative_to(model_dir)): f.read_text() for f in model_dir.rglob("*") if f.is_file()}
        names = ("GREETING", "FROM_IMAGE", "LIBRARY_PATH", "AWS_SECRET_ACCESS_KEY")
        answer = {
            "headers": dict(self.headers),
            "model": files,
            "environment": {name: os.environ.get(name) for name in names},
            "arguments": sys.argv[1:],
            "gpu_layers": os.environ.get("SEMIF_N_GPU_LAYERS"),
            "pid": os.getpid(),
        }
        self._answer(asked.get("status", 200), answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Into the container's log, at once."""
        print(format % args, flush=True)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Amzn-SageMaker-Custom-Attributes", "from-container")
        self.send_header("Content-Security-Policy", "default-src 'none'")
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    if os.environ.get("BEHAVIOUR") == "exit":
        sys.exit("bad setting: BEHAVIOUR is exit")
    print("serving", flush=True)
    ThreadingHTTPServer((os.environ["SEMIF_HOST"], int(os.environ["SEMIF_PORT"])), Handler).serve_forever()
