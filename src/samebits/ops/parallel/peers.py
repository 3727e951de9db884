"""Peer memory of a group: whether the ranks' GPUs see each other's memory, asked once.

All ranks use it or none does: each says what it can, and hears what the others can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from samebits import settings
from samebits.errors import DeviceError, RankError
from samebits.ops.parallel.ranks import Ranks, group_of

if TYPE_CHECKING:
    from samebits.engines.cuda.peer.join import Peers
    from samebits.engines.cuda.peer.memory import SharedMemory

T = TypeVar("T")

#: Of every group whose ranks met on GPUs: their peers, or why they have none.
_KNOWN: WeakKeyDictionary[dist.ProcessGroup, Peers | str] = WeakKeyDictionary()


def peers_of(ranks: Ranks, partial: torch.Tensor) -> Peers | None:
    """The group's peer memory, if it has one that takes these partial sums [M, N].

    The first call for a group, by all of its ranks, sets it up.

    Raises:
        RankError: the first call is in the capture of a CUDA graph; or a rank failed.
    """
    known = _KNOWN.get(ranks.group)
    if known is None:
        if torch.cuda.is_current_stream_capturing():
            raise RankError(
                "the ranks of this group have not shared their GPUs' memory yet, and cannot in a "
                "CUDA graph: run the operation once on all ranks before the capture"
            )
        known = _KNOWN[ranks.group] = _meet(ranks, partial.device)
    if isinstance(known, str) or known.device != partial.device or not known.takes(partial):
        return None
    known.patience = ranks.timeout
    return known


def transport(group: dist.ProcessGroup | None = None) -> str:
    """How partial sums meet: "peer memory", "messages: why", or "not met yet" on GPUs.

    Args:
        group: None: the default group.

    Raises:
        RankError: there is no such group.
    """
    found = group_of("transport", group)
    if found is None:
        raise RankError(
            "transport: this process is alone and sends nothing: call "
            "torch.distributed.init_process_group first, or name a group"
        )
    known = _KNOWN.get(found)
    if known is None:
        return "not met yet" if torch.cuda.is_available() else "messages: torch sees no GPU here"
    return f"messages: {known}" if isinstance(known, str) else "peer memory"


def check() -> None:
    """Raises if a rank of any group did not answer in a kernel that waited for it.

    Operations do it themselves; this is for whoever replays CUDA graphs, where none is called.

    Raises:
        RankError: it did not; results since then are NaN.
    """
    for known in list(_KNOWN.values()):
        if not isinstance(known, str):
            known.check()


def _meet(ranks: Ranks, device: torch.device) -> Peers | str:
    """Shares this rank's memory and opens the others'; or says why it cannot be."""
    with torch.cuda.device(device):
        return _share(ranks, device)


def _share(ranks: Ranks, device: torch.device) -> Peers | str:
    from samebits.engines.cuda.peer import join, memory

    mine, why = _try(lambda: _allocate(ranks.size))
    here = memory.machine()
    offers = ranks.hear((here, mine.handle if mine else b"", why))
    for index, (where, _, refusal) in enumerate(offers):
        if refusal:
            return f"rank {index}: {refusal}"
        if where != here:
            return f"ranks {ranks.index} and {index} are on two machines"
    assert mine is not None
    bases, why = _try(
        lambda: [
            mine.address if index == ranks.index else memory.open_handle(handle)
            for index, (_, handle, _) in enumerate(offers)
        ]
    )
    for index, refusal in enumerate(ranks.hear(why)):
        if refusal:
            return f"rank {index}: {refusal}"
    assert bases is not None
    return join.Peers(ranks.index, bases, ranks.timeout, device)


def _allocate(size: int) -> SharedMemory:
    from samebits.engines.cuda.peer import join

    if not settings.peer_memory():
        raise DeviceError("SAMEBITS_PEER_MEMORY=0")
    if size not in join.RANKS:
        raise DeviceError(f"the kernels are made for {join.RANKS} ranks, not for {size}")
    return join.allocate(size)


def _try(work: Callable[[], T]) -> tuple[T | None, str]:
    """(result, "") or (None, why there is none)."""
    try:
        return work(), ""
    except DeviceError as error:
        return None, str(error)
