"""Stands for the Deep Learning Container for llama.cpp: llama-cpp-python's own OpenAI server behind its paths.

Run as a program of the containers' Python, which has llama-cpp-python; it imports nothing of the emulator. The
container's entry point turns SM_LLAMA_CPP_FOO_BAR=x into llama-server's `--foo-bar x`, and its nginx turns /ping into
/health and /invocations into /v1/chat/completions. Here the variables become the settings of `llama_cpp.server`, which
differ: one request is answered at a time, and options that only llama-server has are known by name or refused.
"""

from __future__ import annotations

import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

PREFIX = "SM_LLAMA_CPP_"
CONTAINER_MODEL_DIR = "/opt/ml/model"
# The option of `llama_cpp.server` for each of llama-server's.
_SETTINGS = {
    "ALIAS": "model_alias",
    "API_KEY": "api_key",
    "BATCH_SIZE": "n_batch",
    "CTX_SIZE": "n_ctx",
    "THREADS": "n_threads",
    "THREADS_BATCH": "n_threads_batch",
    "UBATCH_SIZE": "n_ubatch",
}
# Valid for llama-server, and of no consequence for one process on a CPU that answers one request at a time.
_NO_EFFECT = {
    "CONT_BATCHING", "FLASH_ATTN", "HOST", "JINJA", "LOG_DISABLE", "METRICS", "NO_WEBUI", "N_GPU_LAYERS", "PARALLEL",
    "PORT", "REASONING_BUDGET", "REASONING_FORMAT", "SLOTS",
}  # fmt: skip
_MODEL = {"HF_FILE", "HF_REPO", "MODEL", "MODEL_DIR"}
_CHUNK_BYTES = 1024 * 1024

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class StartError(Exception):
    """The server cannot start; one line, the last one of the container's log."""


class Front:
    """nginx's part: the platform's two paths become the server's."""

    def __init__(self, server: Application) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"] in {"/ping", "/health"}:
            # The port opens when the model is loaded; before that there is nobody to ask.
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"status":"ok"}'})
            return
        if scope["type"] == "http" and scope["path"] == "/invocations":
            scope = {**scope, "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions"}
        await self._server(scope, receive, send)


def options_of(environment: Mapping[str, str]) -> dict[str, str]:
    """llama-server's options by name, as the entry point reads them. Raises StartError on one that is not known."""
    options = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value != "false"
    }
    known = {*_SETTINGS, *_NO_EFFECT, *_MODEL}
    if unknown := sorted(options.keys() - known):
        flags = ", ".join("--" + name.lower().replace("_", "-") for name in unknown)
        raise StartError(f"error: invalid argument: {flags}; the emulator knows {', '.join(sorted(known))}")
    return options


def model_path(options: Mapping[str, str], model_dir: Path, cache: Path, *, isolated: bool) -> Path:
    """The GGUF that is served: named, found in the model's folder, or fetched. Raises StartError."""
    if "HF_REPO" in options:
        if isolated:
            raise StartError(f"error: {options['HF_REPO']} cannot be fetched: the container is isolated")
        return _fetched(options["HF_REPO"], options.get("HF_FILE", ""), cache)
    if "MODEL" in options:
        named = Path(_into(options["MODEL"], model_dir))
        if not named.is_file():
            raise StartError(f"error: there is no model {options['MODEL']}")
        return named
    folder = Path(_into(options.get("MODEL_DIR", CONTAINER_MODEL_DIR), model_dir))
    found = sorted([*folder.glob("*.gguf"), *folder.glob("*/*.gguf")])
    if not found:
        raise StartError(f"error: there is no *.gguf in {options.get('MODEL_DIR', CONTAINER_MODEL_DIR)}")
    return found[0]


def _into(path: str, model_dir: Path) -> str:
    """A path below the container's model folder as it lies on this machine."""
    below = path == CONTAINER_MODEL_DIR or path.startswith(f"{CONTAINER_MODEL_DIR}/")
    return f"{model_dir}{path.removeprefix(CONTAINER_MODEL_DIR)}" if below else path


def _fetched(repository: str, file: str, cache: Path) -> Path:
    if not file.endswith(".gguf"):
        raise StartError(f"error: {PREFIX}HF_FILE is {file!r}: the emulator needs the name of a .gguf")
    # HF_ENDPOINT is Hugging Face's own variable for a mirror.
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    address = f"{hub}/{repository}/resolve/main/{quote(file)}"
    target = cache / Path(file).name
    try:
        with urllib.request.urlopen(address, timeout=60) as answer, target.open("wb") as copy:  # noqa: S310
            shutil.copyfileobj(answer, copy, _CHUNK_BYTES)
    except (OSError, ValueError) as error:
        raise StartError(f"error: {address} cannot be read: {error}") from error
    return target


def main() -> None:
    """Serve the model that the environment names, on SEMIF_HOST and SEMIF_PORT, as all containers do here."""
    import uvicorn  # noqa: PLC0415 - as the next, slow to import, and not needed to refuse a wrong option
    from llama_cpp.server.app import create_app  # noqa: PLC0415
    from llama_cpp.server.settings import ModelSettings, ServerSettings  # noqa: PLC0415

    environment = os.environ
    options = options_of(environment)
    path = model_path(
        options,
        Path(environment["SEMIF_MODEL_DIR"]),
        Path(environment["HOME"]),
        isolated=environment.get("EMULATOR_ISOLATED") == "1",
    )
    settings: dict[str, Any] = {_SETTINGS[name]: value for name, value in options.items() if name in _SETTINGS}
    slots = int(options.get("PARALLEL", "1"))
    if "n_ctx" in settings:  # llama-server divides the context among its slots
        settings["n_ctx"] = int(settings["n_ctx"]) // slots
    settings.setdefault("model_alias", path.name)
    server = ServerSettings(api_key=settings.pop("api_key", None))
    app = create_app(server_settings=server, model_settings=[ModelSettings(model=str(path), **settings)])
    uvicorn.run(Front(app), host=environment["SEMIF_HOST"], port=int(environment["SEMIF_PORT"]))


if __name__ == "__main__":
    try:
        main()
    except StartError as failure:
        sys.exit(str(failure))
