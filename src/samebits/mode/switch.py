"""The switch: one state for the process, turned on and off as a whole.

States form a stack. `enable` and `disable` set the top of it, `deterministic` pushes one for the
life of a block and takes its own away again, whatever happened inside. The state in force is the
top one, for all threads; of two threads with blocks of different settings the later one decides.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from samebits import settings
from samebits.engines import family
from samebits.errors import LateSwitchWarning, SettingError
from samebits.mode import fallback, flags, install, selftest
from samebits.mode.fallback import Policy
from samebits.mode.state import Status, describe

_POLICIES = ("refuse", "warn", "allow")


@dataclass
class _Frame:
    """One entry of the stack: a policy, or None for off, what the guard checks, and a family of
    contracts."""

    policy: Policy | None = None
    guard: str = "off"
    contract: str = family.FAMILIES[0]


@dataclass
class _Process:
    """What is installed in this process."""

    installation: install.Installation = field(default_factory=install.Installation)
    flags: flags.Flags = field(default_factory=flags.Flags)
    on: bool = False


_lock = threading.RLock()
_stack: list[_Frame] = [_Frame()]
_process = _Process()


#: Puts a setting of the guard in force; the guard, a layer above, fills it in.
on_guard: Callable[[str], None] | None = None


def enable(
    *,
    policy: str = "refuse",
    allow: Iterable[str] = (),
    contract: str = "device",
    guard: str | None = None,
) -> None:
    """Turns the switch on in this process, for all threads. Idempotent.

    Every covered operation of torch then runs under its contract, on CPU and CUDA tensors, whether
    it is called directly, by a module, under autograd, autocast, ``inference_mode``, ``vmap`` or
    ``torch.compile``. The frameworks' own deterministic settings are turned on too.

    Args:
        policy: what happens to an operation that no contract covers: ``refuse`` raises
            `UncoveredError`, ``warn`` warns and runs torch's kernel, ``allow`` runs it in silence.
        allow: operations that may run uncovered in silence, e.g. ``["aten::cumsum"]``.
        contract: the family of contracts: ``device``, each device class's own; ``portable``, the
            same bits on every device (docs/portable.md); or ``exact``, those with products, sums,
            norms, softmax and attention whose sums are exact (docs/exact.md).
        guard: what is checked while things run: "off", "path", "sample:0.01", or both with a comma
            (docs/guard.md). None: what ``SAMEBITS_GUARD`` says.

    Raises:
        SettingError: ``policy``, ``contract``, ``guard`` or an entry of ``allow`` is not
            understood.
        SwitchError: an override is not in force, or threads flush subnormals; nothing was changed.
    """
    wanted = _frame(policy, allow, contract, guard)
    with _lock:
        top = _stack[-1]
        before = top.policy, top.contract, top.guard
        top.policy, top.contract, top.guard = wanted.policy, wanted.contract, wanted.guard
        try:
            _apply()
        except BaseException:
            top.policy, top.contract, top.guard = before
            raise


def disable() -> None:
    """Turns the switch off and restores torch's own kernels and flags. Idempotent.

    Inside a `deterministic` block it acts until the end of the block.
    """
    with _lock:
        _stack[-1].policy = None
        _apply()


@contextmanager
def deterministic(
    *,
    policy: str = "refuse",
    allow: Iterable[str] = (),
    contract: str = "device",
    guard: str | None = None,
) -> Iterator[None]:
    """The switch for a block of code, for all threads; blocks nest.

    Leaving the block, also by an exception, restores the state around it. Arguments and errors are
    those of `enable`.
    """
    with _block(_frame(policy, allow, contract, guard)):
        yield


@contextmanager
def stock() -> Iterator[None]:
    """torch's own kernels and flags for a block of code, whatever the state around it."""
    with _block(_Frame()):
        yield


@contextmanager
def _block(frame: _Frame) -> Iterator[None]:
    """The state of `frame` until the end of the block."""
    with _lock:
        _stack.append(frame)
        try:
            _apply()
        except BaseException:
            _drop(frame)
            raise
    try:
        yield
    finally:
        with _lock:
            _drop(frame)
            _apply()


def is_on() -> bool:
    """Whether the overrides are in force; cheaper than `status`."""
    return _process.on


def status() -> Status:
    """What is on, covered, hit and missing in this process."""
    with _lock:
        top = _stack[-1]
        return describe(top.policy, _process.installation, _process.flags, top.guard)


def _frame(policy: str, allow: Iterable[str], contract: str, guard: str | None) -> _Frame:
    family.check(contract)
    return _Frame(_policy(policy, allow), _guard(guard), contract)


def _policy(kind: str, allow: Iterable[str]) -> Policy:
    if kind not in _POLICIES:
        raise SettingError(f"policy={kind!r} is not understood: use one of {', '.join(_POLICIES)}")
    if isinstance(allow, str):
        raise SettingError(f"allow={allow!r} is one string: give a list of operation names")
    names = frozenset(n if "::" in n else f"aten::{n}" for n in allow)
    for name in names:
        if not torch._C._jit_get_schemas_for_operator(name.partition(".")[0]):
            raise SettingError(f"allow: torch has no operation {name!r}")
    return Policy(kind, names)


def _guard(text: str | None) -> str:
    return settings.guard_at_start() if text is None else text


def _drop(frame: _Frame) -> None:
    _stack[:] = [f for f in _stack if f is not frame]


def _apply() -> None:
    """Makes the process agree with the top of the stack."""
    policy, contract = _stack[-1].policy, _stack[-1].contract
    if policy is None:
        if _process.on:
            _turn_off()
        return
    if _process.on and contract != family.in_force():
        _turn_off()
    fallback.set_policy(policy)
    if _process.on:
        _tell_guard(_stack[-1].guard)
    else:
        try:
            family.put_in_force(contract)
            # Overrides first, and last when turning off: other threads never run torch's kernels
            # under flags that are neither the caller's nor theirs.
            _process.installation.install()
            flags.apply(_process.flags)
            selftest.run()
            _tell_guard(_stack[-1].guard)
        except BaseException:
            _turn_off()
            raise
        _process.on = True
        if policy.kind != "refuse" or policy.allow:  # else nothing runs that it could matter to
            for late in _process.flags.late:
                warnings.warn(late, LateSwitchWarning, stacklevel=4)


def _tell_guard(text: str) -> None:
    if on_guard is not None:
        on_guard(text)
    elif text != "off":
        raise SettingError(f"guard={text!r}: import samebits, which brings the guard along")


def _turn_off() -> None:
    _tell_guard("off")
    _process.flags.restore()
    _process.installation.remove()
    fallback.set_policy(Policy())
    family.put_in_force(family.FAMILIES[0])
    _process.on = False


def _in_forked_child() -> None:
    """A child has neither the threads of its parent's pool, for which torch would wait for ever,
    nor the thread that may have held the lock. On one thread its bits are the same.
    """
    global _lock
    _lock = threading.RLock()
    if _process.on:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
