"""Where reports are printed to: a terminal, or a pipe or file that has no width."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, cast

from rich.console import Console

#: Wider than any line: nothing is wrapped, cut or left out.
_UNBOUNDED = 100_000


def open_console(*, stderr: bool = False) -> Console:
    """A console for standard output, or for standard error.

    At a terminal lines are wrapped to its width. Elsewhere each row of a table is one line, however
    long and without blanks at its end, so that ``grep`` and files get all columns.
    """
    console = Console(stderr=stderr)
    if console.is_terminal:
        return console
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=cast("IO[str]", _Trimmed(stream)), width=_UNBOUNDED)


def open_bar(console: Console) -> Console | None:
    """Where a progress bar goes: `console`, else standard error; None if neither is a terminal."""
    found = console if console.is_terminal else Console(stderr=True)
    return found if found.is_terminal else None


def lines(name: str) -> Callable[[int, int | None, str], None]:
    """Progress in a log: gives what writes a line to standard error at the beginning of a step.

    Args:
        name: what is under way.

    Returns:
        A function of steps done, steps in all, and what begins now. Of steps that are called alike
        the first has a line.
    """
    started, last = time.monotonic(), ""

    def tell(done: int, total: int | None, what: str) -> None:
        nonlocal last
        if what != last:
            last = what
            at = f"{done + 1} of {total}" if total else f"{done + 1}"
            elapsed = time.monotonic() - started
            # Nobody reads it, or there is no standard error: what is under way goes on.
            with suppress(OSError):
                if sys.stderr is not None:
                    print(f"{name}: {at}, {elapsed:.0f} s: {what}", file=sys.stderr, flush=True)

    return tell


class _Trimmed:
    """A text stream whose lines lose the blanks that fill them up."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
