"""Arithmetic as data: what one step of a chain does, and in which precision.

Two kinds cover the machines of this project. `IeeeFma` is what every CPU and every CUDA core does.
`BlockFma` is what a tensor core does; its numbers differ from chip to chip, its shape does not, so
another chip is another value of the same dataclass (`samebits.contract.devices`).
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.errors import ContractError


@dataclass(frozen=True)
class Format:
    """A storage type: 1 sign bit, exponent, `fraction` explicit fraction bits.

    The value of a finite word is significand * 2^(exponent - fraction) with an integer significand;
    `min_exponent` is the exponent of the subnormals and of the smallest normal binade.
    """

    name: str
    bits: int
    fraction: int
    min_exponent: int


FP32 = Format("fp32", 32, 23, -126)
#: fp32 words of which the tensor core reads the upper 19 bits and drops the rest (also of a NaN,
#: which becomes an Inf when nothing of its payload is left).
TF32 = Format("tf32", 32, 10, -126)
BF16 = Format("bf16", 16, 7, -126)
FP16 = Format("fp16", 16, 10, -14)
E4M3 = Format("e4m3", 8, 3, -6)
E5M2 = Format("e5m2", 8, 2, -14)
FORMATS = {f.name: f for f in (FP32, TF32, BF16, FP16, E4M3, E5M2)}


@dataclass(frozen=True)
class IeeeFma:
    """fma(x, w, acc) in fp32: the exact product, one addition, ONE rounding to nearest even.

    bf16 and fp16 operands are widened to fp32 first, which is exact. Subnormals are kept on input
    and output. Additions of a fold are IEEE fp32 additions.

    Attributes:
        nan: the fp32 word of every NaN result. A 16-bit output keeps the word's upper bits.
    """

    nan: int = 0x7FC00000

    @property
    def block(self) -> int:
        """Products that one step takes."""
        return 1

    def __str__(self) -> str:
        return f"ieee_fma(fp32, nan=0x{self.nan:08x})"


@dataclass(frozen=True)
class BlockFma:
    """A tensor core's step: `block` products and the accumulator meet in one fixed-point sum.

    1. Products are exact; a product's exponent is the sum of its factors' exponents and is *not*
       renormalised: 1.5 * 1.5 = 2.25 keeps exponent 0. Subnormals count with the format's smallest
       exponent.
    2. The largest exponent of the non-zero terms, accumulator included, but at least `floor`, sets
       the grid: `fraction` bits below it. Every term's magnitude is truncated to the grid.
    3. The integer sum is exact, so the order inside a block cannot matter, and zeros (padding) do
       not either.
    4. The sum is truncated toward zero to `significand` significant bits (fewer below 2^-126: the
       result's smallest step is fp32's subnormal step for 24 bits). A sum of zero is +0, whatever
       the signs of the terms; 2^128 and above is Inf.
    5. A NaN operand, Inf * 0, or both +Inf and -Inf among the terms: NaN. Else, if a term is Inf,
       that Inf.

    Fewer than `block` products are filled up with zeros.

    Attributes:
        name: the family, e.g. "hopper_mma".
        input: name of the operands' `Format`.
        block: products in a step.
        fraction: bits of the grid below the largest exponent.
        significand: significant bits of a result, the leading one included.
        floor: smallest exponent that may set the grid.
        nan: the fp32 word of every NaN result. A 16-bit output keeps the word's upper bits.
    """

    name: str
    input: str
    block: int
    fraction: int
    significand: int = 24
    floor: int = -133
    nan: int = 0x7FFFFFFF

    def __post_init__(self) -> None:
        if self.input not in FORMATS:
            raise ContractError(f"format {self.input!r} is not known: use one of {list(FORMATS)}")
        if self.block < 1 or not 2 * self.format.fraction <= self.fraction <= 40:
            raise ContractError(
                f"{self}: the block holds at least one product, and the grid has between "
                f"{2 * self.format.fraction} and 40 fraction bits"
            )
        if not 2 <= self.significand <= 24:
            raise ContractError(f"{self}: a result has 2 to 24 significant bits")

    @property
    def format(self) -> Format:
        """The operands' storage type."""
        return FORMATS[self.input]

    def __str__(self) -> str:
        return (
            f"{self.name}({self.input}, block={self.block}, fraction={self.fraction}, "
            f"significand={self.significand}, floor={self.floor}, nan=0x{self.nan:08x})"
        )


Arithmetic = IeeeFma | BlockFma
#: CPUs: every fma is written out, every stored NaN is the canonical quiet one.
IEEE_FMA = IeeeFma()
#: CUDA cores: the same arithmetic with the GPU's NaN.
CUDA_FMA = IeeeFma(nan=0x7FFFFFFF)
