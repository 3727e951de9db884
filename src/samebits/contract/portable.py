"""The contracts that every device can keep: the same bits from a CPU and from a GPU.

Nothing in them needs a tensor core or a chip's own exp2. Sums are chains and trees of IEEE fp32
operations, functions are fixed polynomials in fused multiply-adds (`functions`, `functions64`,
`activations`, `trig`), quotients and roots are IEEE operations. So AVX-512, AVX2, NEON, scalar
code, the CUDA cores of any GPU and Triton's interpreter compute them alike.

- Matrix products: one chain, k ascending. It fills a GPU without a tree, and a CPU computes it for
  many columns side by side. 16-bit operands are widened, which is exact.
- Rows: the tree of `rows.HOPPER_ROW_TREE`, whose 1024 lanes fill a thread block; a CPU walks them
  in vectors.
- Attention: the form "ceil" of `attention`, leaves of 512 seen keys, p kept in fp32.

A NaN is 0x7FFFFFFF (in 16 bits 0x7FFF), which is what a GPU writes; a CPU can write any.
"""

from __future__ import annotations

from samebits.contract.arithmetic import CUDA_FMA
from samebits.contract.attention import AttentionContract
from samebits.contract.linear import LinearContract
from samebits.contract.rows import HOPPER_ROW_TREE, LEAF_FORMULAS, RowContract
from samebits.contract.tree import CHAIN

#: What stands in the place of a device class in keys.
PORTABLE = "portable"


def portable_linear(
    input: str, output: str, epilogue: tuple[str, ...] = ("alpha", "bias")
) -> LinearContract:
    """Matrix products of fp32, bf16 or fp16. Errors as `LinearContract`."""
    return LinearContract(CHAIN, CUDA_FMA, input, output, epilogue=epilogue)


def portable_attention(input: str) -> AttentionContract:
    """Attention over q, k and v of one type, rounded to it once. Errors as `AttentionContract`."""
    return AttentionContract(CUDA_FMA, input, input, probabilities="fp32")


def portable_row(op: str, input: str, output: str) -> RowContract:
    """A reduction along a row, or a row divided by one. Errors as `RowContract`."""
    formula = LEAF_FORMULAS.get(op, "")
    return RowContract(op, input, output, HOPPER_ROW_TREE, CUDA_FMA, formula)
