"""Image layers and other archives: packed so that equal content has an equal digest, unpacked inside one folder."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path, PurePosixPath

FILE_MODE = 0o644
PROGRAM_MODE = 0o755
_EXECUTABLE = 0o100


class ArchiveError(Exception):
    """An archive holds what must not be unpacked; the message names it."""


def mode_of(path: Path) -> int:
    """A file's mode reduced to what Git keeps of it, so that a umask does not change a digest."""
    return PROGRAM_MODE if path.stat().st_mode & _EXECUTABLE else FILE_MODE


def pack(files: Mapping[PurePosixPath, tuple[bytes, int]]) -> tuple[bytes, bytes]:
    """A layer from absolute paths to content and mode: (tar, gzipped tar), sorted, without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        folders = {parent for path in files for parent in path.parents if parent.name}
        for path in sorted({*folders, *files}):
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            if path in files:
                content, entry.mode = files[path]
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, PROGRAM_MODE
                archive.addfile(entry)
    return buffer.getvalue(), gzip.compress(buffer.getvalue(), mtime=0)


def unpack(content: bytes, target: Path) -> None:
    """Unpack a tar, compressed or not. Raises ArchiveError unless it holds files and folders inside `target` only."""
    root = target.resolve()
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                path = (root / member.name).resolve()
                if not path.is_relative_to(root) or not (member.isfile() or member.isdir()):
                    raise ArchiveError(f"{member.name} is not a plain file or folder inside the archive")
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                source = archive.extractfile(member)
                path.write_bytes(source.read() if source else b"")
                path.chmod(member.mode & 0o777)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArchiveError(f"not a readable tar archive: {error}") from error
