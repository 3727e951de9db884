"""From a key to a contract: pure functions of operation, weight shape, dtypes and device class.

**CPU.** One tree for every shape: `lanes(16)` for matrix products, leaves of 512 keys for
attention, `segment(1024) of lanes(16) folded pairwise` for rows.

**sm_90.** Matrix products are a `chain`, which every tile, warp count and non-split vendor kernel
shares, with two exceptions. Skinny weights with a long K do not fill the chip at small M: they get
`split(4)` (`hopper_tree`). Grouped products keep the chain: the experts of one token fill the chip
together. Block-scaled fp8 gets `segment(128)`, one leaf a scale. Rows have one tree for every
length, `segment(8192) of lanes(1024, neighbours) folded pairwise`.

**Other chips** are described, not run: a product has a chain in their arithmetic
(`samebits.contract.devices`). The accelerator on paper has a plan of its own, too.

**exact** is a class of its own: the exact sum, rounded once, on any device (`contract.exact`).

**portable.** What every device computes alike: see `samebits.contract.portable`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, get_args, overload

from samebits.contract import (
    CUDA_FMA,
    IEEE_FMA,
    PORTABLE,
    Arithmetic,
    AttentionContract,
    Chain,
    Contract,
    ContractKey,
    ExactContract,
    Lanes,
    LinearContract,
    RowContract,
    Segment,
    Split,
    Tree,
    devices,
    hopper_attention,
    hopper_mma,
    parse_tree,
    portable_attention,
    portable_linear,
    portable_row,
)
from samebits.contract.linear import ACTIVATIONS
from samebits.contract.operands import OUTPUTS, SCALE_BLOCK, dtype_name
from samebits.contract.rows import HOPPER_ROW_TREE, LEAF_FORMULAS
from samebits.engines.paper.schedule import tree_of as paper_tree
from samebits.errors import ContractError

LinearOp = Literal[
    "linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "einsum",
    "conv1d", "conv2d", "grouped_linear",
]  # fmt: skip
AttentionOp = Literal["attention", "scaled_dot_product_attention"]
RowOp = Literal[
    "sum", "mean", "var", "std", "norm", "logsumexp", "softmax", "log_softmax", "rms_norm",
    "layer_norm",
]  # fmt: skip
LINEAR_OPS: frozenset[str] = frozenset(get_args(LinearOp))
ATTENTION_OPS: frozenset[str] = frozenset(get_args(AttentionOp))
ROW_OPS: frozenset[str] = frozenset(get_args(RowOp))
#: Products whose kernels do not compute the portable chain.
_NOT_PORTABLE = ("conv1d", "conv2d", "grouped_linear")
OPS = LINEAR_OPS | ATTENTION_OPS | ROW_OPS
DEVICES = ("cpu", "sm_90", PORTABLE)
#: In the place of a device class: the exact contracts, which all devices share.
EXACT = "exact"
#: What else a device class is called, besides the names of its chips.
_DEVICE_ALIASES = {"sm_90a": "sm_90"}

#: Streaming multiprocessors of the largest sm_90 part, and the columns of its smallest good tile.
_HOPPER_SMS, _HOPPER_TILE = 132, 64
#: A leaf shorter than this costs more in folding than it wins.
_SHORTEST_LEAF = 512
_HOPPER_SPLIT = 4


def hopper_tree(n: int, k: int) -> Tree:
    """The tree of a bf16, fp16 or tf32 weight [n, k] on sm_90.

    `split(4)` when four leaves of every 64-column tile still fit into one wave of 132 SMs
    (n <= 2112) and a leaf has at least 512 of k (k >= 2048); else `chain`. Measured at M = 1 on an
    H200, split(4) / chain: (576, 7168) 7.4/12.5 us, (256, 7168) 6.9/11.8 us, (2112, 7168)
    11.8/15.1 us; at (4096, 4096) a chain already is as fast as cuBLAS.
    """
    tiles = -(-n // _HOPPER_TILE)
    skinny = _HOPPER_SPLIT * tiles <= _HOPPER_SMS
    return Split(_HOPPER_SPLIT) if skinny and k >= _HOPPER_SPLIT * _SHORTEST_LEAF else Chain()


@overload
def contract_of(
    op: LinearOp, *, dtype: Any, n: int | None = ..., k: int | None = ..., out_dtype: Any = ...,
    activation: str | None = ..., tree: Tree | str | None = ..., scaling: str | None = ...,
    device: str = ...,
) -> LinearContract: ...  # fmt: skip
@overload
def contract_of(
    op: AttentionOp, *, dtype: Any, head_dim: int | None = ..., value_dim: int | None = ...,
    kv_dtype: Any = ..., out_dtype: Any = ..., device: str = ...,
) -> AttentionContract: ...  # fmt: skip
@overload
def contract_of(
    op: RowOp, *, dtype: Any, n: int | None = ..., out_dtype: Any = ..., device: str = ...
) -> RowContract: ...
@overload
def contract_of(
    op: str, *, dtype: Any, n: int | None = ..., k: int | None = ..., head_dim: int | None = ...,
    value_dim: int | None = ..., kv_dtype: Any = ..., out_dtype: Any = ...,
    activation: str | None = ..., tree: Tree | str | None = ..., scaling: str | None = ...,
    device: str = ...,
) -> Contract: ...  # fmt: skip
def contract_of(
    op: str,
    *,
    dtype: Any,
    n: int | None = None,
    k: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    kv_dtype: Any = None,
    out_dtype: Any = None,
    activation: str | None = None,
    tree: Tree | str | None = None,
    scaling: str | None = None,
    device: str = "cpu",
) -> Contract:
    """The contract of an operation: what decides its bits, and all of it.

    Args:
        op: "linear" (or another matrix product: "mm", "addmm", "bmm", ...), "attention", or a row
            reduction: "sum", "mean", "var", "softmax", "log_softmax", "logsumexp", "rms_norm", ...
        dtype: storage type of the operands: a torch dtype or its name; "tf32" for fp32 weights on
            tensor cores; fp8 means block-scaled weights, unless `scaling` says otherwise.
        n: output features of the whole weight (needed for matrix products on a GPU).
        k: length of the whole weight's reduction axis (likewise).
        head_dim: D of q and k, for attention.
        value_dim: Dv of v; `head_dim` if None.
        kv_dtype: storage type of k and v, "e4m3" for an fp8 cache; that of q if None.
        out_dtype: storage type of the result; that of the operands if None (bf16 for fp8).
        activation: what the epilogue ends with, e.g. "relu".
        tree: for matrix products on a GPU: another tree than the device class's own, e.g.
            "balanced(8)" for weights that tensor-parallel ranks share, or "segment(512)".
        scaling: for fp8: "block" (the default), "row" or "none"; see `LinearContract`.
        device: the device class: "cpu" or "sm_90" (also called "h100" or "h200"); another chip that
            is described (`contract.devices`: "v100", "a100", "ada", "b200"); or what all of them
            share: "portable", or "exact", the contract without a tree.

    Returns:
        A frozen contract with .text, .id, .tree, .arithmetic, .render() and .evaluate().

    Raises:
        ContractError: no contract covers the operation, its dtype or the device class.
        DTypeError: the dtype is unknown.

    Example:
        >>> contract_of("linear", n=4096, k=4096, dtype="bf16").tree
        Lanes(width=16)
    """
    dtype = dtype_name(dtype)
    return contract_for(
        ContractKey(
            op=op,
            dtype=dtype,
            out_dtype=natural_output(dtype) if out_dtype is None else dtype_name(out_dtype),
            device=device_class_of(device),
            n=n,
            k=k,
            head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
            kv_dtype=None if kv_dtype is None else dtype_name(kv_dtype),
            activation=activation,
            tree=None if tree is None else str(tree),
            scaling=scaling,
        )
    )


def natural_output(dtype: str) -> str:
    """The storage type of a result when nobody asks for another one."""
    return {"tf32": "fp32", "e4m3": "bf16", "e5m2": "bf16"}.get(dtype, dtype)


def device_class_of(device: str) -> str:
    """A device class by its own name, e.g. "sm_90" for "H200"."""
    name = str(device).lower()
    return _DEVICE_ALIASES.get(name) or devices.aliases().get(name, name)


@lru_cache(maxsize=4096)
def contract_for(key: ContractKey) -> Contract:
    """The contract of a key. Errors as `contract_of`."""
    # The fast twin of evaluation registers itself with the contracts when it is imported.
    import samebits.engines.cpu.evaluate  # noqa: F401

    if key.op not in OPS:
        raise ContractError(f"no contract for operation {key.op!r}: use one of {sorted(OPS)}")
    if key.device == EXACT:
        return _exact(key)
    if key.device not in DEVICES and key.device not in devices.described():
        known = sorted({*DEVICES, EXACT, *devices.described()})
        raise ContractError(f"no contracts for device class {key.device!r}: use one of {known}")
    for name in ("n", "k", "head_dim", "value_dim"):
        size = getattr(key, name)
        if size is not None and size < 0:
            raise ContractError(f"{key.op}: {name} = {size} is negative")
    if key.activation is not None and (
        key.op not in LINEAR_OPS or key.activation not in ACTIVATIONS
    ):
        raise ContractError(f"{key.op}: no contract fuses activation {key.activation!r}")
    if key.device not in DEVICES:
        return _described(key)
    if key.op in LINEAR_OPS:
        return _linear(key)
    if key.tree is not None or key.scaling is not None:
        raise ContractError(f"{key.op}: tree and scaling are for matrix products")
    if key.op in ATTENTION_OPS:
        return _attention(key)
    return _row(key)


def _described(key: ContractKey) -> Contract:
    """The contract on a chip of which there is a description, and no kernel."""
    if key.device == devices.PAPER and key.op in ATTENTION_OPS:
        unit = devices.arithmetic_of(key.device, key.dtype)
        return AttentionContract(
            unit, key.dtype, key.out_dtype, positions="absolute", maximum="ceil(64)",
            exp2="poly(4)",
        )  # fmt: skip
    if key.device == devices.PAPER and key.op in ROW_OPS:
        return portable_row(key.op, key.dtype, key.out_dtype)
    if key.op not in LINEAR_OPS or key.out_dtype not in OUTPUTS:
        raise _no(key, "of this class products are described, with fp32, bf16 and fp16 results")
    if key.n is None or key.k is None:
        raise ContractError(f"{key.op} on {key.device}: give n and k, they decide the tree")
    tree: Tree = Chain()
    if key.tree is not None:
        tree = parse_tree(key.tree)
    elif key.device == devices.PAPER:
        tree = paper_tree(key.n, key.k)
    fp32 = key.dtype == "fp32" and key.device != devices.PAPER
    step: Arithmetic = CUDA_FMA if fp32 else devices.arithmetic_of(key.device, key.dtype)
    epilogue = ("alpha", "bias", *(() if key.activation is None else (key.activation,)))
    return LinearContract(tree, step, key.dtype, key.out_dtype, epilogue=epilogue)


def _no(key: ContractKey, remedy: str) -> ContractError:
    return ContractError(
        f"no contract for {key.op} with {key.dtype} operands and {key.out_dtype} results on "
        f"{key.device}: {remedy}"
    )


def _linear(key: ContractKey) -> LinearContract:
    epilogue = ("alpha", "bias") if key.activation is None else ("alpha", "bias", key.activation)
    if key.out_dtype not in OUTPUTS:
        raise _no(key, "results are fp32, bf16 or fp16")
    fp8 = key.dtype in ("e4m3", "e5m2")
    if key.scaling is not None and not fp8:
        raise ContractError(f"{key.op}: scales are for fp8 operands, not for {key.dtype}")
    if key.device == "cpu":
        if key.dtype not in OUTPUTS:
            raise _no(key, "the CPU engine takes fp32, bf16 and fp16")
        if key.tree not in (None, str(Lanes(16))):
            raise _no(key, f"the tree is {Lanes(16)}, not {key.tree}")
        return LinearContract(Lanes(16), IEEE_FMA, key.dtype, key.out_dtype, epilogue=epilogue)
    if key.device == PORTABLE:
        if key.dtype not in OUTPUTS or key.op in _NOT_PORTABLE:
            raise _no(key, "products of fp32, bf16 and fp16 with one weight are portable")
        if key.tree not in (None, str(Chain())):
            raise _no(key, f"the tree is {Chain()}, not {key.tree}")
        return portable_linear(key.dtype, key.out_dtype, epilogue)
    if key.n is None or key.k is None:
        raise ContractError(f"{key.op} on {key.device}: give n and k, they decide the tree")
    scaling = (key.scaling or "block") if fp8 else "none"
    if key.tree is not None:
        tree = parse_tree(key.tree)
        if not isinstance(getattr(tree, "leaf", tree), Chain):
            raise _no(key, f"leaves are chains, and the tree {tree} has others")
    elif fp8:
        tree = Segment(SCALE_BLOCK) if scaling == "block" else Chain()
    else:
        chain = key.dtype == "fp32" or key.op == "grouped_linear"
        tree = Chain() if chain else hopper_tree(key.n, key.k)
    arithmetic = CUDA_FMA if key.dtype == "fp32" else hopper_mma(key.dtype)
    return LinearContract(tree, arithmetic, key.dtype, key.out_dtype, scaling, epilogue)


def _exact(key: ContractKey) -> ExactContract:
    import samebits.engines.cpu.exact  # noqa: F401  (the fast twin of evaluation)

    if key.activation or key.tree or key.scaling or key.kv_dtype not in (None, key.dtype):
        raise _no(key, "an exact sum has no tree, and nothing is fused to it")
    op = "linear" if key.op in LINEAR_OPS else "attention" if key.op in ATTENTION_OPS else key.op
    return ExactContract(op, key.dtype, key.out_dtype)


def _attention(key: ContractKey) -> AttentionContract:
    if key.dtype not in OUTPUTS or key.out_dtype != key.dtype:
        raise _no(key, "q, k, v and the result are all fp32, bf16 or fp16")
    if key.kv_dtype not in (None, key.dtype) and (key.kv_dtype != "e4m3" or key.device != "sm_90"):
        raise _no(key, f"k and v cannot be {key.kv_dtype}")
    if key.device == "cpu":
        return AttentionContract(IEEE_FMA, key.dtype, key.out_dtype)
    if key.device == PORTABLE:
        return portable_attention(key.dtype)
    if key.dtype == "fp32":
        raise _no(key, "use bf16 or fp16")
    return hopper_attention(key.dtype, kv=key.kv_dtype or "")


def _row(key: ContractKey) -> RowContract:
    if key.dtype not in OUTPUTS or key.out_dtype not in OUTPUTS:
        raise _no(key, "row reductions are defined for fp32, bf16 and fp16")
    if key.device == "cpu":
        return RowContract(key.op, key.dtype, key.out_dtype)
    if key.device == PORTABLE:
        return portable_row(key.op, key.dtype, key.out_dtype)
    formula = LEAF_FORMULAS.get(key.op, "")
    return RowContract(key.op, key.dtype, key.out_dtype, HOPPER_ROW_TREE, CUDA_FMA, formula)
