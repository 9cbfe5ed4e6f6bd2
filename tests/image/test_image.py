"""The image as it was built: what is in it, and that it serves, ends and refuses as SageMaker and operators need it."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.container.conftest import EMBEDDED, running_adapter
from tests.image.conftest import Container, running
from tools.demo import EXAMPLE
from tools.image.build import IMAGE, SBOM, size
from tools.image.podman import podman
from tools.setup import ROOT

pytestmark = pytest.mark.image

MEGABYTES_ADDED = 120
# The image's library takes the kernels of this machine's processor, that of the tests has the portable ones.
LOGIT_TOLERANCE = 0.1


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    with running(IMAGE) as started:
        started.wait_until_ready()
        yield started


def shell(script: str, *options: str) -> str:
    return podman("run", "--rm", "--network", "none", *options, "--entrypoint", "sh", IMAGE, "-c", script)


def test_example_decision_is_the_one_of_make_serve(container: Container, tmp_path: Path) -> None:
    inside: dict[str, Any] = container.invoke(EXAMPLE)["result"]
    with running_adapter(EMBEDDED.parent, tmp_path / "log", SEMIF_GGUF_PATH=str(EMBEDDED)) as server:
        outside: dict[str, Any] = server.invoke(EXAMPLE).json()["result"]
    for same in ("prompt_sha256", "input_tokens", "answer_token_ids", "option_ids"):
        assert inside[same] == outside[same]
    assert inside["option_logits"] == pytest.approx(outside["option_logits"], abs=LOGIT_TOLERANCE)
    assert inside["model"]["gguf_sha256"] == outside["model"]["gguf_sha256"]


def test_runs_as_any_user_on_a_file_system_that_is_read_only() -> None:
    with running(IMAGE, "--user", "65534:65534", "--read-only", "--cap-drop", "all") as container:
        container.wait_until_ready()
        assert container.invoke(EXAMPLE)["result"]["id"] == "support-route"


def test_adds_little_and_no_tools_to_the_base(base: str) -> None:
    assert (size(IMAGE) - size(base)) / 1e6 <= MEGABYTES_ADDED
    tools = ("cc", "gcc", "g++", "c++", "make", "cmake", "git", "pip", "pip3")
    assert shell(f"for tool in {' '.join(tools)}; do command -v $tool; done; true") == ""
    assert (
        shell("ls /opt/decision-endpoints/venv/lib/*/site-packages | grep -ciE '^(pip|setuptools|transformers)'; true")
        == "0"
    )


def test_is_labelled_and_started_as_sagemaker_wants(base: str) -> None:
    (image,) = json.loads(podman("inspect", IMAGE))
    labels = image["Labels"]
    assert labels["org.opencontainers.image.base.digest"] == podman("inspect", "--format", "{{.Digest}}", base)
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    assert image["Config"]["Entrypoint"] == ["python3", "-m", "adapter"]
    assert image.get("HealthCheck") is None
    assert image["ManifestType"] == "application/vnd.docker.distribution.manifest.v2+json"


def test_sbom_lists_the_locked_packages_and_no_others() -> None:
    document = json.loads(shell(f"cat {SBOM}"))
    assert document["bomFormat"] == "CycloneDX"
    listed = {part["name"].lower().replace("_", "-"): part["version"] for part in document["components"]}
    entries = (ROOT / "requirements" / "container.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", entries, flags=re.MULTILINE))
    assert {"fastapi", "llama-cpp-python", "pydantic-core"} <= listed.keys() <= locked.keys()
    for name, version in listed.items():  # some are locked to a version for each Python
        assert f"\n{name}=={version} " in f"\n{entries}"


def test_sigterm_drains(tmp_path: Path) -> None:
    decision = {**EXAMPLE["decision"], "state": "Customer asks about a refund. " * 100}
    answers: list[tuple[int, str]] = []
    with running(IMAGE, "--env", "SEMIF_THREADS=1") as container:
        container.wait_until_ready()
        asking = threading.Thread(
            target=lambda: answers.append(container.request("POST", "/invocations", {"decision": decision}))
        )
        asking.start()
        while asking.is_alive() and queue_depth(container) == 0:
            pass
        assert asking.is_alive(), "answered before anything could be drained"
        podman("kill", "--signal", "TERM", container.id)
        asking.join()
        assert container.wait() == 0, container.log
    assert answers[0][0] == 200, answers


def queue_depth(container: Container) -> int:
    """Prompts that wait or run."""
    found = re.search(r"^adapter_queue_depth (\S+)", container.request("GET", "/metrics")[1], flags=re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


@pytest.mark.parametrize("fault", ["missing", "truncated"])
def test_model_that_cannot_be_served_is_one_clear_line(fault: str, tmp_path: Path) -> None:
    model = None
    if fault == "truncated":
        model = tmp_path / "model.gguf"
        model.write_bytes(EMBEDDED.read_bytes()[:1_000_000])
    with running(IMAGE, model=model) as container:
        assert container.wait() == 1
        (line,) = container.log.strip().splitlines()
    assert line.startswith("adapter: ")
    assert ("/opt/ml/model" if model is None else "model.gguf") in line


def test_library_of_another_layout_stops_the_start(tmp_path: Path) -> None:
    """libllama is replaced by one whose context parameters have a field more; the rest is the real one's."""
    source = tmp_path / "other.c"
    source.write_text(
        "struct parameters { char known[sizeof_known]; long new_field; };\n"
        "struct parameters llama_context_default_params(void) {\n"
        "    struct parameters changed;\n"
        "    for (unsigned long i = 0; i < sizeof changed; i++) ((char *)&changed)[i] = 1;\n"
        "    return changed;\n"
        "}\n"
        'const char *llama_version(void) { return "9.9.9-other"; }\n'
    )
    libraries = tmp_path / "bin"
    name = podman("create", IMAGE, "serve")
    try:
        podman("cp", f"{name}:/opt/llama.cpp/bin", libraries)
    finally:
        podman("rm", name)
    real = (libraries / "libllama.so").resolve()
    (libraries / "libllama-real.so").write_bytes(real.read_bytes())
    (libraries / "libllama.so").unlink()
    size_of_known = shell("python3 -c 'import ctypes, llama_cpp; print(ctypes.sizeof(llama_cpp.llama_context_params))'")
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", "-O0", f"-Dsizeof_known={size_of_known}", str(source)),
            *("-o", str(libraries / "libllama.so"), f"-L{libraries}", "-Wl,--no-as-needed", "-l:libllama-real.so"),
            *("-Wl,-rpath,$ORIGIN", "-Wl,--unresolved-symbols=ignore-all"),
        ],
        check=True,
    )
    with running(IMAGE, "--volume", f"{libraries}:/opt/llama.cpp/bin:ro") as container:
        assert container.wait() == 1
        (line,) = container.log.strip().splitlines()
    assert "does not fit the loaded libllama 9.9.9-other" in line
    assert re.search(r"llama-cpp-python \d+\.\d+\.\d+ ", line)


def test_stand_in_serves_text_as_the_published_container_does(base: str) -> None:
    settings = ("--env", f"SM_LLAMA_CPP_MODEL=/opt/ml/model/{EMBEDDED.name}", "--env", "SM_LLAMA_CPP_CTX_SIZE=2048")
    with running(base, *settings, "--env", "SM_LLAMA_CPP_NO_WARMUP=true") as container:
        container.wait_until_ready()
        answer = container.invoke({"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8})
    assert answer["object"] == "chat.completion"
    assert 0 < answer["usage"]["completion_tokens"] <= 8
