"""What every command prints with: results on standard output for people or as JSON, progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

# Without a terminal nothing is wrapped or cut: the reader is a file, a pager or grep.
_NO_TERMINAL_WIDTH = 1000


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False)
    if not console.is_terminal:
        console.width = _NO_TERMINAL_WIDTH
    return console


def say(text: str = "", *, style: str | None = None) -> None:
    """A line of the result, on standard output."""
    _console(stderr=False).print(text, style=style)


def note(text: str) -> None:
    """A line about what is going on, on standard error: it is in nobody's way."""
    _console(stderr=True).print(text)


def show_json(value: Any) -> None:
    """The result for programs: one JSON document, NaN and infinities refused."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """A table whose columns named in `right` hold numbers; on a terminal its cells wrap instead of being cut."""
    console = _console(stderr=False)
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, soft_wrap=False)


def progress() -> Progress:
    """A bar on standard error for long work; nothing where that is no terminal."""
    console = _console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def confirm(question: str) -> bool:
    """Whether the person at the terminal types `yes`; without a terminal nobody does."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [yes/no] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def typed(question: str) -> str | None:
    """What the person at the terminal types; None without a terminal."""
    if not sys.stdin.isatty():
        return None
    print(f"{question} ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()
