"""The vendor's kernels, under a contract: cuBLASLt with a pinned algorithm.

Whatever runs is named by a schedule, and a schedule is admitted only after its bytes equal the
contract's on this machine (`tuning.admit`). No heuristic is asked at run time.
"""

from __future__ import annotations

from samebits.engines.vendor.schedule import CublasLt

__all__ = ["CublasLt"]
