"""What schemathesis derives from the OpenAPI document, against the adapter: `make fuzz` goes on from here at random."""

from __future__ import annotations

from pathlib import Path

from tests.container.conftest import running_adapter
from tests.container.fuzzing import SETTINGS, fuzz
from tests.models.make_models import model_path


def test_every_rule_of_every_schema_is_kept_by_the_server(tmp_path: Path) -> None:
    """With a tiny model, whose answers take no time: what is asked of it is what a large one is asked."""
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-sentencepiece"))
    with running_adapter(tmp_path, tmp_path / "log", **SETTINGS) as server:
        found = fuzz(server.url, requests=500, seed=1)
    assert not found.faults
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert found.requests >= 500
    for path in ("/invocations", "/v1/systemone", "/v1/decisions", "/v1/chat/completions"):
        statuses = {status for operation, status in found.answers if operation == f"POST {path}"}
        assert statuses >= {200, 405, 415, 422 if path == "/v1/systemone" else 400}
