"""What a schedule may depend on, besides the bucket of rows that it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from samebits.contract import ContractKey, LinearContract
from samebits.engines.schedule import BUCKETS
from samebits.plan.contracts import ATTENTION_OPS, LINEAR_OPS, contract_for

__all__ = ["BUCKETS", "ScheduleKey", "family_of", "schedule_key"]


@dataclass(frozen=True)
class ScheduleKey:
    """Everything that the choice of a row of schedules can see. A test pins these field names.

    Like a contract's key it has no number of rows: those pick a bucket of the row. Unlike it, sizes
    are those of the operands at hand: a tensor-parallel rank's part of a weight has the tree of the
    whole weight and the schedule of its own size.

    Attributes:
        op: the family: "linear" for every matrix product, "grouped", "attention", "rms_norm", ...
        device: device class, e.g. "sm_90".
        dtype: storage type of the operands.
        out_dtype: storage type of the result.
        tree: text of the contract's tree, e.g. "split(4)"; empty where a contract has none.
        scaling: of a `LinearContract`.
        n: output features of the weight at hand.
        k: length of the reduction axis at hand.
        head_dim: D of q and k.
        value_dim: Dv of v.
        group: query heads that share one KV head.
        experts: expert weights at hand.
    """

    op: str
    device: str
    dtype: str
    out_dtype: str
    tree: str = ""
    scaling: str = "none"
    n: int | None = None
    k: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    group: int | None = None
    experts: int | None = None


def family_of(op: str) -> str:
    """The family of kernels that an operation runs on."""
    if op in LINEAR_OPS:
        return "linear"
    return "attention" if op in ATTENTION_OPS else op


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
    own = ScheduleKey(
        op=family_of(key.op),
        device=key.device,
        dtype=key.dtype,
        out_dtype=key.out_dtype,
        tree=str(getattr(contract, "tree", "")),
        scaling=contract.scaling if isinstance(contract, LinearContract) else "none",
        n=key.n,
        k=key.k,
        head_dim=key.head_dim,
        value_dim=key.value_dim,
        group=group,
        experts=experts,
    )
    return replace(own, n=own.n if n is None else n, k=own.k if k is None else k)
