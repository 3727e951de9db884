"""Launches the kernels that join ranks' partial sums over peer memory; see join.cu for how."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import WORD, launcher
from samebits.engines.cuda.peer import memory
from samebits.engines.cuda.peer.memory import SharedMemory
from samebits.errors import RankError

_HERE = Path(__file__).parent
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
RANKS = (2, 4, 8)

#: Threads of a block, numbers of a thread's line, bytes of a packet, as in join.cu.
_THREADS, _LINE, _PACKET = 512, 8, 16
#: Numbers that one launch takes: beyond, rows go in several.
MOST = 1 << 25
#: Numbers that packets can carry: up to so many sent they are the faster way.
FEW = 1 << 17
#: In the word of what failed: the rank is in another call, as in join.cu.
_ELSEWHERE = 0x100
#: Most blocks of a launch that talk to blocks of the other ranks.
_MOST_BLOCKS = 256


@dataclass(frozen=True)
class Schedule:
    """How numbers travel: a matter of speed alone.

    Attributes:
        kernel: "packets" or "stream", as in join.cu.
        blocks: most of a launch: what saturates NVLink; all run at a time.
        unroll: lines of a thread in a step (not of packets).
    """

    kernel: str
    blocks: int = 128
    unroll: int = 2


PACKETS, STREAM = Schedule("packets"), Schedule("stream")


def schedule_for(count: int, ranks: int) -> Schedule:
    """The schedule of `count` numbers: packets where all that a rank sends is few."""
    return PACKETS if count * (ranks - 1) <= FEW else STREAM


@dataclass(frozen=True)
class Layout:
    """Where things lie in every rank's memory, in bytes from its start."""

    ranks: int

    @property
    def capacity(self) -> int:
        """Packets of a sender in one turn."""
        return FEW // 2

    @property
    def flags(self) -> int:
        return 2 * self.ranks * self.capacity * _PACKET

    @property
    def sums(self) -> int:
        return self.flags + 2 * self.ranks * _MOST_BLOCKS * 4

    @property
    def results(self) -> int:
        return self.sums + 4 * (MOST + self.ranks * _LINE)

    @property
    def size(self) -> int:
        return self.results + 4 * MOST


class Peers:
    """This rank's way to the memory of all ranks of a group, on one device.

    One call after another: all ranks make the same calls in the same order, as with any collective,
    and never on two streams at once. Calls can be captured in CUDA graphs.
    """

    def __init__(
        self, index: int, bases: Sequence[int], patience: float, device: torch.device
    ) -> None:
        """
        Args:
            index: of this rank.
            bases: where every rank's memory of `Layout(ranks).size` bytes is here.
            patience: seconds to wait for a rank.
            device: of this rank.
        """
        self.index, self.size, self.device = index, len(bases), device
        self.layout = Layout(self.size)
        self.patience = patience
        self._addresses = tuple(bases)
        self._bases = torch.tensor(bases, dtype=torch.int64, device=device)
        self._counters = torch.zeros(8, dtype=torch.int32, device=device)
        failed = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._host = failed.data_ptr()
        self._failed = failed.numpy()

    def check(self) -> None:
        """Raises if a rank did not answer in an earlier call, or was in another one.

        Raises:
            RankError: it did not, or was; results since then are NaN.
        """
        if word := int(self._failed[0]):
            who = f"rank {self.index} of {self.size}: rank {(word & ~_ELSEWHERE) - 1}"
            if word & _ELSEWHERE:
                raise RankError(
                    f"{who} was in a call with another number of rows or features, another dtype, "
                    "or a bias on one of them only. Results since then are NaN: all ranks make the "
                    "same calls in the same order; start all of them again"
                )
            raise RankError(
                f"{who} did not answer within {self.patience:g} s: it died, hangs, or is in "
                "another call. Results since then are NaN: look at that rank's errors, and start "
                "all ranks again"
            )

    def takes(self, partial: torch.Tensor) -> bool:
        """Whether the kernels move these numbers: rows of a multiple of 8, 16-byte aligned."""
        return (
            partial.shape[-1] % _LINE == 0
            and 0 < partial.shape[-1] <= MOST
            and partial.data_ptr() % 16 == 0
            and partial.is_contiguous()
        )

    def join(
        self,
        partial: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        schedule: Schedule | None = None,
    ) -> torch.Tensor:
        """The sum of all ranks' `partial`, folded pairwise, plus `bias`, rounded into `out`.

        Args:
            partial: [M, N] fp32 that `takes` accepts.
            bias: [N] of the dtype of `out`, contiguous; or None.
            out: [M, N] bf16, fp16 or fp32, contiguous, 16-byte aligned.
            schedule: the same on all ranks; None: by the number of numbers. Packets carry
                `FEW`: more go by `STREAM`.

        Raises:
            RankError: a rank did not answer in an earlier call.
        """
        self.check()
        rows, columns = partial.shape
        step = MOST // columns
        for start in range(0, rows, step):
            part = slice(start, start + step)
            self._join(partial[part], bias, out[part], schedule)
        return out

    def _join(
        self,
        partial: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        schedule: Schedule | None,
    ) -> None:
        count, columns = partial.numel(), partial.shape[1]
        chosen = schedule or schedule_for(count, self.size)
        if chosen.kernel == "packets" and count > FEW:
            chosen = STREAM
        kernel, layout = _kernel(self.size, out.dtype, chosen), self.layout
        patience = int(self.patience * 1e9)
        if chosen.kernel == "packets":
            pairs = count // 2
            kernel(
                (min(-(-pairs // _THREADS), chosen.blocks),),
                partial, bias, out, pairs, columns, self.index, self._bases, self._counters,
                self._host, patience, 0, layout.capacity,
            )  # fmt: skip
            return
        share = -(-count // (self.size * _LINE)) * _LINE
        kernel(
            (min(chosen.blocks, _MOST_BLOCKS, -(-share // (_THREADS * _LINE))),),
            partial, bias, out, count, columns, share, self.index, self._bases, self._counters,
            self._host, patience, layout.flags, layout.sums, layout.results, _MOST_BLOCKS, 0,
        )  # fmt: skip

    def push(self, partial: torch.Tensor, rank: int, start: int, share: int) -> None:
        """Copies partial sums to the rank that folds them, on the current stream.

        `join_pushed` follows when all have been copied, and no other call of this group before it.

        Args:
            partial: [R, N] fp32, contiguous: rows of that rank's share.
            rank: another one.
            start: the number of the share at which they begin.
            share: numbers of a rank's share.
        """
        place = self.layout.sums + 4 * (self.index * share + start)
        stream = torch.cuda.current_stream(self.device).cuda_stream
        memory.copy(self._addresses[rank] + place, partial.data_ptr(), partial.nbytes, stream)

    def join_pushed(
        self, own: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor, share: int
    ) -> torch.Tensor:
        """`join` of partial sums that all ranks have pushed, but for those of their own shares.

        Args:
            own: [R, N] fp32, contiguous: this rank's partial sums of its share of the numbers.
            bias, out: as of `join`; `out` has at most `MOST` numbers.
            share: numbers of a rank's share, rows of N; the last one may have fewer.

        Raises:
            RankError: a rank did not answer in an earlier call.
        """
        self.check()
        layout = self.layout
        _kernel(self.size, out.dtype, STREAM)(
            (min(STREAM.blocks, -(-share // (_THREADS * _LINE))),),
            own.data_ptr() - 4 * self.index * share,  # where the numbers of all shares would begin
            bias, out, out.numel(), out.shape[1], share, self.index, self._bases, self._counters,
            self._host, int(self.patience * 1e9), layout.flags, layout.sums, layout.results,
            _MOST_BLOCKS, 1,
        )  # fmt: skip
        return out


def allocate(ranks: int) -> SharedMemory:
    """This rank's memory, on the current device.

    Raises:
        DeviceError: the driver refuses it.
    """
    return SharedMemory(Layout(ranks).size)


@functools.cache
def _kernel(ranks: int, dtype: torch.dtype, schedule: Schedule) -> Any:
    """The kernel of a schedule, for a number of ranks and a dtype of results."""
    cubin = functools.partial(compiled, ranks, dtype, schedule.unroll)
    slots = [WORD] * {"packets": 12, "stream": 16}[schedule.kernel]
    return launcher(f"join_{schedule.kernel}", cubin, slots, threads=_THREADS, pdl=True)


@functools.cache
def compiled(ranks: int, dtype: torch.dtype, unroll: int) -> bytes:
    """The cubin of join.cu.

    Raises:
        DeviceError: there is no compiler, or it refuses the source.
    """
    values = {"RANKS": ranks, "KIND": _KINDS[dtype], "THREADS": _THREADS, "UNROLL": unroll}
    headers = tuple(sorted(_HERE.glob("*.cuh")))
    return nvrtc.compile_source(_HERE / "join.cu", "sm_90a", values, headers)
