"""The kind of every aten operation of the installed torch, from the table.

A composite runs other aten operations through the dispatcher, each classified on its own. An
operation that is in no group is unknown to this release; the switch refuses it.
"""

from __future__ import annotations

from functools import cache

import torch

from samebits.mode.table import GROUPS, Group, Kind
from samebits.mode.table_cuda import CUDA_GROUPS

#: Composite operations that are refused although all their parts may be covered.
REFUSED_COMPOSITES = ("chain_matmul", "linalg_multi_dot")

_BY_NAME = {name: group for group in GROUPS for name in group.names.split()}
_BY_NAME_CUDA = {name: group for group in CUDA_GROUPS for name in group.names.split()}
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
    if base in _BY_NAME or base in _BY_NAME_CUDA or base.startswith("__"):
        return base
    return base.rstrip("_")


def _functional(name: str) -> str:
    """``scatter_.reduce`` and ``scatter.reduce_out`` -> ``scatter.reduce``."""
    overload = name.partition(".")[2].removesuffix("_out").removesuffix("_values")
    return f"{base_name(name)}.{overload}"


@cache
def registered(key: str) -> frozenset[str]:
    """Qualified names of all operations registered at a dispatch key, before any override."""
    return frozenset(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def has_kernel(name: str, key: str) -> bool:
    """Whether ``aten::name`` is registered at this dispatch key itself."""
    return f"aten::{name}" in registered(key)


def classify(name: str, covered: frozenset[str] | set[str], key: str = "CPU") -> Group:
    """The group of one aten schema.

    Args:
        name: schema name without ``aten::``, with its overload.
        covered: names that have an override at this key, written or derived.
        key: ``CPU`` or ``CUDA``: where the tensors are.
    """
    if name in covered:
        return _COVERED
    base, group = base_name(name), None
    if key == "CUDA":
        group = _BY_NAME_CUDA.get(_functional(name)) or _BY_NAME_CUDA.get(base)
    group = group or _BY_NAME.get(name) or _BY_NAME.get(base)
    if group is None:
        explicit = any(has_kernel(name, k) for k in (key, *_EXPLICIT))
        return _UNKNOWN if explicit else _COMPOSITE
    return group


def moves_data(name: str) -> bool:
    """Whether a schema only moves, views or makes data, for tensors of any layout."""
    group = _BY_NAME.get(base_name(name))
    return group is GROUPS[0] or group is GROUPS[1]


_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


@cache
def schemas(key: str = "CPU") -> tuple[str, ...]:
    """Every aten schema that can run on dense tensors of ``CPU`` or ``CUDA``, without ``aten::``.

    Of a composite with a kernel of its own for the other device it is that kernel that counts.
    """
    keys = (key, *_EXPLICIT, "CompositeImplicitAutograd")
    names = frozenset().union(*(registered(k) for k in keys))
    return tuple(sorted(n[6:] for n in names if n.startswith("aten::")))


def unknown(covered: frozenset[str] | set[str], key: str = "CPU") -> list[str]:
    """Schemas with a kernel that this release does not know."""
    return [n for n in schemas(key) if classify(n, covered, key) is _UNKNOWN]
