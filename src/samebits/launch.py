"""``samebits run``: starts a command whose Python processes have the switch on from the start.

A directory with a ``sitecustomize`` module is put on PYTHONPATH. Python imports it before any code
of the user's; it waits for the first import of torch and turns the switch on right behind it, so
that processes without torch pay nothing. Python subprocesses of the command inherit it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

HOOKS = Path(__file__).with_name("startup")


def environment() -> dict[str, str]:
    """This process's environment with the switch on for Python processes started in it."""
    inherited = dict(os.environ)
    paths = [str(HOOKS), *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return inherited | {"SAMEBITS": "1", "PYTHONPATH": os.pathsep.join(paths)}


def replace_process(command: Sequence[str]) -> NoReturn:
    """Becomes `command`; its exit status and signals are then the caller's own.

    Raises:
        OSError: there is no such command.
    """
    sys.stdout.flush()
    os.execvpe(command[0], list(command), environment())
