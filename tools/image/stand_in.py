"""Stands in for the AWS Deep Learning Container for llama.cpp, which a machine without AWS's registries cannot pull.

The same layout with the same kind of content: llama.cpp's own `llama-server` with its backends as plugins in
/opt/llama.cpp/bin, nginx with SageMaker's two paths, an entrypoint that reads SM_LLAMA_CPP_*, root. It differs in the
distribution (Debian for Amazon Linux), in Python (Debian's for 3.12) and in llama.cpp's version, which is the one that
llama-cpp-python's source archive brings: the binding and the library are of one archive, as in the published pair.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tools.image.podman import ImageError, build, podman
from tools.setup import CACHE, REQUIREMENTS, VENV

IMAGE = "localhost/decision-endpoints/stand-in"
# Debian 12's, in place of the DLC's 3.12.
PYTHON = "python3.11"
_ROOT_FILE_SYSTEM = "localhost/decision-endpoints/debian"
_SUITE = "bookworm"
_PACKAGES = ("ca-certificates", "libgomp1", "libstdc++6", "nginx-light", "python3", "python3-venv")
_PLACE = CACHE / "stand-in"
_FILES = Path(__file__).with_name("stand_in")
# As the DLC's llama.cpp is built: backends as plugins, one for each generation of CPUs.
_CMAKE = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON"),
    *("-DGGML_BACKEND_DL=ON", "-DGGML_CPU_ALL_VARIANTS=ON", "-DGGML_NATIVE=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF"),
    *("-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"),
)
# What llama-cpp-python's wheel is made of without llama.cpp.
_BINDING = ("llama_cpp", "pyproject.toml", "README.md", "LICENSE.md", "CMakeLists.txt")


def make_stand_in() -> str:
    """Build the image where it is not there yet (llama.cpp takes some ten minutes, once). Returns its name by content.

    Raises `ImageError`.
    """
    llama_server = _llama_server()
    digest = hashlib.sha256(_key().encode())
    for file in sorted(_FILES.iterdir()):
        digest.update(file.read_bytes())
    image = f"{IMAGE}:{digest.hexdigest()[:16]}"
    if _has(image):
        return image
    print("building the stand-in for the base image", flush=True)
    build(
        _FILES,
        tag=image,
        arguments={"ROOT_FILE_SYSTEM": _root_file_system()},
        contexts={"llama-server": llama_server},
        log=_PLACE / "image.log",
    )
    return image


def binding_source() -> Path:
    """The source of llama-cpp-python alone, of the archive that the stand-in's llama.cpp comes from."""
    source, place = _source(), _PLACE / "binding"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in _BINDING:
        if (source / name).is_dir():
            shutil.copytree(source / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source / name, place / name)
    return place


def _has(image: str) -> bool:
    return bool(podman("images", "--quiet", image))


def _key() -> str:
    return " ".join([_SUITE, *_PACKAGES, *_CMAKE, (REQUIREMENTS / "archives.txt").read_text()])


def _llama_server() -> Path:
    """The folder with llama-server, libllama and the plugins, and nothing else."""
    place = _PLACE / "bin"
    stamp = _PLACE / ".made"
    if stamp.exists() and stamp.read_text() == _key():
        return place
    source = _source() / "vendor" / "llama.cpp"
    print("compiling llama.cpp's server (some ten minutes on two processors)", flush=True)
    log = _PLACE / "compile.log"
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with log.open("w") as file:
        for command in (
            ["cmake", "-S", str(source), "-B", str(source / "build"), *_CMAKE],
            ["cmake", "--build", str(source / "build"), "--target", "llama-server"],
        ):
            done = subprocess.run(
                command, env={**os.environ, "PATH": path}, stdout=file, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode != 0:
                tail = "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])
                raise ImageError(f"llama.cpp does not compile (all of it: {log}):\n{tail}")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    made = source / "build" / "bin"
    for binary in (made / "llama-server", *made.glob("*.so*")):
        shutil.copy2(binary, place / binary.name, follow_symlinks=False)
    stamp.write_text(_key())
    return place


def _source() -> Path:
    """llama-cpp-python's source archive, unpacked; downloaded by its locked hash where it is not there."""
    place = _PLACE / "source"
    locked = (REQUIREMENTS / "archives.txt").read_text()
    stamp = place / ".unpacked"
    if stamp.exists() and stamp.read_text() == locked:
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    # Not isolated: pip reads the archive's metadata with the locked tools of build.txt.
    command = [
        *(str(VENV / "bin" / "python"), "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--no-binary", "llama-cpp-python", "--require-hashes"),
        *("--requirement", str(REQUIREMENTS / "archives.txt"), "--dest", str(place)),
    ]
    search = f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, env={**os.environ, "PATH": search}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"the source archive of llama-cpp-python cannot be had: {done.stderr.strip()}")
    (archive,) = place.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    (unpacked,) = (path for path in place.iterdir() if path.is_dir())
    for path in unpacked.iterdir():
        path.rename(place / path.name)
    unpacked.rmdir()
    for path in (*place.glob("*.whl"), archive):
        path.unlink()
    stamp.write_text(locked)
    return place


def _root_file_system() -> str:
    """A Debian with what the base image has of its own; imported as an image of one layer."""
    image = f"{_ROOT_FILE_SYSTEM}:{hashlib.sha256(' '.join([_SUITE, *_PACKAGES]).encode()).hexdigest()[:16]}"
    if _has(image):
        return image
    archive = _PLACE / "debian.tar"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", f"--include={','.join(_PACKAGES)}"]
    done = subprocess.run([*command, _SUITE, str(archive)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"mmdebstrap failed: {done.stderr.strip()}")
    podman("import", "--quiet", archive, image)
    archive.unlink()
    return image
