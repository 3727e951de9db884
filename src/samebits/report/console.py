"""Where reports are printed to: a terminal, or a pipe or file that has no width."""

from __future__ import annotations

from rich.console import Console

#: Wider than any line: nothing is wrapped, cut or left out.
_UNBOUNDED = 100_000


def open_console(*, stderr: bool = False) -> Console:
    """A console for standard output, or for standard error.

    At a terminal lines are wrapped to its width. Elsewhere each row of a table is one line, however
    long, so that ``grep`` and files get all columns.
    """
    console = Console(stderr=stderr)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console
