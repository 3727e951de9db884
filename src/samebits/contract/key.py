"""What a contract may depend on."""

from __future__ import annotations

import msgspec


class ContractKey(msgspec.Struct, frozen=True):
    """Everything that the choice of a contract can see. A test pins these field names.

    There is no number of rows, no batch, no longest sequence, no number of bytes, no timing, no
    history, no thread count, no environment: a contract that depended on one of these could not be
    written down.

    Attributes:
        op: the operation, e.g. "linear", "attention", "softmax".
        dtype: storage type of the operands ("fp32", "bf16", "fp16", "tf32", "e4m3", "e5m2").
        out_dtype: storage type of the result.
        device: device class: "cpu", or a compute capability such as "sm_90"; or what all of them
            share, "portable", or, where sums are exact, "exact".
        n: output features of a weight, of the *whole* weight when it is sharded.
        k: length of a weight's reduction axis, of the whole weight.
        head_dim: D of q and k.
        value_dim: Dv of v.
        kv_dtype: storage type of k and v where it is not that of q (an fp8 cache), or None.
        activation: what the epilogue ends with, or None.
        tree: text of the tree that the caller asks for, or None for the device class's own.
        scaling: how fp8 operands are scaled (see `LinearContract`), or None for blocks.
    """

    op: str
    dtype: str
    out_dtype: str
    device: str
    n: int | None = None
    k: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    kv_dtype: str | None = None
    activation: str | None = None
    tree: str | None = None
    scaling: str | None = None
