"""Turns the guard on and off: `samebits.enable(guard=...)` ends here."""

from __future__ import annotations

from pathlib import Path

from samebits import settings
from samebits.contract import path
from samebits.engines import tickets
from samebits.engines.cpu import _cpu
from samebits.errors import SettingError
from samebits.guard import observe, settle
from samebits.guard.setting import Setting, parse
from samebits.guard.settle import Alarm
from samebits.mode import switch
from samebits.plan import contract_of, planner

_setting = Setting()
_seed = 0


def apply(text: str) -> None:
    """Puts a setting in force; what the switch calls, with "off" when it is turned off.

    Raises:
        SettingError: `text` is not understood; nothing was changed.
    """
    global _setting
    setting = parse(text)
    if setting == _setting:
        return
    observe.stop()
    _paths(setting.path)
    if setting.on:
        observe.start(setting, _seed)
    _setting = setting


def setting() -> Setting:
    """What is in force."""
    return _setting


def configure(
    *,
    seed: int | None = None,
    most: int | None = None,
    alarm: Alarm | None = None,
    dumps: str | Path | None = None,
) -> None:
    """Changes how the guard chooses and what it does. What is left out stays as it is.

    Args:
        seed: which calls are sampled, from the next time on that the guard is turned on.
        most: events on one device, from which on `alarm` is called, or `GuardError` raised.
        alarm: called with the device and its events.
        dumps: directory for operands and results of calls that failed a check.

    Raises:
        SettingError: the seed is no whole number of 64 bits, `most` none from 1 on, `alarm` cannot
            be called, `dumps` is no path; nothing was changed.
    """
    global _seed
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < 1 << 64):
        raise SettingError(f"guard: seed={seed!r} is no whole number from 0 to 2**64 - 1")
    if most is not None and not (isinstance(most, int) and most >= 1):
        raise SettingError(f"guard: most={most!r} is no number of events from 1 on")
    if alarm is not None and not callable(alarm):
        raise SettingError(f"guard: alarm={alarm!r}: give a function of a device and its events")
    if dumps is not None and not isinstance(dumps, str | Path):
        raise SettingError(f"guard: dumps={dumps!r} is no path of a directory")
    _seed = _seed if seed is None else seed
    settle.rules.most = settle.rules.most if most is None else most
    settle.rules.alarm = settle.rules.alarm if alarm is None else alarm
    settle.rules.dumps = settle.rules.dumps if dumps is None else str(dumps)


def _paths(on: bool) -> None:
    """Has the engines check paths, or not. On a CPU dtypes share the paths of their operation."""
    product = path.seed(contract_of("linear", dtype="fp32"))
    attention = contract_of("attention", dtype="fp32")
    _cpu.check_paths(on, product, path.seed(attention), attention.leaf)
    if tickets.checking() is not on:
        tickets.check(on)
        planner.forget()  # and with it every launch that was made ready


settle.rules.dumps = settings.guard_dumps()
switch.on_guard = apply
