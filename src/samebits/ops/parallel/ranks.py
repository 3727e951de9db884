"""The ranks of a group: what they must have in common, and how results get from one to another.

Ranks agree once, by the first operation of a group, on everything that decides bits: the release,
the device class and the plan in force. That, and whatever else is said and not computed, goes over
the store by which the ranks found each other, where waiting has an end. Results travel over the
group that was given, as bytes: nothing on the way adds them.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from samebits import plan, settings
from samebits.errors import RankError, SettingError
from samebits.plan import planner

T = TypeVar("T")
#: The ranks of an operation. None: the default group, as for torch's own collectives; where there
#: is none, and for "alone", this process is the only rank.
Group: TypeAlias = "dist.ProcessGroup | Literal['alone'] | None"

# One function under the names of torch's releases.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
#: Seconds that a rank waits for the others when they meet.
PATIENCE = 300.0
_LONGEST = 1e9
#: Bytes of what ranks say of a call, and of the message that it comes in.
_SAID, _FIRST = 256, 1 << 15


@dataclass(frozen=True)
class Ranks:
    """A group whose ranks agreed.

    Attributes:
        group: what results travel over.
        size: how many ranks.
        index: which of them this process is, from 0.
        plan: ids of the plans that they agreed on.
        timeout: seconds to wait for a rank, where the group's own timeout does not hold.
    """

    group: dist.ProcessGroup
    size: int
    index: int
    plan: str
    timeout: float

    # ---- data, moved -----------------------------------------------------------------------------

    def gather(self, x: torch.Tensor, call: bytes | None = None) -> torch.Tensor:
        """[ranks, *x.shape]: what every rank has, in their order. call: as of `alike`."""
        x = x.contiguous()
        found = self.alike(call, x)
        if found is not None:
            return found
        everyone = x.new_empty((self.size, *x.shape))
        if x.numel():
            sent, got = _bytes(x), _bytes(everyone)
            self.talk(lambda late: _all_gather(got, sent, group=self.group, async_op=late))
        return everyone

    def exchange(self, x: torch.Tensor) -> torch.Tensor:
        """[ranks, ...]: entry r is rank r's ``x[index]``, where x [ranks, ...] has one for each."""
        x = x.contiguous()
        mine = torch.empty_like(x)
        if x.numel():
            sent, got = _bytes(x), _bytes(mine)
            self.talk(
                lambda late: dist.all_to_all_single(got, sent, group=self.group, async_op=late)
            )
        return mine

    def unite(self, x: torch.Tensor) -> torch.Tensor:
        """x, contiguous, with every element from the one rank where its bytes are not all zero.

        A sum of integers of which one at most is not 0: any order of additions gives its bytes.
        The result replaces x.
        """
        words = _bytes(x)
        if words.numel() % 4 == 0 and words.storage_offset() % 4 == 0:
            words = words.view(torch.int32)
        if x.numel():
            self.talk(lambda late: dist.all_reduce(words, group=self.group, async_op=late))
        return x

    def alike(self, call: bytes | None, x: torch.Tensor | None = None) -> torch.Tensor | None:
        """Compares what every rank calls, before messages that would not fit each other: those are
        garbage, or end the process, or hang. Few numbers come along.

        Args:
            call: what `calls` gives; None: nothing is compared.
            x: what every rank has for the others, on a CPU.

        Returns:
            `gather` of x; None if it is too long to come along, or nothing is compared.

        Raises:
            RankError: on every rank: they are in different calls. Nothing else was sent.
        """
        if call is None:
            return None
        first = torch.zeros(_FIRST, dtype=torch.uint8)
        first[:_SAID] = torch.frombuffer(bytearray(call), dtype=torch.uint8)
        size = 0 if x is None else x.nbytes
        fits = size <= _FIRST - _SAID
        if x is not None and fits:
            first[_SAID : _SAID + size] = _bytes(x)
        everyone = first.new_empty(self.size, _FIRST)
        self.talk(lambda late: _all_gather(everyone.view(-1), first, self.group, async_op=late))
        if (everyone[:, :_SAID] != first[:_SAID]).any():
            heard = [bytes(row[:_SAID].tolist()).rstrip(b"\0").decode() for row in everyone]
            other = next(r for r, words in enumerate(heard) if words != heard[0])
            raise RankError(
                f"the ranks of this group are in different calls: rank 0 in {heard[0]}; rank "
                f"{other} in {heard[other]}. All ranks make the same calls in the same order, with "
                "operands of one dtype and one number of rows"
            )
        if x is None or not fits:
            return None
        got = everyone[:, _SAID : _SAID + size].contiguous().view(-1)
        return got.view(x.dtype).view(self.size, *x.shape)

    def hear(self, said: T) -> list[T]:
        """What every rank says, in their order.

        Raises:
            RankError: one did not within the timeout.
        """
        return hear(self.group, said, self.timeout)

    def talk(self, message: Callable[[bool], dist.Work | None]) -> None:
        """Sends and gets a message; a failure is told as what it is.

        Args:
            message: the call, by the value of its `async_op`: whether it gives back what is waited
                for. Calls that do not, do not wait for NCCL where torch was told that they should.
                While a graph is captured nothing is sent, so there is nothing to wait for.

        Raises:
            RankError: another rank failed, left, or did not answer before the group's timeout.
        """
        with self.told():
            capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
            work = message(settings.blocking_wait() and not capturing)
            if work is not None:
                work.wait()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Messages that fail in here are told as what they are.

        Raises:
            RankError: as `talk`.
        """
        try:
            yield
        except RuntimeError as error:
            raise RankError(
                f"rank {self.index} of {self.size}: the exchange with the other ranks failed, "
                f"because one of them died, raised an error or did not answer in time: {error}. "
                "Nothing of this step can be used: look at the other ranks' errors, and start all "
                "of them again"
            ) from error


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1).view(torch.uint8)


def calls(op: str, x: torch.Tensor, /, *same: torch.Tensor | None, **what: object) -> bytes | None:
    """What a rank says of a call, for `Ranks.alike`; None on a GPU, which would have to be waited
    for (docs/parallel.md).

    Args:
        op: the operation.
        x: an operand: where it computes.
        same: those of `what` whose numbers are the same on all ranks: few, for a checksum.
        what: by name, what decides which messages follow, and what they mean; what is longest last.
    """
    if not x.is_cpu:
        return None
    said = ", ".join(
        f"{name} {_words(value)}{_checksum(value) if any(value is s for s in same) else ''}"
        for name, value in what.items()
    )
    return f"{op}: {said}".encode("ascii", "replace")[:_SAID].ljust(_SAID, b"\0")


def _words(value: object) -> str:
    """What can be told of a value in a few letters."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _checksum(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return ""
    return f" #{zlib.crc32(_bytes(value.detach().resolve_neg().contiguous()).numpy().data):08x}"


# ---- agreement -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Agreed:
    """What is kept of a group whose ranks agreed: not the group, which would never be freed then.

    A group that lives until the interpreter ends aborts it now and then: gloo's threads still drop
    tensors, and need an interpreter for that.
    """

    size: int
    index: int
    plan: str
    timeout: float

    def ranks(self, group: dist.ProcessGroup) -> Ranks:
        return Ranks(group, self.size, self.index, self.plan, self.timeout)


_KNOWN: WeakKeyDictionary[dist.ProcessGroup, _Agreed] = WeakKeyDictionary()


def group_of(op: str, group: Group) -> dist.ProcessGroup | None:
    """The group that is meant; None where this process is alone.

    Raises:
        RankError: this process is no rank of it, or it is no group.
    """
    if group is None:
        there = dist.is_available() and dist.is_initialized()
        return dist.group.WORLD if there else None
    if isinstance(group, str) and group == "alone":
        return None
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise RankError(f"{op}: this process is not among the ranks of the group: let those call")
    raise RankError(f"{op}: group is a process group, None or 'alone', not {group!r}")


def ranks_of(op: str, group: Group) -> Ranks | None:
    """The agreed ranks of a group; None where this process is alone.

    The first call for a group, by all of its ranks, makes them agree: see `agree`.

    Raises:
        RankError: they do not agree; or another plan came into force since; or this process is no
            rank of the group.
    """
    group = group_of(op, group)
    if group is None:
        return None
    known = _KNOWN.get(group)
    if known is None:
        if dist.get_world_size(group) == 1:
            return None
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RankError(
                f"{op}: the ranks of this group have not met yet, and cannot in a CUDA graph: call "
                "samebits.ops.parallel.agree(group) on all ranks before the capture"
            )
        return agree(group)
    if known.plan != _plan():
        raise RankError(
            f"{op}: plan {_plan()} came into force on rank {known.index} after the ranks agreed on "
            f"{known.plan}: load it on all ranks, then call samebits.ops.parallel.agree(group) on "
            "all of them"
        )
    return known.ranks(group)


def agree(group: dist.ProcessGroup | None = None, *, timeout: float = PATIENCE) -> Ranks:
    """Makes the ranks of a group meet, and compare what decides bits. All of them call it.

    The first operation of a group does it; call it yourself to set the timeout, before a CUDA
    graph is captured, or after another plan was loaded.

    Args:
        group: of any backend; None: the default group.
        timeout: seconds to wait for the others, here and in kernels that wait for results in a
            GPU's memory. Messages are waited for as long as the group's own timeout says
            (``torch.distributed.init_process_group(timeout=)``); of NCCL's, torch's watchdog then
            ends the process (docs/parallel.md).

    Raises:
        RankError: on every rank: they differ, or one did not come in time.
        SettingError: the timeout is no number of seconds.
    """
    if not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST:
        raise SettingError(f"agree: timeout={timeout!r} is no number of seconds from 0 to 10^9")
    group = group_of("agree", group)
    if group is None:
        raise RankError("agree: there is no group: call torch.distributed.init_process_group first")
    size, index = dist.get_world_size(group), dist.get_rank(group)
    everyone = hear(group, decides_bits(), timeout)
    found = disagreement(everyone)
    if found:
        raise RankError(
            f"the ranks of this group would compute different bits: {found}. Give all of them one "
            "release and one plan file"
        )
    agreed = _KNOWN[group] = _Agreed(size, index, _plan(), timeout)
    return agreed.ranks(group)


#: How often the ranks of a group have heard each other.
_ROUNDS: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def hear(group: dist.ProcessGroup, said: T, timeout: float) -> list[T]:
    """What every rank of a group says, in their order; all of them call it.

    Args:
        said: anything that can be pickled.
        timeout: seconds to wait for the others.

    Raises:
        RankError: one of them did not come in time.
    """
    size, index = dist.get_world_size(group), dist.get_rank(group)
    number = _ROUNDS[group] = _ROUNDS.get(group, 0) + 1
    store: Any = dist.distributed_c10d.PrefixStore(
        f"samebits/{group.group_name}", dist.distributed_c10d._get_default_store()
    )
    keys = [f"{number}/{rank}" for rank in range(size)]
    try:
        store.set(keys[index], pickle.dumps(said))
        store.wait(keys, timedelta(seconds=timeout))
        return [pickle.loads(store.get(key)) for key in keys]
    except RuntimeError as error:
        raise RankError(
            f"rank {index} of {size}: the other ranks did not all come within {timeout:g} s, or "
            f"one of them failed: {error}. Start all of them again"
        ) from error


@lru_cache(maxsize=1)
def _plan() -> str:
    """The ids of the plans in force: ranks on a machine with GPUs may compute on its CPU, too."""
    classes = dict.fromkeys((planner.this_device_class(), "cpu"))
    return " ".join(str(plan.current(device).id) for device in classes)


planner.on_change.append(_plan.cache_clear)


def decides_bits() -> dict[str, str]:
    """Everything that must be the same on all ranks, by name."""
    from samebits import __version__

    return {
        "samebits": __version__,
        "device class": planner.this_device_class(),
        "contracts and schedules": _plan(),
    }


def disagreement(of_ranks: Sequence[Mapping[str, str]]) -> str:
    """What differs between ranks, as a sentence; "" if nothing does."""
    first = of_ranks[0]
    for rank, other in enumerate(of_ranks):
        for name in first:
            if other.get(name) != first[name]:
                return f"{name} is {first[name]!r} on rank 0 and {other.get(name)!r} on rank {rank}"
    return ""
