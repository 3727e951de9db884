"""Matrix products for the tests of the GPU engine: contracts, and operands made of words.

Operands are a function of a seed on every machine and NumPy (splitmix64), so that recorded results
need no recorded operands.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch

from samebits.contract import (
    CUDA_FMA,
    Balanced,
    Chain,
    LinearContract,
    Segment,
    Split,
    Tree,
    hopper_mma,
)
from samebits.contract.arithmetic import FORMATS
from samebits.engines.schedule import BUCKETS, ScheduleKey
from samebits.engines.triton.linear.schedule import GemmSchedule, candidates, default

TORCH = {
    "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
}  # fmt: skip
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32}


def random_words(seed: int, count: int) -> np.ndarray:
    """`count` random 64-bit words: splitmix64."""
    with np.errstate(over="ignore"):
        z = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def operand(dtype: str, *shape: int, seed: int, spread: int = 6) -> torch.Tensor:
    """Random signs and fractions, exponents within 2^±spread of 1; stored as `dtype`."""
    fmt = FORMATS[dtype]
    fraction = 23 if dtype == "tf32" else fmt.fraction
    z = random_words(seed, int(np.prod(shape)))
    spread = min(spread, -fmt.min_exponent - 1)
    exponent = (z >> np.uint64(8)) % np.uint64(2 * spread + 1) + np.uint64(
        1 - fmt.min_exponent - spread
    )
    word = (z & np.uint64(1)) << np.uint64(fmt.bits - 1) | exponent << np.uint64(fraction)
    word |= (z >> np.uint64(24)) & np.uint64((1 << fraction) - 1)
    raw = word.astype(np.dtype(f"u{fmt.bits // 8}")).view(_SIGNED[fmt.bits]).reshape(shape)
    return torch.from_numpy(raw).view(TORCH[dtype])


def with_specials(x: torch.Tensor) -> torch.Tensor:
    """`x` [M >= 8, K >= 8] with rows of Inf, NaN, cancellation, -0, subnormals and huge values."""
    x = x.clone()
    largest = torch.finfo(x.dtype).max
    x[0, 5] = torch.inf
    x[1, 1], x[1, 2] = torch.inf, -torch.inf
    x[2, 3] = torch.nan
    x[3, 1::2] = -x[3, :-1:2] if x.shape[1] % 2 == 0 else x[3, 1::2]
    x[4] = -0.0
    x[5] = torch.finfo(x.dtype).smallest_normal / 4
    x[6] = largest / 2
    return x


def contract(
    dtype: str, tree: Tree, out: str | None = None, scaling: str = "none", relu: bool = False
) -> LinearContract:
    """The contract of sm_90 for operands of a dtype, with any tree."""
    arithmetic = CUDA_FMA if dtype == "fp32" else hopper_mma(dtype)
    natural = {"tf32": "fp32", "e4m3": "bf16", "e5m2": "bf16"}.get(dtype, dtype)
    steps = ("alpha", "bias", "relu") if relu else ("alpha", "bias")
    return LinearContract(tree, arithmetic, dtype, out or natural, scaling, steps)


@dataclass(frozen=True)
class Case:
    """A product whose bits an H200 has told (tests/golden/gemm.npz).

    Attributes:
        shape: (M, N, K), or (B, M, N, K).
        epilogue: alpha, beta, and a bias for each column; otherwise the accumulators are recorded.
        specials: rows of Inf, NaN, cancellation, -0, subnormals.
    """

    name: str
    contract: LinearContract
    shape: tuple[int, ...]
    epilogue: bool = False
    specials: bool = False

    def operands(self) -> dict[str, torch.Tensor]:
        """x [.., M, K], w [.., N, K], and where they belong bias, x_scale, w_scale."""
        *lead, m, n, k = self.shape
        kind = self.contract.input
        x, w = operand(kind, *lead, m, k, seed=1), operand(kind, *lead, n, k, seed=2)
        found = {"x": with_specials(x) if self.specials else x, "w": w}
        if self.epilogue:
            found["bias"] = operand(self.contract.output, n, seed=3)
        if self.contract.scaling != "none":
            block = self.contract.scaling == "block"
            leaves = -(-k // 128) if block else 1
            rows = -(-n // 128) if block else n
            found["x_scale"] = operand("fp32", m, leaves, seed=4).abs()
            found["w_scale"] = operand("fp32", rows, leaves, seed=5).abs()
        return found

    @property
    def factors(self) -> dict[str, float]:
        return {"alpha": 0.7, "beta": -1.3} if self.epilogue else {}

    @property
    def out(self) -> str:
        """Storage type of what is recorded."""
        return self.contract.output if self.epilogue else "fp32"


CASES: tuple[Case, ...] = (
    *(
        Case(f"{dtype} {tree}", contract(dtype, tree), (9, 40, 1160))
        for dtype in ("bf16", "fp16")
        for tree in (Chain(), Split(4), Balanced(4), Segment(512), Segment(200))
    ),
    Case("bf16 rounded", contract("bf16", Split(4)), (9, 40, 1160), epilogue=True),
    Case("fp16 relu", contract("fp16", Chain(), relu=True), (9, 40, 200), epilogue=True),
    Case("bf16 specials", contract("bf16", Chain()), (9, 40, 264), specials=True),
    Case("fp16 specials", contract("fp16", Split(4)), (9, 40, 520), specials=True),
    Case("bf16 bmm", contract("bf16", Chain()), (3, 9, 24, 264)),
    Case("e4m3 chain", contract("e4m3", Chain()), (9, 40, 400)),
    Case("e5m2 chain", contract("e5m2", Chain()), (9, 40, 400)),
    Case("e4m3 row", contract("e4m3", Chain(), scaling="row"), (9, 40, 400), epilogue=True),
    Case("e4m3 block", contract("e4m3", Segment(128), scaling="block"), (9, 136, 400)),
    Case("fp32 chain", contract("fp32", Chain()), (9, 40, 333)),
    Case("fp32 split(4)", contract("fp32", Split(4)), (9, 40, 1160)),
    Case("fp32 specials", contract("fp32", Chain()), (9, 40, 264), specials=True),
    Case("tf32 chain", contract("tf32", Chain()), (9, 40, 264)),
)


def schedules_for(contract: LinearContract, m: int) -> list[GemmSchedule]:
    """All candidates of the tuner for a weight of no special shape, and the default."""
    key = ScheduleKey(
        op="linear", device="sm_90", dtype=contract.input, out_dtype=contract.output,
        tree=str(contract.tree), scaling=contract.scaling, n=4096, k=4096,
    )  # fmt: skip
    bucket = bisect_left(BUCKETS, m)
    return [*dict.fromkeys((default(key, bucket), *candidates(key, bucket)))]
