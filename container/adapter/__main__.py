"""Starts the adapter: `python -m adapter serve`."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import llama_cpp

from adapter.api.app import create_app
from adapter.calibrations import CalibrationError, Calibrations
from adapter.chat_service import ChatService
from adapter.chats import Chats
from adapter.conversation import ConversationBuilder
from adapter.engine import Engine, EngineError
from adapter.flash import compare
from adapter.generator import Generator
from adapter.model import Model, ModelLoadError, library_version
from adapter.model_files import ModelFile, ModelFileError, find_model
from adapter.probes import make_ready
from adapter.prompt import ChatTemplate, PromptBuilder, PromptError
from adapter.result import ModelInfo
from adapter.scheduler import Scheduler
from adapter.server import Server
from adapter.service import DecisionService
from adapter.settings import Settings, SettingsError, load_settings, tokenizer_claims
from adapter.slots import SlotError
from adapter.vocabulary import Vocabulary


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM. Returns the exit status: 1 where the start fails, with one line on standard error."""
    if arguments != ["serve"]:
        print("usage: python -m adapter serve", file=sys.stderr)
        return 2
    faulthandler.enable()  # a library built for another processor dies of SIGILL: say where
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    # While the model still loads, an end is orderly too; then the server's own handler takes over.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        settings = load_settings()
        file = find_model(settings.model_dir, settings.gguf_path, tokenizer_claims(os.environ))
        service, chats = _build(settings, file)
    except (
        SettingsError,
        ModelFileError,
        ModelLoadError,
        CalibrationError,
        PromptError,
        SlotError,
        EngineError,
    ) as error:
        print(f"adapter: {error}", file=sys.stderr)
        return 1
    Server(create_app(service, chats, settings), service, host=settings.host, port=settings.port).run()
    return 0


def _build(settings: Settings, file: ModelFile) -> tuple[DecisionService, ChatService]:
    calibrations = Calibrations(
        file.path.parent, for_questions=settings.calibration, packaged_sha256=file.calibrations_sha256
    )
    with ThreadPoolExecutor(1) as hashing:
        checksum = hashing.submit(file.verify)  # reads the file that llama.cpp is mapping: once from disk for both
        model = Model(file.path, gpu_layers=settings.n_gpu_layers, library_dir=settings.llama_cpp_lib_dir)
        source = model.metadata("tokenizer.chat_template")
        if source is None:
            raise PromptError(f"{file.path} holds no chat template (tokenizer.chat_template)")
        vocabulary = Vocabulary(model.pointer)
        template = ChatTemplate(source, bos=vocabulary.bos, eos=vocabulary.eos)
        prompts = PromptBuilder(template, vocabulary)
        flash_attention = None if settings.flash_attention is None else settings.flash_attention == "on"
        if settings.flash_attention == "measure":
            flash_attention = compare(
                model, prompts.head(), threads=settings.threads, max_tokens=settings.max_tokens
            ).faster
        engine = Engine(
            model,
            max_tokens=settings.max_tokens,
            threads=settings.threads,
            cache_bytes=settings.cache_bytes,
            flash_attention=flash_attention,
        )
        exactness = make_ready(engine, prompts, tolerance=settings.logit_tolerance)
        sha256 = checksum.result()
    calibrations.check_model(file.path.name, sha256)
    generator = Generator(model, max_tokens=settings.max_tokens, threads=settings.threads, alignment=engine.alignment)
    scheduler = Scheduler(
        engine,
        max_in_flight=settings.max_in_flight,
        deadline_seconds=settings.deadline_seconds,
        chats=Chats(generator, vocabulary),
    )
    metadata: ModelInfo = {
        "name": file.name,
        "gguf_file": file.path.name,
        "gguf_bytes": file.size,
        "gguf_sha256": sha256,
        "backend": "llama.cpp",
        "device": model.device,
        "gpu_layers": model.gpu_layers,
        "backends": [device.name for device in model.devices],
        "threads": settings.threads,
        "context_tokens": settings.max_tokens,
        "library_version": f"llama-cpp-python {llama_cpp.__version__}, libllama {library_version()}",
        "exactness": exactness.as_metadata(),
    }
    service = DecisionService(
        prompts,
        scheduler,
        calibrations,
        model=metadata,
        max_tokens=settings.max_tokens,
        max_request_tokens=settings.max_request_tokens,
    )
    chats = ChatService(
        ConversationBuilder(template, vocabulary),
        scheduler,
        max_tokens=settings.max_tokens,
        deadline_seconds=settings.deadline_seconds,
    )
    return service, chats


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
