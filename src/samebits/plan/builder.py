"""From a model or shapes to a plan: every key with its contract and its schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from samebits.contract import ContractKey, devices
from samebits.contract.operands import dtype_name
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.errors import PlanError
from samebits.plan import planner, stack
from samebits.plan.contracts import DEVICES, EXACT, device_class_of, natural_output
from samebits.plan.document import Choice, Entry, Plan
from samebits.plan.families import default_at, has_schedules
from samebits.plan.keys import contract_at, schedule_key
from samebits.plan.models import Model, Weight, cuts, model_of, shared_leaves
from samebits.plan.stack import Stack

Shapes = str | torch.nn.Module | Iterable[tuple[int, int]]


def build(
    model_or_shapes: Shapes,
    *,
    device: str,
    dtype: Any = "bf16",
    tp: Iterable[int] = (1,),
) -> Plan:
    """A plan for a model: contracts, and schedules from the plan in force or the defaults.

    Nothing is measured and no GPU is needed; `samebits plan tune` measures. The same arguments
    always give the same ids.

    Args:
        model_or_shapes: the name of a known model (`models.MODELS`), a module (its `Linear`
            weights), or shapes (n, k) of weights.
        device: device class: "cpu", "sm_90" (or "h100", "h200"), ... (`device_of`).
        dtype: storage type of the operands; of a module, None takes its own.
        tp: tensor-parallel sizes.

    Raises:
        PlanError: the model or the device is not known, or the model cannot be cut.
        ContractError: no contract covers a weight.
    """
    device = device_of(device)
    keys = keys_of(model_or_shapes, device=device, dtype=dtype, tp=tp)
    return Plan.of(entries_of(keys), stack.here(device), samebits=release())


def device_of(name: str) -> str:
    """A device class that can have a plan, by its own name or by that of a chip.

    Raises:
        PlanError: there is none of that name, or it is "exact", whose sums have no order to plan.
    """
    found = device_class_of(name)
    classes = {*DEVICES, *devices.described()}
    if found in classes:
        return found
    chips = {
        c: ", ".join(a for a, owner in devices.aliases().items() if owner == c) for c in classes
    }
    known = ", ".join(f"{c} ({chips[c]})" if chips[c] else c for c in sorted(classes))
    why = f"there is no device class {name!r}"
    if found == EXACT:
        why = "exact sums have no tree and no schedules, so there is nothing to plan"
    raise PlanError(f"{why}. Device classes with plans are {known}")


def entries_of(keys: Iterable[ScheduleKey]) -> list[Entry]:
    """An entry for each key: of the plan in force, else the analytical defaults.

    Of a plan that was made on another stack they have no times, and no algorithm of another version
    of a vendor's library.
    """
    keys = tuple(keys)
    known = {
        entry.key: _here(entry, plan.stack)
        for plan in {key.device: planner.in_force(key.device) for key in keys}.values()
        for entry in plan.entries
    }
    return [known.get(key) or default_entry(key) for key in keys]


def _here(entry: Entry, made_on: Stack) -> Entry:
    """What an entry says on this stack."""
    here = stack.here(entry.key.device)
    if made_on.times_hold_on(here):
        return entry
    choices = []
    for choice, own in zip(entry.choices, planner.own_of(entry.key, entry.choices), strict=True):
        vendors = bool(choice.schedule.library) and made_on.cublaslt == here.cublaslt
        choices.append(
            Choice(schedule=choice.schedule, own=own) if vendors else Choice(schedule=own)
        )
    return Entry(key=entry.key, contract=entry.contract, choices=tuple(choices))


def keys_of(
    model_or_shapes: Shapes, *, device: str, dtype: Any = "bf16", tp: Iterable[int] = (1,)
) -> list[ScheduleKey]:
    """The schedule keys of a model, each once: its weights in order, then the rest of a layer.

    A part of a weight comes with the tree of the whole weight, and with the tree that its own size
    would have: the one is used by a caller who names the whole weight, the other by one who has
    nothing but the part. Where there are several ranks, row-parallel parts come with what
    `row_parallel_linear` asks for, too. Arguments and errors as `build`.
    """
    kind, tp = dtype_name(dtype), tuple(tp)
    found: dict[ScheduleKey, None] = {}
    for weight, n, k in cuts(_weights(model_or_shapes), tp):
        for whole in ((weight.n, weight.k), (n, k)):
            key = ContractKey(
                op="grouped_linear" if weight.experts else "linear",
                dtype=kind,
                out_dtype=natural_output(kind),
                device=device,
                n=whole[0],
                k=whole[1],
            )
            found[schedule_key(key, n, k, experts=weight.experts or None)] = None
        leaves = shared_leaves(weight.k) * k // weight.k
        row_parallel = weight.cut == "k" and not weight.experts and max(tp) > 1
        if row_parallel and leaves and device.startswith("sm_"):
            out = natural_output(kind) if k == weight.k else "fp32"
            tree = f"balanced({leaves})" if leaves > 1 else "chain"
            found[schedule_key(ContractKey("linear", kind, out, device, n=n, k=k, tree=tree))] = (
                None
            )
    if isinstance(model_or_shapes, str) and kind in ("bf16", "fp16"):
        model = model_of(model_or_shapes)
        for key, length in _rows(model, kind, device):
            found[schedule_key(key, k=length)] = None
        attention = ContractKey(
            "attention", kind, kind, device, head_dim=model.head_dim, value_dim=model.value_dim
        )
        found[schedule_key(attention, group=model.group)] = None
    return list(found)


def _rows(model: Model, dtype: str, device: str) -> Iterator[tuple[ContractKey, int]]:
    """Row operations of a decoder, each with the length of its rows."""
    yield ContractKey("rms_norm", dtype, dtype, device), model.hidden
    yield ContractKey("log_softmax", dtype, "fp32", device), model.vocab


def _weights(model_or_shapes: Shapes) -> list[Weight]:
    if isinstance(model_or_shapes, str):
        return list(model_of(model_or_shapes).weights)
    if isinstance(model_or_shapes, torch.nn.Module):
        linear = (m for m in model_or_shapes.modules() if isinstance(m, torch.nn.Linear))
        shapes: Iterable[tuple[int, int]] = [(m.out_features, m.in_features) for m in linear]
    else:
        shapes = model_or_shapes
    weights = []
    for shape in dict.fromkeys(tuple(shape) for shape in shapes):
        sizes = all(isinstance(size, int) and 0 < size < 2**31 for size in shape)
        if len(shape) != 2 or not sizes:
            raise PlanError(
                f"shape {shape}: give (n, k), the output features and the length of k, each below "
                "2**31"
            )
        weights.append(Weight(f"{shape[0]}x{shape[1]}", *shape))
    if not weights:
        raise PlanError("there is nothing to plan: no shape was given, and no module was linear")
    return weights


def default_entry(key: ScheduleKey) -> Entry:
    """The entry of a key that nobody has measured: the analytical defaults."""
    choices: tuple[Choice, ...] = ()
    if has_schedules(key):
        choices = tuple(
            Choice(schedule=default_at(key, bucket)) for bucket in range(len(BUCKETS) + 1)
        )
    return Entry(key=key, contract=contract_at(key).text, choices=choices)


def release() -> str:
    """This release of samebits."""
    import samebits

    return samebits.__version__
