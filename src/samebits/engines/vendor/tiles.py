"""The sizes behind cuBLASLt's numbers of tiles and clusters (``cublasLtMatmulTile_t``, ...).

The first 35 tiles are the enumeration's own list. After them come, sorted, all new ones with 8 i
rows and 64 j columns (at most 768, and 49152 elements), then all with 64 i rows and 8 j columns (at
most 768, and 65536 elements).
"""

from __future__ import annotations

_FIRST = (
    (8, 8), (8, 16), (16, 8), (8, 32), (16, 16), (32, 8), (8, 64), (16, 32), (32, 16), (64, 8),
    (32, 32), (32, 64), (64, 32), (32, 128), (64, 64), (128, 32), (64, 128), (128, 64), (64, 256),
    (128, 128), (256, 64), (64, 512), (128, 256), (256, 128), (512, 64), (64, 96), (96, 64),
    (96, 128), (128, 160), (160, 128), (192, 128), (128, 192), (128, 96), (32, 256), (256, 32),
)  # fmt: skip


def _tiles() -> dict[int, tuple[int, int]]:
    known = list(_FIRST)
    for rows_step, cols_step, most in ((8, 64, 49152), (64, 8, 65536)):
        have = set(known)
        known += [
            (rows, cols)
            for rows in range(rows_step, 769, rows_step)
            for cols in range(cols_step, 769, cols_step)
            if rows * cols <= most and (rows, cols) not in have
        ]
    return dict(enumerate(known, start=1))


#: Number -> rows and columns of the (column-major) result: with y.T, n first.
TILES = _tiles()
#: Number -> thread blocks of a cluster along rows and columns.
CLUSTERS = {
    2: (1, 1), 3: (2, 1), 4: (4, 1), 5: (1, 2), 6: (2, 2), 7: (4, 2), 8: (1, 4), 9: (2, 4),
    10: (4, 4), 11: (8, 1), 12: (1, 8), 13: (8, 2), 14: (2, 8), 15: (16, 1), 16: (1, 16),
}  # fmt: skip
