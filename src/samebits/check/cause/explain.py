"""`explain`: where two runs that should agree part, and why.

First divergence: hashes of all modules' inputs and outputs (one run each), then of the operations
that one module runs itself (one more each), then the operands of the one operation (one more each).
Cause: that operation by itself with one factor changed at a time, then both runs again with that
operation alone computed under its contract. Some 14 forward passes in all, whatever the depth, and
memory for one operation's operands. Where a reordering is not all of it, the same again with the
switch on, where orders are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from samebits.check.cause.exchange import EVERYTHING
from samebits.check.cause.runs import Align, Call, Function, Runs
from samebits.check.cause.search import Search
from samebits.check.cause.twins import Twins
from samebits.check.environment import environment
from samebits.check.explanation import Explanation
from samebits.check.subject import device_of
from samebits.check.tape import tensors
from samebits.errors import SamebitsError, SettingError
from samebits.mode import deterministic


def explain(
    model: Any,
    first: Any,
    second: Any,
    *,
    align: Align = None,
    twins: Twins | None = None,
    name: str | None = None,
) -> Explanation:
    """Compares two runs that should agree, and says which operation parts them, why and how much.

    Nothing may be random about the calls but what torch's default generators give: the state of
    these is put back for every repetition. A run takes a handful of forward passes.

    Args:
        model: the module whose steps are compared, or a function of tensors.
        first, second: the two runs: functions without arguments that run the model (once or many
            times), or its arguments: a tensor, a tuple, or a dict of keywords.
        align: which request is compared, where the runs hold different batches: its row in each,
            ``(0, 2)``, or two `Request` with row and tokens. Without it runs of equal shapes are
            compared as wholes, and of other runs the first row.
        twins: functions that compute operations of other libraries as they should be, by name
            (``{"mylib::gemm": fn}``); torch's own have theirs.
        name: what the explanation calls the target.

    Raises:
        SettingError: the model is neither a module nor a function, `align` or a run has no form
            that is known, tensors are on the meta device, the runs write to the model's parameters
            or to their own arguments, or nothing could be compared.
        ShapeError: the runs' lengths differ and `align` does not say which tokens to compare, or
            it names a row that is not there.
    """
    if not isinstance(twins or {}, Mapping):
        raise SettingError(f"twins is {type(twins).__name__}: pass functions by operation's name")
    module, calls = _calls(model, first, second)
    held = () if module is None else (*module.parameters(), *module.buffers())
    if any(t.is_meta for t in (*held, *tensors((first, second)))):
        raise SettingError("tensors on the meta device have no bits: load the model first")
    target = name or _name(model)
    untouched = _versions(module, (first, second))
    runs = Runs(module, calls, align)
    _require_untouched(untouched)
    try:
        found = Search(runs, twins or {}).run()
        rest, passes = _rest(found, runs, align, twins or {})
    finally:
        runs.finish()
    device = device_of(module) if module is not None else torch.device("cpu")
    return replace(
        found, target=target, rest=rest, passes=runs.passes + passes,
        environment=environment(device),
    )  # fmt: skip


def _rest(
    found: Explanation, runs: Runs, align: Align, twins: Twins
) -> tuple[Explanation | None, int]:
    """What a reordering hides: the cause of what differs with the switch on; and passes it took."""
    left = found.swaps[-1] if found.swaps else None
    if found.kind != "reordering" or left is None or left.what != EVERYTHING or not left.differing:
        return None, 0
    runs.rewind()
    with deterministic():
        again = Runs(runs.module, runs.calls, align)
        try:
            rest = Search(again, twins).run()
        except SamebitsError:  # what was found already is worth more
            return None, again.passes
        finally:
            again.finish()
    return None if rest.kind is None else rest, again.passes


def _calls(model: Any, first: Any, second: Any) -> tuple[torch.nn.Module | None, tuple[Call, Call]]:
    given = [_is_call(x) for x in (first, second)]
    if (model is None and not all(given)) or not (model is None or callable(model)):
        raise SettingError(
            f"{type(model).__name__} cannot be explained: pass a module or a function of tensors"
        )
    for x, is_call in zip((first, second), given, strict=True):
        if not is_call and not isinstance(x, (torch.Tensor, tuple, list, Mapping)):
            raise SettingError(
                f"a run is {type(x).__name__}: pass a function without arguments, or the model's "
                "arguments as a tensor, a tuple or a dict"
            )
    module = model if isinstance(model, torch.nn.Module) else None
    if module is None and model is not None and not all(given):
        module = Function(model)
    x, y = (
        call if is_call else functools.partial(_apply, module, call)
        for call, is_call in zip((first, second), given, strict=True)
    )
    return module, (x, y)


def _versions(
    module: torch.nn.Module | None, given: tuple[Any, Any]
) -> list[tuple[str, torch.Tensor, int]]:
    """Parameters and arguments, with how often each was written to so far."""
    named: list[tuple[str, torch.Tensor]] = [
        (f"parameter {name}", p)
        for name, p in (module.named_parameters() if module is not None else ())
    ]
    named += [
        (f"an argument of the {side} run", t)
        for side, value in zip(("first", "second"), given, strict=True)
        for t in tensors(value)
    ]
    return [(name, t, t._version) for name, t in named if not t.is_inference()]


def _require_untouched(before: list[tuple[str, torch.Tensor, int]]) -> None:
    """Raises if one was written to: only the generators and the model's buffers are put back."""
    for name, t, version in before:
        if t._version != version:
            raise SettingError(
                f"the runs write to {name}, so that no repetition starts where the first one did: "
                "pass two functions without arguments that run a copy"
            )


def _is_call(x: Any) -> bool:
    return callable(x) and not isinstance(x, torch.Tensor)


def _apply(module: Any, given: Any) -> Any:
    if isinstance(given, Mapping):
        return module(**given)
    return module(given) if isinstance(given, torch.Tensor) else module(*given)


def _name(model: Any) -> str:
    return str(getattr(model, "__name__", type(model).__name__))
