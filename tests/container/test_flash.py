"""Flash attention: chosen by the setting or by measuring, said in every answer, and exact either way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapter.flash import Comparison
from tests.container.conftest import running_adapter
from tests.models.make_models import model_path

DECISION = {
    "decision": {
        "id": "parcel",
        "state": "The parcel is late.",
        "question": "Is it late?",
        "options": [{"id": "yes", "description": "Yes."}, {"id": "no", "description": "No."}],
    }
}


def test_the_smaller_time_decides() -> None:
    assert Comparison(with_it=1.0, without_it=2.0).faster
    assert not Comparison(with_it=2.0, without_it=1.0).faster


@pytest.mark.parametrize(("setting", "alignments"), [("on", {True: 64}), ("measure", {True: 64, False: 8})])
def test_what_was_chosen_is_said_and_exact(tmp_path: Path, setting: str, alignments: dict[bool, int]) -> None:
    (tmp_path / "model.gguf").symlink_to(model_path("tiny-hybrid"))
    log = tmp_path / "log"
    with running_adapter(tmp_path, log, SEMIF_FLASH_ATTENTION=setting) as server:
        exactness = server.invoke(DECISION).json()["result"]["model"]["exactness"]
    chosen = exactness["flash_attention"]
    assert exactness["exact"]
    assert exactness["alignment"] == alignments[chosen]
    measured = re.search(
        r"flash attention (on|off): .* took ([\d.]+) s with it and ([\d.]+) s without", log.read_text()
    )
    assert (measured is not None) == (setting == "measure")
    if measured:
        word, with_it, without_it = measured.groups()
        assert (word == "on") == chosen
        assert (float(with_it) <= float(without_it)) == chosen or with_it == without_it
