"""The stand-in for the Deep Learning Container: its variables, and chats with the embedded model behind its paths."""

from __future__ import annotations

import json
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from emulator.sagemaker.text_server import StartError, model_path, options_of
from tests.emulator.conftest import BUCKET, REGISTRY, Docker, Hosting
from tests.emulator_fixture import ROOT

MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "temperature": 0}


def test_variables_are_options_false_ones_are_none_and_unknown_ones_stop_the_start() -> None:
    assert options_of({"SM_LLAMA_CPP_CTX_SIZE": "512", "SM_LLAMA_CPP_METRICS": "false", "PATH": "/bin"}) == {
        "CTX_SIZE": "512"
    }
    with pytest.raises(StartError, match=r"^error: invalid argument: --ctx-sise; the emulator knows ALIAS, "):
        options_of({"SM_LLAMA_CPP_CTX_SISE": "512"})


def test_model_is_the_named_one_or_the_first_two_levels_down(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "b.gguf").touch()
    named = {"MODEL": "/opt/ml/model/inner/b.gguf"}
    assert model_path(named, tmp_path, tmp_path, isolated=True) == tmp_path / "inner" / "b.gguf"
    assert model_path({}, tmp_path, tmp_path, isolated=True) == tmp_path / "inner" / "b.gguf"
    (tmp_path / "a.gguf").touch()
    assert model_path({}, tmp_path, tmp_path, isolated=True) == tmp_path / "a.gguf"
    with pytest.raises(StartError, match=r"there is no model /opt/ml/model/c\.gguf$"):
        model_path({"MODEL": "/opt/ml/model/c.gguf"}, tmp_path, tmp_path, isolated=True)
    with pytest.raises(StartError, match=r"there is no \*\.gguf in /opt/ml/model$"):
        model_path({}, tmp_path / "none", tmp_path, isolated=True)


def test_model_of_the_hub_is_fetched_unless_the_container_is_isolated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = tmp_path / "owner" / "name" / "resolve" / "main"
    hub.mkdir(parents=True)
    (hub / "m.gguf").write_bytes(b"GGUF")

    class Hub(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(tmp_path))

        def log_message(self, *_: object) -> None:
            """Nothing."""

    options = {"HF_REPO": "owner/name", "HF_FILE": "m.gguf"}
    with pytest.raises(StartError, match="owner/name cannot be fetched: the container is isolated"):
        model_path(options, tmp_path, tmp_path, isolated=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert model_path(options, tmp_path, tmp_path, isolated=False).read_bytes() == b"GGUF"
        with pytest.raises(StartError, match=r"/owner/name/resolve/main/other\.gguf cannot be read"):
            model_path({**options, "HF_FILE": "other.gguf"}, tmp_path, tmp_path, isolated=False)
        server.shutdown()


@pytest.fixture(scope="module")
def text_image(docker: Docker) -> str:
    """A copy of a base in the account's registry, with its digest."""
    ecr = docker.emulator.client("ecr")
    ecr.create_repository(repositoryName="dlc")
    own = f"{REGISTRY}/dlc:copy"
    for words in (
        ("pull", f"public.ecr.aws/deep-learning-containers/llama-cpp@sha256:{'2' * 64}"),
        ("tag", f"public.ecr.aws/deep-learning-containers/llama-cpp@sha256:{'2' * 64}", own),
        ("push", own),
    ):
        done = docker(*words)
        assert done.returncode == 0, done.stderr
    (image,) = ecr.describe_images(repositoryName="dlc")["imageDetails"]
    return f"{REGISTRY}/dlc@{image['imageDigest']}"


def test_text_endpoint_answers_chats_whole_and_as_a_stream(hosting: Hosting, text_image: str) -> None:
    hosting.emulator.client("s3").upload_file(str(MODEL), BUCKET, f"text/{MODEL.name}")
    source = {"S3Uri": f"s3://{BUCKET}/text/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    model = hosting.model(
        image=text_image,
        data={"ModelDataSource": {"S3DataSource": source}},
        SM_LLAMA_CPP_MODEL=f"/opt/ml/model/{MODEL.name}",
        SM_LLAMA_CPP_ALIAS="smol",
        SM_LLAMA_CPP_CTX_SIZE="1024",
        SM_LLAMA_CPP_PARALLEL="2",
        SM_LLAMA_CPP_THREADS="1",
        SM_LLAMA_CPP_METRICS="true",
        SM_LLAMA_CPP_N_GPU_LAYERS="999",
    )
    name = hosting.endpoint(hosting.config(hosting.variant(model)))
    assert hosting.settled(name).get("FailureReason") is None
    answer = hosting.invoke(name, CHAT, ContentType="application/json")["Body"]
    assert answer["object"] == "chat.completion"
    assert answer["usage"]["completion_tokens"] == 4
    said = answer["choices"][0]["message"]["content"]

    runtime = hosting.emulator.client("sagemaker-runtime")
    response = runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=json.dumps({**CHAT, "stream": True}), ContentType="application/json"
    )
    text = b"".join(event["PayloadPart"]["Bytes"] for event in response["Body"]).decode()
    assert response["ContentType"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == said

    hosting.api.delete_endpoint(EndpointName=name)


def test_wrong_option_fails_the_text_endpoint_by_its_name(hosting: Hosting, text_image: str) -> None:
    model = hosting.model(image=text_image, SM_LLAMA_CPP_NO_SUCH_OPTION="1")
    description = hosting.settled(hosting.endpoint(hosting.config(hosting.variant(model))))
    assert "last log line: error: invalid argument: --no-such-option" in description["FailureReason"]
