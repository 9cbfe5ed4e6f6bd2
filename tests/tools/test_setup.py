"""Set-up names what a machine lacks, all at once, before it has made anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup

ROOT = Path(__file__).parents[2]


def test_missing_compilers_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.setup"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "set-up: missing: a C compiler, a C++ compiler; install with: apt-get install -y build-essential\n"
    )


def test_a_missing_browser_is_named_where_one_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "chromium").symlink_to(sys.executable)
    for compiler in ("cc", "c++"):
        (tmp_path / compiler).symlink_to(sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "tools.setup", "--browser"],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "set-up: missing: chromedriver; install with: apt-get install -y --no-install-recommends chromium-driver\n"
    )


def test_a_missing_venv_module_is_named_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    monkeypatch.setattr(sys, "executable", "false")  # a Python that cannot import ensurepip, as Debian ships it
    with pytest.raises(setup.SetupError, match=r"venv module, a C\+\+ compiler.*build-essential python3-venv"):
        setup.check_prerequisites()


def test_a_compiler_of_the_environment_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my-cc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{Path(sys.executable).parent}")
    monkeypatch.setenv("CC", "my-cc -O2")
    monkeypatch.setenv("CXX", "my-cc")
    setup.check_prerequisites()


def test_a_step_that_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("one")
    monkeypatch.setattr(setup, "REQUIREMENTS", tmp_path)
    calls = []

    def run() -> None:
        calls.append("done")
        if len(calls) == 1:
            raise setup.SetupError("interrupted")

    with pytest.raises(setup.SetupError):
        setup._step("t", tmp_path, ["in.txt"], run)
    setup._step("t", tmp_path, ["in.txt"], run)
    setup._step("t", tmp_path, ["in.txt"], run)
    assert len(calls) == 2
    (tmp_path / "in.txt").write_text("two")
    setup._step("t", tmp_path, ["in.txt"], run)
    assert len(calls) == 3


def test_the_launcher_works_from_any_folder(tmp_path: Path) -> None:
    environment = tmp_path / "an environment"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    setup.write_launcher(environment)
    command = [str(environment / "bin" / "decide"), "cost", "nowhere"]
    clean = {**os.environ, "PYTHONPATH": "", "VIRTUAL_ENV": ""}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("decide: there is no environment 'nowhere'; known environments: dev, ")
