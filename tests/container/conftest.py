"""Real parts for the adapter's tests: the embedded model, and the adapter as a process on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from adapter.model import Model
from adapter.prompt import ChatTemplate, PromptBuilder
from adapter.vocabulary import Vocabulary
from tests.models.make_models import model_path

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
KEY = "key-of-the-tests"
ADAPTER = (sys.executable, "-m", "adapter", "serve")
START_SECONDS = 120  # generous: the machine may be busy


@dataclass
class Server:
    """An adapter that answers on loopback."""

    url: str
    process: subprocess.Popen[bytes]

    def invoke(self, body: object) -> httpx.Response:
        """POST to /invocations."""
        return httpx.post(f"{self.url}/invocations", json=body, timeout=120)


def adapter_environment(model_dir: Path, port: int, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the emulator or SageMaker would start the adapter."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEMIF_")}
    return {
        **clean,
        "PYTHONPATH": str(ROOT / "container"),
        "SEMIF_HOST": "127.0.0.1",
        "SEMIF_PORT": str(port),
        "SEMIF_MODEL_DIR": str(model_dir),
        "SEMIF_THREADS": "1",
        **settings,
    }


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_adapter(
    model_dir: Path, log: Path, *, command: Sequence[str] = ADAPTER, **settings: str
) -> Iterator[Server]:
    """Start the adapter and wait until /ping says 200; stop it at the end."""
    port = free_port()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            env=adapter_environment(model_dir, port, settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        server = Server(f"http://127.0.0.1:{port}", process)
        try:
            _wait_until_ready(server, log)
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_ready(server: Server, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"the adapter ended with status {server.process.returncode}:\n{log.read_text()}")
        try:
            if httpx.get(f"{server.url}/ping", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail(f"the adapter was not ready within {START_SECONDS} s:\n{log.read_text()}")


def until_evaluating(server: Server) -> None:
    """Returns when the adapter, which wants no key, has a prompt to evaluate."""
    deadline = time.monotonic() + START_SECONDS
    while "adapter_queue_depth 0.0" in httpx.get(f"{server.url}/metrics", timeout=30).text:
        if time.monotonic() > deadline:
            pytest.fail("nothing was evaluated")
        time.sleep(0.02)


@pytest.fixture(scope="session")
def embedded_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as SageMaker would mount it: the embedded GGUF, and one calibration."""
    place = tmp_path_factory.mktemp("model")
    (place / EMBEDDED.name).symlink_to(EMBEDDED)
    (place / "calibrations.json").write_text('{"support": {"temperature": 2.0}}')
    return place


@pytest.fixture(scope="session")
def server(embedded_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One adapter with the embedded model, for all tests that do not stop or starve it."""
    with running_adapter(embedded_dir, tmp_path_factory.mktemp("log") / "adapter.log") as running:
        yield running


@pytest.fixture(scope="session")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An adapter that wants `KEY`, for conformance suites: the embedded model as Q4_0, its fastest form.

    The deadline is long, so that a busy machine makes a suite slow and not incomplete.
    """
    place = tmp_path_factory.mktemp("keyed")
    (place / "model.gguf").symlink_to(model_path("embedded-q4_0"))
    with running_adapter(place, place / "log", SEMIF_API_KEY=KEY, SEMIF_DEADLINE_SECONDS="600") as running:
        yield running


@pytest.fixture(scope="session")
def embedded_model() -> Iterator[Model]:
    """The embedded model in this process."""
    model = Model(EMBEDDED)
    yield model
    model.close()


@pytest.fixture(scope="session")
def embedded_prompts(embedded_model: Model) -> PromptBuilder:
    """The prompts of the embedded model."""
    source = embedded_model.metadata("tokenizer.chat_template")
    assert source is not None
    vocabulary = Vocabulary(embedded_model.pointer)
    return PromptBuilder(ChatTemplate(source, bos=vocabulary.bos, eos=vocabulary.eos), vocabulary)


@pytest.fixture
def decision() -> Callable[..., dict[str, object]]:
    """Makes the published example decision, with what a test changes about it."""

    def make(**changes: object) -> dict[str, object]:
        return {
            "id": "support-route",
            "state": "Customer asks to reset a forgotten password and says the reset email never arrived.",
            "question": "Which queue should handle this request?",
            "options": [
                {"id": "account_access", "description": "Account access and authentication support."},
                {"id": "billing", "description": "Billing and payment support."},
                {"id": "sales", "description": "Sales and product evaluation."},
            ],
            **changes,
        }

    return make
