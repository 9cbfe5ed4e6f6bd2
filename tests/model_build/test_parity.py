"""Real vocabularies against references made from them, and against references with one thing broken."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stacks.model_build.parity import CORPUS, ParityError, compare
from tests.model_build.reference_tokenizer import QWEN35, SMOLLM2, reference

TEXTS = len(json.loads(CORPUS.read_text()))


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reference(SMOLLM2, tmp_path_factory.mktemp("reference") / "tokenizer.json")


def test_a_vocabulary_agrees_with_the_tokenizer_it_was_made_from(smollm2: Path) -> None:
    report = compare(SMOLLM2, smollm2)
    # Its chat template writes <|im_start|> and <|im_end|>.
    assert (report["texts"], report["control_tokens"]) == (TEXTS, 2)
    assert report["library"] == "llama-cpp-python 0.3.36"


def test_so_does_the_default_models_own(tmp_path: Path) -> None:
    assert compare(QWEN35, reference(QWEN35, tmp_path / "tokenizer.json"))["texts"] == TEXTS


def _other_split(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"] = document["pre_tokenizer"]["pretokenizers"][1:]


def _rare_merge_lost(document: dict[str, Any]) -> None:
    merges = document["model"]["merges"]
    del merges[merges.index(["Ġpass", "word"])]


def _space_before_every_text(document: dict[str, Any]) -> None:
    document["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True


def _control_tokens_exchanged(document: dict[str, Any]) -> None:
    first, second = (t for t in document["added_tokens"] if t["content"] in ("<|im_start|>", "<|im_end|>"))
    first["content"], second["content"] = second["content"], first["content"]
    vocabulary = document["model"]["vocab"]
    vocabulary["<|im_start|>"], vocabulary["<|im_end|>"] = vocabulary["<|im_end|>"], vocabulary["<|im_start|>"]


def _text_cut(document: dict[str, Any]) -> None:
    document["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (_other_split, "123"),
        (_rare_merge_lost, "token 6 of 'Customer asks to reset a forgotten password"),
        (_space_before_every_text, "token 0 of 'Customer asks"),
        (_control_tokens_exchanged, "token 0 of '<|im_"),
    ],
)
def test_a_difference_is_found_and_shown(
    smollm2: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], None], where: str
) -> None:
    document = json.loads(smollm2.read_text())
    damage(document)
    broken = tmp_path / "tokenizer.json"
    broken.write_text(json.dumps(document))
    with pytest.raises(ParityError) as raised:
        compare(SMOLLM2, broken)
    message = str(raised.value)
    assert where in message
    assert "\n" not in message


def test_how_a_reference_cuts_or_pads_for_training_makes_no_difference(smollm2: Path, tmp_path: Path) -> None:
    document = json.loads(smollm2.read_text())
    _text_cut(document)
    target = tmp_path / "tokenizer.json"
    target.write_text(json.dumps(document))
    assert compare(SMOLLM2, target)["texts"] == TEXTS


def test_what_is_no_tokenizer_or_no_gguf_is_refused_in_one_line(smollm2: Path, tmp_path: Path) -> None:
    target = tmp_path / "tokenizer.json"
    target.write_text("<html>404</html>")
    with pytest.raises(ParityError, match=r"tokenizer\.json is no tokenizer: [^\n]+$"):
        compare(SMOLLM2, target)
    with pytest.raises(ParityError, match=r"cannot read the vocabulary of tokenizer\.json"):
        compare(target, smollm2)


def test_the_corpus_is_in_the_form_that_both_read_alike() -> None:
    texts = json.loads(CORPUS.read_text())
    assert len(texts) == len(set(texts)) >= 50
    assert [text for text in texts if unicodedata.normalize("NFC", text) != text] == []
