"""The adapter with an engine that breaks on demand: `python faulty_adapter.py DIRECTORY`.

Before each decode it looks for files there: `die` ends the engine's thread, `wedge` never comes back, and `wait` waits
until it is gone. All the rest is the adapter as it is.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adapter.__main__ import main
from adapter.context import Context, Piece

DIRECTORY = Path(sys.argv[1])
DECODE = Context.decode


def decode(self: Context, pieces: Sequence[Piece]) -> list[NDArray[np.float32] | None]:
    """Decode, unless told otherwise."""
    if (DIRECTORY / "die").exists():
        raise SystemExit
    while (DIRECTORY / "wedge").exists():
        ctypes.CDLL(None).pause()  # in C, without the interpreter's lock, as llama_decode would hang
    while (DIRECTORY / "wait").exists():
        time.sleep(0.02)
    return DECODE(self, pieces)


Context.decode = decode  # type: ignore[method-assign] # on purpose
sys.exit(main(["serve"]))
