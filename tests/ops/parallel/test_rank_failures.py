"""What goes wrong among ranks is an error on every rank, before a set time, and never a hang."""

from __future__ import annotations

import gc
import os
import signal
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from samebits import bits, ops, plan
from samebits.errors import DTypeError, RankError, SamebitsError, ShapeError
from samebits.ops.parallel.ranks import Ranks, decides_bits, disagreement, hear

#: Seconds that a rank waits for one that will not come, for one that is only slow, and the test
#: for its children.
TIMEOUT, PATIENCE, LONGEST = 4.0, 100.0, 200.0


def step(scale: float = 1.0) -> torch.Tensor:
    x = torch.full((4, 1024), scale)
    return ops.row_parallel_linear(x, torch.ones(8, 1024))


def healthy(index: int, size: int) -> None:
    assert step()[0, 0] == 1024 * size


def three_ranks(index: int, size: int) -> None:
    """The contract names 1, 2, 4 and 8."""
    with pytest.raises(ShapeError, match=r"8 parts do not divide among 3 ranks.*1, 2, 4, 8 ranks"):
        step()
    raise RankError("as it should")  # counted by the parent


def other_plan(index: int, size: int) -> None:
    if index == 1:
        plan.planner.put_in_force(plan.build([(64, 64)], device="cpu"))
    step()


def plan_loaded_later(index: int, size: int) -> None:
    step()
    plan.planner.put_in_force(plan.build([(64, 64)], device="cpu"))
    with pytest.raises(RankError, match=r"came into force on rank . after the ranks agreed"):
        step()
    ops.parallel.agree(dist.group.WORLD)
    healthy(index, size)


def wrong_operands(index: int, size: int) -> None:
    """Seen by every rank before anything is sent, so that none waits; then a step goes well."""
    group, x = None, torch.ones(3, 1024)
    table, ids = torch.ones(16, 8), torch.tensor([0, 16 * size])
    with pytest.raises(IndexError, match=rf"id {16 * size} is outside \[0, {16 * size}\)"):
        ops.vocab_parallel_embedding(ids, table, group=group)
    with pytest.raises(ShapeError, match="an id is outside"):
        ops.vocab_parallel_logprobs(x[:2, :8], table, ids, group=group)
    with pytest.raises(ShapeError, match="needs ids of shape"):
        ops.vocab_parallel_logprobs(x[:, :8], table, ids, group=group)
    with pytest.raises(ShapeError, match="do not make 31"):
        ops.column_parallel_linear(x[:, :8], table, group=group, gather=True, features=31)
    with pytest.raises(DTypeError, match=r"ids are int32 or int64 on cpu, not torch\.bool"):
        ops.vocab_parallel_embedding(ids > 0, table, group=group)
    experts = torch.ones(2, 8, 8), torch.ones(2, 8, 4)
    with pytest.raises(IndexError, match=f"expert {2 * size} is out of range for {2 * size}"):
        ops.expert_parallel_moe(
            x[:1, :8], *experts, torch.tensor([[0, 2 * size]]), torch.ones(1, 2), group=group
        )
    with pytest.raises(SamebitsError, match="no backward"):
        ops.column_parallel_linear(x.requires_grad_(), torch.ones(8, 1024), group=group)
    healthy(index, size)


def different_calls(index: int, size: int) -> None:
    """Every rank is told what differs, and then a step goes well."""
    x, w, ids = torch.ones(3, 1024), torch.ones(8, 1024), torch.tensor([0, 3])
    weights, experts = torch.ones(2, 2), (torch.ones(2, 8, 8), torch.ones(2, 8, 4))
    row, exact = ops.row_parallel_linear, ops.exact
    long, moe = torch.ones(1 << 14), ops.expert_parallel_moe
    many = torch.ones(100, 1024)
    pairs: list[tuple[Callable[[], object], Callable[[], object], str]] = [
        (
            lambda: row(x, w),
            lambda: row(x[:2], w),
            r"x float32 \[3, 1024\].* x float32 \[2, 1024\]",
        ),
        (lambda: row(x, w), lambda: row(x.half(), w.half()), "float32.* float16"),
        (lambda: row(x.half(), w.half()), lambda: row(x.bfloat16(), w.bfloat16()), "bfloat16"),
        (lambda: row(x, w), lambda: row(x, w, torch.ones(8)), "bias False.* bias True"),
        (lambda: row(x, w), lambda: row(x, w, parts=4), "parts 8.* parts 4"),
        (lambda: row(many, w), lambda: row(many, w, exchange=False), "exchange None.*False"),
        (lambda: row(many, w), lambda: row(many[:99], w), r"100, 1024.* x float32 \[99, 1024\]"),
        (lambda: row(x, w), lambda: row(x, w[:7]), r"weight float32 \[8, 1024.* \[7, 1024"),
        (lambda: row(x[:0], w), lambda: row(x, w), r"\[0, 1024.* \[3, 1024"),
        (
            lambda: row(x, w),
            lambda: exact.all_reduce(x),
            "row_parallel_linear: .* exact.all_reduce: ",
        ),
        (lambda: exact.all_reduce(x), lambda: exact.all_reduce(x[:2]), r"\[3, 1024.* \[2, 1024"),
        (lambda: exact.all_reduce(x), lambda: exact.all_reduce(x.half()), "float32.* float16"),
        (lambda: exact.all_reduce(long), lambda: exact.all_reduce(long[1:]), "16384.* .16383"),
        (lambda: exact.all_reduce(long[:9]), lambda: exact.all_reduce(long), r"\[9\].* \[16384\]"),
        (
            lambda: exact.row_parallel_linear(x, w),
            lambda: exact.row_parallel_linear(x[:2], w),
            r"rows \[3\].* rows \[2\]",
        ),
        (
            lambda: exact.row_parallel_linear(x, w),
            lambda: exact.row_parallel_linear(x, w, torch.ones(8)),
            r"bias None.* bias float32 \[8\]",
        ),
        (  # or one rank would have a sum to decide that the other has not
            lambda: exact.row_parallel_linear(x, w, torch.ones(8)),
            lambda: exact.row_parallel_linear(x, w, torch.full((8,), 2.0)),
            r"bias float32 \[8\] #\w+, .* bias float32 \[8\] #\w+, ",
        ),
        (
            lambda: ops.column_parallel_linear(x, w, gather=True),
            lambda: ops.column_parallel_linear(x[:1], w, gather=True),
            r"\[3, 1024.* \[1, 1024",
        ),
        (
            lambda: ops.vocab_parallel_embedding(ids, w),
            lambda: ops.vocab_parallel_embedding(ids + 1, w),
            r"ids int64 \[2\] #\w+, .* ids int64 \[2\] #\w+, ",
        ),
        (
            lambda: ops.vocab_parallel_logprobs(x[:2], w, ids),
            lambda: ops.vocab_parallel_logprobs(x[:1], w, ids[:1]),
            r"\[2, 1024.* \[1, 1024",
        ),
        (
            lambda: moe(x[:2, :8], *experts, ids.expand(2, 2), weights),
            lambda: moe(x[:1, :8], *experts, ids.expand(1, 2), weights[:1]),
            r"\[2, 8.* \[1, 8",
        ),
    ]
    for number, (one, other, said) in enumerate(pairs):
        with pytest.raises(RankError, match=f"in different calls: rank 0 in .*{said}"):
            print(number, (one, other)[index]())
    healthy(index, size)


def any_operands(index: int, size: int) -> None:
    """Tables of every dtype, whose numbers are no rank's but its own; ids that are views."""
    ids = torch.arange(3 * size)
    kinds = (torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64)
    for dtype in (*kinds, torch.float8_e4m3fn, torch.bfloat16):
        whole = torch.arange(6 * size).view(-1, 2).to(dtype)
        mine = whole[3 * index : 3 * index + 3]
        for some in (ids, torch._neg_view(-ids), ids.flip(0)[::2], ids[1], ids[:0]):
            found = ops.vocab_parallel_embedding(some, mine)
            wants = ops.embedding(some, whole)
            assert found.shape == wants.shape and bits.equal(found, wants)
        nothing = ops.vocab_parallel_embedding(ids[:0], whole[:0])
        assert nothing.shape == (0, 2) and nothing.dtype is dtype
    x, w = torch.randn(3, 128, generator=torch.Generator().manual_seed(0)), torch.ones(3, 128)
    some = torch.arange(3)
    assert bits.equal(
        ops.vocab_parallel_logprobs(x, w, torch._neg_view(-some)),
        ops.vocab_parallel_logprobs(x, w, some),
    )
    experts, weights = (torch.ones(2, 8, 8), torch.ones(2, 8, 4)), torch.ones(3, 1)
    assert bits.equal(
        ops.expert_parallel_moe(x[:, :8], *experts, torch._neg_view(-some[:, None]), weights),
        ops.expert_parallel_moe(x[:, :8], *experts, some[:, None], weights),
    )
    none = (experts[0][:0], experts[1][:0], torch.full((3, 1), -1), weights)
    assert bits.equal(ops.expert_parallel_moe(x[:, :8], *none), torch.zeros(3, 8))


def which_group(index: int, size: int) -> None:
    """None is the default group, as everywhere in torch; alone is who says so."""
    x, w = torch.full((4, 1024), 1.0 + index), torch.ones(8, 1024)
    both = torch.full((4, 8), 1024.0 * sum(range(1, size + 1)))
    for row in (ops.row_parallel_linear, ops.exact.row_parallel_linear):
        assert torch.equal(row(x, w), both)
        assert torch.equal(row(x, w, group=dist.group.WORLD), both)
        assert torch.equal(row(x, w, group="alone"), torch.full((4, 8), 1024.0 * (1 + index)))
    assert torch.equal(ops.exact.all_reduce(x, "alone"), x)
    assert ops.parallel.agree().size == size
    way = ops.parallel.transport()
    assert way == "not met yet" if torch.cuda.is_available() else way.startswith("messages")
    first = dist.new_group([0])
    for row in (ops.row_parallel_linear, ops.exact.row_parallel_linear):
        if index == 0:
            assert torch.equal(row(x, w, group=first), torch.full((4, 8), 1024.0))
        else:
            with pytest.raises(RankError, match="is not among the ranks of the group"):
                row(x, w, group=first)
        with pytest.raises(RankError, match="None or 'alone', not 'world'"):
            row(x, w, group="world")


def killed(index: int, size: int) -> None:
    step()
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(100):
        step()


def killed_in_exact_sums(index: int, size: int) -> None:
    """Short messages are gathered, long ones go by pieces, and one sum lies on several ranks."""
    x, w = torch.ones(4, 8), torch.ones(3, 8)
    calls = (
        lambda: ops.exact.all_reduce(x),
        lambda: ops.exact.all_reduce(torch.ones(9001)),
        lambda: ops.exact.row_parallel_linear(x, w),
    )
    for call in calls:
        assert call().view(-1)[0] in (size, 8 * size)
    hear(dist.group.WORLD, "well", PATIENCE)
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for call in calls:
        with pytest.raises(RankError, match="the exchange with the other ranks failed"):
            for _ in range(100):
                call()


def killed_on_gpus(index: int, size: int) -> None:
    """Over peer memory, where a kernel does the waiting; ranks may share a GPU."""
    torch.cuda.set_device(index % torch.cuda.device_count())
    group = dist.group.WORLD
    x, w = (torch.ones(n, 1024, device="cuda", dtype=torch.bfloat16) for n in (4, 64))
    with torch.no_grad():
        whole = ops.row_parallel_linear(x, w, group=group)
        assert bool((whole == 1024 * size).all())
        assert ops.parallel.transport(group) == "peer memory"
        ops.parallel.agree(group, timeout=TIMEOUT)
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        late = ops.row_parallel_linear(x, w, group=group)
        torch.cuda.synchronize()
        assert bool(late.isnan().all())
        ops.row_parallel_linear(x, w, group=group)


def different_calls_on_gpus(index: int, size: int) -> None:
    """Over peer memory: seen by the kernels, at once, and not as a rank that is late."""
    torch.cuda.set_device(index % torch.cuda.device_count())
    x, w = (torch.ones(n, 1024, device="cuda", dtype=torch.bfloat16) for n in (4, 64))
    with torch.no_grad():
        assert bool((ops.row_parallel_linear(x, w) == 1024 * size).all())
        assert ops.parallel.transport() == "peer memory"
        mine = ops.row_parallel_linear(x[: 4 - index], w)
        torch.cuda.synchronize()
        assert bool(mine.isnan().all())
        ops.row_parallel_linear(x, w)


def killed_over_nccl(index: int, size: int) -> None:
    """Without peer memory: it is the host that waits, for a message of NCCL's."""
    torch.cuda.set_device(index)
    group = dist.group.WORLD
    x, w = (torch.ones(n, 1024, device="cuda", dtype=torch.bfloat16) for n in (4, 64))
    with torch.no_grad():
        ops.row_parallel_linear(x, w, group=group)
        assert ops.parallel.transport(group).startswith("messages")
        torch.cuda.synchronize()
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT))
        ops.row_parallel_linear(x, w, group=group)
        torch.cuda.synchronize()


def killed_before_it_came(index: int, size: int) -> None:
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ops.parallel.agree(dist.group.WORLD, timeout=TIMEOUT)


def asleep(index: int, size: int) -> None:
    step()
    if index == 1:
        time.sleep(LONGEST)
    # Not from the start: ranks that are slow to begin would not meet.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT))
    step()


def raises(index: int, size: int) -> None:
    """An exception of one rank's own ends it; the others hear of it."""
    step()
    if index == 1:
        raise ValueError("this rank's own")
    step()


def child(index: int, size: int, folder: str, what: str) -> None:
    """Writes the error that the rank met, or "" ; what the process says is in another file."""
    torch.set_num_threads(1)
    os.dup2(os.open(f"{folder}/{index}.said", os.O_CREAT | os.O_WRONLY), 2)
    backend = "nccl" if what.endswith("nccl") else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meet", rank=index, world_size=size,
        timeout=timedelta(seconds=PATIENCE),
    )  # fmt: skip
    # A rank that ends while others are still connecting would be a fault of theirs.
    hear(dist.group.WORLD, "connected", PATIENCE)
    error = ""
    try:
        globals()[what](index, size)
    except SamebitsError as caught:
        error = f"{type(caught).__name__}: {caught}"
    except ValueError as caught:
        error = str(caught)
    except BaseException as caught:
        error = repr(caught)
    Path(folder, f"{index}").write_text(error)
    os._exit(0)  # as a process that ends in an error: without a word to the others


def errors(folder: Path, what: str, size: int = 2) -> list[str | None]:
    """What each rank met before `LONGEST`; None for one that died."""
    context = mp.get_context("spawn")
    ranks = [context.Process(target=child, args=(i, size, str(folder), what)) for i in range(size)]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + LONGEST
    for rank in ranks if what != "asleep" else ranks[:1]:
        rank.join(max(0.0, end - time.monotonic()))
        assert rank.exitcode is not None, f"a rank hangs: {what}"
    for rank in ranks:
        rank.kill()
        rank.join()
    files = [folder / f"{i}" for i in range(size)]
    return [file.read_text() if file.exists() else None for file in files]


def test_a_number_of_ranks_that_the_contract_does_not_name(tmp_path: Path) -> None:
    assert errors(tmp_path, "three_ranks", 3) == ["RankError: as it should"] * 3


def test_ranks_with_different_plans(tmp_path: Path) -> None:
    found = errors(tmp_path, "other_plan")
    assert found[0] == found[1] and found[0] is not None
    assert "would compute different bits: contracts and schedules is" in found[0]


def test_a_plan_that_was_loaded_later(tmp_path: Path) -> None:
    assert errors(tmp_path, "plan_loaded_later") == ["", ""]


def test_plans_of_a_cpu_count_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.planner, "this_device_class", lambda: "sm_90")
    plan.reset()
    try:
        before = decides_bits()
        assert decides_bits() == before
        plan.planner.put_in_force(plan.build([(64, 64)], device="cpu"))
        assert "contracts and schedules" in disagreement([before, decides_bits()])
    finally:
        monkeypatch.undo()
        plan.reset()


def test_operands_that_do_not_fit(tmp_path: Path) -> None:
    assert errors(tmp_path, "wrong_operands") == ["", ""]


def test_which_group_is_meant(tmp_path: Path) -> None:
    assert errors(tmp_path, "which_group") == ["", ""]


def test_operands_of_every_kind(tmp_path: Path) -> None:
    assert errors(tmp_path, "any_operands") == ["", ""]


def test_ranks_in_different_calls(tmp_path: Path) -> None:
    assert errors(tmp_path, "different_calls") == ["", ""]


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    size = 4
    found = errors(tmp_path, "killed", size)
    assert found[1] is None
    for index in (i for i in range(size) if i != 1):
        assert f"RankError: rank {index} of {size}: the exchange" in str(found[index])
        assert "died, raised an error or did not answer" in str(found[index])


def test_a_rank_that_is_killed_in_exact_sums(tmp_path: Path) -> None:
    assert errors(tmp_path, "killed_in_exact_sums") == ["", None]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: none is visible")
def test_a_rank_that_is_killed_on_gpus(tmp_path: Path) -> None:
    found = errors(tmp_path, "killed_on_gpus")
    assert found[1] is None
    assert f"RankError: rank 0 of 2: rank 1 did not answer within {TIMEOUT:g} s" in str(found[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: none is visible")
def test_ranks_in_different_calls_on_gpus(tmp_path: Path) -> None:
    found = errors(tmp_path, "different_calls_on_gpus")
    for index in (0, 1):
        who = f"RankError: rank {index} of 2: rank {1 - index}"
        assert f"{who} was in a call with another number of rows" in str(found[index])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs for NCCL")
@pytest.mark.parametrize("blocking", [False, True], ids=["watchdog", "blocking"])
def test_a_rank_that_is_killed_over_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """torch's watchdog ends the process some time after the group's timeout; or the call raises."""
    monkeypatch.setenv("SAMEBITS_PEER_MEMORY", "0")
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", str(int(blocking)))
    monkeypatch.setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "500")
    found = errors(tmp_path, "killed_over_nccl")
    if blocking:
        assert "RankError: rank 0 of 2: the exchange" in str(found[0])
    else:
        assert found[0] is None
        said = (tmp_path / "0.said").read_text()
        assert "Watchdog caught collective operation timeout" in said


def test_a_rank_that_is_killed_before_it_came(tmp_path: Path) -> None:
    found = errors(tmp_path, "killed_before_it_came")
    assert found[1] is None and f"did not all come within {TIMEOUT:.0f} s" in str(found[0])


def test_a_rank_that_does_not_answer(tmp_path: Path) -> None:
    found, _ = errors(tmp_path, "asleep")
    assert "RankError: rank 0 of 2: the exchange" in str(found)


def test_a_rank_that_raises(tmp_path: Path) -> None:
    found = errors(tmp_path, "raises")
    assert found[1] == "this rank's own" and "RankError: rank 0 of 2" in str(found[0])


def test_messages_that_the_host_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch is told to: it does so only for calls that give back what to wait for."""
    waited = []

    class Work:
        def wait(self) -> None:
            waited.append(True)
            raise RuntimeError("timed out in blocking wait")

    ranks = Ranks(dist.ProcessGroup(0, 2), 2, 0, "", 1.0)
    ranks.talk(lambda late: Work() if late else None)  # type: ignore[arg-type,return-value]
    assert not waited
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", "1")
    with pytest.raises(RankError, match=r"rank 0 of 2: the exchange.*timed out in blocking"):
        ranks.talk(lambda late: Work() if late else None)  # type: ignore[arg-type,return-value]
    assert waited.pop()
    for name in ("is_available", "is_current_stream_capturing"):  # no capture may wait
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    ranks.talk(lambda late: Work() if late else None)  # type: ignore[arg-type,return-value]
    assert not waited


def test_a_group_that_agreed_can_be_freed() -> None:
    """One that outlives its interpreter aborts it, now and then: gloo's threads free tensors."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ops.parallel.agree(dist.group.WORLD)
        group = weakref.ref(dist.group.WORLD)
    finally:
        dist.destroy_process_group()
    gc.collect()
    assert group() is None


def test_what_differs_is_named() -> None:
    one = {"samebits": "1", "device class": "cpu"}
    assert disagreement([one, one]) == ""
    found = disagreement([one, one, {**one, "device class": "sm_90"}])
    assert found == "device class is 'cpu' on rank 0 and 'sm_90' on rank 2"
