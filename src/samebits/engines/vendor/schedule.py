"""Algorithms of cuBLASLt as data."""

from __future__ import annotations

from typing import ClassVar

from samebits.engines.schedule import Schedule


class CublasLt(Schedule, tag="cublaslt", frozen=True, kw_only=True, omit_defaults=True):
    """An algorithm of cuBLASLt and its configuration, by the library's own numbers.

    The library computes y.T = w @ x.T, column major, so its tiles and clusters count n first.

    Attributes:
        version: of the library for which the numbers hold, e.g. 130100.
        algorithm: its id.
        tile: ``cublasLtMatmulTile_t``.
        stages: ``cublasLtMatmulStages_t``.
        cluster: ``cublasLtClusterShape_t``.
        inner: ``cublasLtMatmulInnerShape_t``.
        swizzle: in which order blocks take tiles.
        option: the algorithm's own variant.
    """

    library: ClassVar[str] = "cublaslt"

    version: int
    algorithm: int
    tile: int = 0
    stages: int = 0
    cluster: int = 0
    inner: int = 0
    swizzle: int = 0
    option: int = 0
    workspace: int = 0

    def configuration(self) -> tuple[int, ...]:
        """The library's attributes in its order: no split of k and no reduction, always."""
        return (
            self.algorithm, self.tile, 1, 0, self.swizzle, self.option, self.stages, self.inner,
            self.cluster,
        )  # fmt: skip
