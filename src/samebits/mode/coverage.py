"""The kind of every aten operation of the installed torch, from the table.

A composite runs other aten operations through the dispatcher, each classified on its own. An
operation that is in no group is unknown to this release; the switch refuses it.
"""

from __future__ import annotations

from functools import cache

import torch

from samebits.mode.table import GROUPS, Group, Kind

#: Composite operations that are refused although all their parts may be covered.
REFUSED_COMPOSITES = ("chain_matmul", "linalg_multi_dot")

_BY_NAME = {name: group for group in GROUPS for name in group.names.split()}
_COMPOSITE = Group(Kind.COMPOSITE, "runs other operations through the dispatcher", "")
_COVERED = Group(Kind.COVERED, "computed by samebits under a contract", "")
_UNKNOWN = Group(
    Kind.REFUSED,
    f"this release does not know it (torch {torch.__version__})",
    "",
    remedy="Update samebits, or allow it once you know that its bits do not depend on the batch",
)


def base_name(name: str) -> str:
    """``add_.Tensor`` -> ``add``: the name that the table uses."""
    base = name.partition(".")[0]
    if base in _BY_NAME or base.startswith("__"):
        return base
    return base.rstrip("_")


@cache
def registered(key: str) -> frozenset[str]:
    """Qualified names of all operations registered at a dispatch key, before any override."""
    return frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def has_kernel(name: str, key: str) -> bool:
    """Whether ``aten::name`` is registered at this dispatch key itself."""
    return f"aten::{name}" in registered(key)


def classify(name: str, covered: frozenset[str] | set[str]) -> Group:
    """The group of one aten schema.

    Args:
        name: schema name without ``aten::``, with its overload.
        covered: names that have an override, written or derived.
    """
    if name in covered:
        return _COVERED
    group = _BY_NAME.get(name) or _BY_NAME.get(base_name(name))
    if group is None:
        explicit = any(has_kernel(name, key) for key in _KERNEL_KEYS)
        return _UNKNOWN if explicit else _COMPOSITE
    return group


def moves_data(name: str) -> bool:
    """Whether a schema only moves, views or makes data, for tensors of any layout."""
    group = _BY_NAME.get(base_name(name))
    return group is GROUPS[0] or group is GROUPS[1]


_KERNEL_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@cache
def cpu_schemas() -> tuple[str, ...]:
    """Every aten schema that can run on dense CPU tensors, without ``aten::``."""
    keys = (*_KERNEL_KEYS, "CompositeImplicitAutograd")
    names = frozenset().union(*(registered(key) for key in keys))
    return tuple(sorted(n[6:] for n in names if n.startswith("aten::")))


def unknown(covered: frozenset[str] | set[str]) -> list[str]:
    """Schemas with a kernel that this release does not know."""
    return [n for n in cpu_schemas() if classify(n, covered) is _UNKNOWN]
