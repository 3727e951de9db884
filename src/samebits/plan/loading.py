"""Puts a plan file in force: only on the stack that it was made on, or after checking every bit."""

from __future__ import annotations

from pathlib import Path

from samebits.errors import PlanError
from samebits.plan import planner, stack
from samebits.plan.document import Plan, read


def load(path: str | Path, *, verify: bool = False) -> Plan:
    """Puts the plan of a file in force on its device class, in this process.

    Shapes that it does not name get the analytical defaults. `reset` goes back to the tables.

    Args:
        verify: take a plan that was made with other versions of the libraries, after
            computing every schedule and comparing its bits with the contract's. Needs the device.

    Returns:
        The plan.

    Raises:
        PlanError: the file is damaged or was edited; it promises other bits than this release; it
            is for a device class that this machine has not; it was made with other versions of the
            libraries; a schedule has other bits than its contract, does not run here, or is for
            an operation that nothing compares.
        OSError: the file cannot be read.
    """
    plan = read(path)
    _require_stack(plan, str(path), verify)
    planner.put_in_force(plan)
    return plan


def _require_stack(plan: Plan, path: str, verify: bool) -> None:
    device = plan.stack.device_class
    if device != "cpu" and stack.gpu_of(device) is None:
        raise PlanError(
            f"{path} is for {device}, and this machine has no such device: build or tune a plan "
            f"for {planner.this_device_class()}, or look into this one with `samebits plan show`"
        )
    differences = plan.stack.differences(stack.here(device)) if device != "cpu" else []
    if not verify:
        if differences:
            raise PlanError(
                f"{path} was made with {', '.join(differences)}: its times hold there, and its "
                "vendor algorithms may have other bits here. Tune anew, or load it with "
                "verify=True, which computes every schedule once"
            )
        return
    from samebits.plan.verify import verify as verified  # loads Triton's kernels

    verdicts = list(verified(plan))
    wrong = [(verdict.key, struck) for verdict in verdicts for struck in verdict.struck]
    if wrong:
        key, first = wrong[0]
        raise PlanError(
            f"{path}: {len(wrong)} schedules have other bits than their contracts here; the first: "
            f"{key}, {first.schedule}: {first.why}. Tune anew"
        )
    unsure = [v.key for v in verdicts if v.compared is None]
    unsure += [v.key for v in verdicts if any(not s.library for s in v.unsuitable)]
    if unsure:
        raise PlanError(
            f"{path}: schedules of {len(unsure)} keys could not be compared here, or do not run; "
            f"the first: {unsure[0]}. Tune anew"
        )
