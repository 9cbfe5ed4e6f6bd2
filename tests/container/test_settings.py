"""Settings come from the environment, and a bad one is named in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.settings import Settings, SettingsError, load_settings, tokenizer_claims

SETTINGS_PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_defaults_are_those_of_the_contract() -> None:
    settings = load_settings({})
    assert settings.model_dir == Path("/opt/ml/model")
    assert (settings.port, settings.n_gpu_layers, settings.max_tokens) == (8080, 0, 8192)
    assert settings.max_shared_decisions == 64
    assert settings.gguf_path is None


def test_values_are_read_with_the_prefix() -> None:
    settings = load_settings({"SEMIF_THREADS": "3", "SEMIF_GGUF_PATH": "/m/a.gguf", "THREADS": "9", "SEMIF_PORT": ""})
    assert (settings.threads, settings.gguf_path, settings.port) == (3, Path("/m/a.gguf"), 8080)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEMIF_THREADS", "0"),
        ("SEMIF_THREADS", "two"),
        ("SEMIF_PORT", "65536"),
        ("SEMIF_N_GPU_LAYERS", "-2"),
        ("SEMIF_MAX_TOKENS", "1e4"),
    ],
)
def test_a_bad_value_is_named_in_one_line(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert "\n" not in message


def test_all_bad_values_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"SEMIF_PORT.*SEMIF_THREADS|SEMIF_THREADS.*SEMIF_PORT"):
        load_settings({"SEMIF_THREADS": "none", "SEMIF_PORT": "none"})


def test_tokenizer_variables_become_claims() -> None:
    environment = {"SEMIF_TOKENIZER_REVISION": "abc", "SEMIF_TOKENIZER_REPO": "", "SEMIF_PORT": "1"}
    assert tokenizer_claims(environment) == {"revision": "abc"}


def test_the_key_is_never_shown() -> None:
    assert "hunter2" not in repr(load_settings({"SEMIF_API_KEY": "hunter2"}))
    with pytest.raises(SettingsError, match=r"SEMIF_API_KEY=\(secret\): ") as caught:
        load_settings({"SEMIF_API_KEY": "x" * 1025})
    assert "xx" not in str(caught.value)


def test_every_setting_is_documented_with_its_default() -> None:
    rows = [line.split("|") for line in SETTINGS_PAGE.read_text().splitlines() if line.startswith("| `SEMIF_")]
    documented = {row[1].strip(" `").removeprefix("SEMIF_"): row[2].strip() for row in rows}
    assert {name.lower() for name in documented} == set(Settings.model_fields)
    defaults = load_settings({})
    for name, default in documented.items():
        if default != "all processors":
            read = load_settings({f"SEMIF_{name}": default.strip("`")})  # empty is as good as unset
            assert getattr(read, name.lower()) == getattr(defaults, name.lower()), name
            assert bool(default) == (getattr(defaults, name.lower()) is not None), name
