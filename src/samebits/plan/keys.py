"""From the key of a contract to the key of its schedules, and back."""

from __future__ import annotations

from functools import lru_cache

from samebits.contract import Contract, ContractKey, LinearContract
from samebits.engines.schedule import ScheduleKey
from samebits.errors import ContractError
from samebits.plan.contracts import ATTENTION_OPS, LINEAR_OPS, contract_for

#: Families that are not named after the operation.
_FAMILIES = {
    **dict.fromkeys(LINEAR_OPS, "linear"),
    **dict.fromkeys(ATTENTION_OPS, "attention"),
    "grouped_linear": "grouped",
}
#: The operation that stands for a family in a contract's key.
_OPS = {"grouped": "grouped_linear"}


def family_of(op: str) -> str:
    """The family of kernels that an operation runs on."""
    return _FAMILIES.get(op, op)


@lru_cache(maxsize=4096)
def schedule_key(
    key: ContractKey,
    n: int | None = None,
    k: int | None = None,
    group: int | None = None,
    experts: int | None = None,
) -> ScheduleKey:
    """The schedule key of an operation.

    Args:
        key: what decides the operation's contract.
        n, k: sizes of the weight at hand, where it is a part of the key's.
        group, experts: see `ScheduleKey`.

    Raises:
        ContractError: no contract covers the key.
    """
    contract = contract_for(key)
    return ScheduleKey(
        op=family_of(key.op),
        device=key.device,
        dtype=key.dtype,
        out_dtype=key.out_dtype,
        tree=_tree(contract),
        scaling=contract.scaling if isinstance(contract, LinearContract) else "none",
        n=key.n if n is None else n,
        k=key.k if k is None else k,
        head_dim=key.head_dim,
        value_dim=key.value_dim,
        kv_dtype=key.kv_dtype,
        group=group,
        experts=experts,
    )


def contract_at(key: ScheduleKey) -> Contract:
    """The contract of the operation at hand.

    Raises:
        ContractError: no contract covers the key, or its tree is none that the operation can have.
    """
    op = _OPS.get(key.op, key.op)
    linear, fp8 = op in LINEAR_OPS, key.dtype in ("e4m3", "e5m2")
    contract = contract_for(
        ContractKey(
            op=op,
            dtype=key.dtype,
            out_dtype=key.out_dtype,
            device=key.device,
            n=key.n,
            k=key.k,
            head_dim=key.head_dim,
            value_dim=key.value_dim,
            kv_dtype=key.kv_dtype,
            tree=key.tree if linear else None,
            scaling=key.scaling if linear and fp8 else None,
        )
    )
    if _tree(contract) != key.tree:
        raise ContractError(f"{key}: the tree of this operation is {_tree(contract)}")
    return contract


def _tree(contract: Contract) -> str:
    return str(getattr(contract, "tree", ""))
