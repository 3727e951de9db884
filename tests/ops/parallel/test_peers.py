"""Peer memory: where things lie, who may use it, and what a rank that did not answer leaves."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from samebits import settings
from samebits.engines.cuda.peer import join
from samebits.engines.cuda.peer.memory import machine
from samebits.errors import DeviceError, RankError, SettingError
from samebits.ops import parallel
from samebits.ops.parallel import peers


@pytest.mark.parametrize("ranks", join.RANKS)
def test_parts_of_the_memory_do_not_overlap(ranks: int) -> None:
    layout = join.Layout(ranks)
    packets = 2 * ranks * layout.capacity * 16
    assert packets <= layout.flags and layout.capacity * 2 >= join.FEW
    assert layout.flags + 2 * ranks * 256 * 4 <= layout.sums
    share = -(-join.MOST // (ranks * 8)) * 8
    assert layout.sums + ranks * share * 4 <= layout.results
    assert layout.results + 4 * join.MOST <= layout.size
    assert all(at % 16 == 0 for at in (layout.flags, layout.sums, layout.results, layout.size))


def test_few_numbers_go_as_packets() -> None:
    """As many as all ranks together send in a time that is about that of flags."""
    for ranks, most in ((2, 1 << 17), (4, (1 << 17) // 3), (8, (1 << 17) // 7)):
        assert join.schedule_for(most, ranks) is join.PACKETS
        assert join.schedule_for(most + 1, ranks) is join.STREAM


def test_a_rank_that_did_not_answer_is_told_at_the_next_call() -> None:
    made = object.__new__(join.Peers)
    made.index, made.size, made.patience = 0, 2, 30.0
    made._failed = torch.zeros(1, dtype=torch.int32).numpy()
    made.check()
    made._failed[0] = 2
    with pytest.raises(RankError, match="rank 0 of 2: rank 1 did not answer within 30 s"):
        made.check()
    made._failed[0] = 2 + 0x100
    with pytest.raises(RankError, match="rank 0 of 2: rank 1 was in a call with another number"):
        made.check()


def test_what_the_kernels_take() -> None:
    made = object.__new__(join.Peers)
    assert made.takes(torch.zeros(3, 16))
    assert not made.takes(torch.zeros(3, 12)) and not made.takes(torch.zeros(3, 32)[:, ::2])


def test_memory_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"made for \(2, 4, 8\) ranks, not for 3"):
        peers._allocate(3)
    monkeypatch.setenv("SAMEBITS_PEER_MEMORY", "0")
    assert not settings.peer_memory()
    with pytest.raises(DeviceError, match="SAMEBITS_PEER_MEMORY=0"):
        peers._allocate(2)
    monkeypatch.setenv("SAMEBITS_PEER_MEMORY", "yes")
    with pytest.raises(SettingError, match="'yes' is not understood"):
        settings.peer_memory()


def test_a_machine_is_itself() -> None:
    assert machine() == machine()


def test_a_group_that_has_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, said in ((True, "not met yet"), (False, "messages: torch sees no GPU here")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert parallel.transport(dist.ProcessGroup(0, 1)) == said
    parallel.check()
