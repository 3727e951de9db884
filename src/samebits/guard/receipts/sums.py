"""Integer checksums of what a model computes, token by token, by forward hooks.

A row's checksum is the sum of the integer view of its elements, modulo 2^64. A request's is the sum
over its positions. Neither depends on the order of anything, nor on how prompts were cut into
chunks or batches; a position that is computed twice (after preemption) counts once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samebits import bits
from samebits.guard.receipts.operands import Sampler
from samebits.guard.receipts.record import Receipt, address

Words = npt.NDArray[np.int64]
LOGITS = "logits"
#: Behind a module's name: what it was given, not what it gave.
GIVEN = ":input"


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """[..., C] -> [rows] int64: the checksum of each row."""
    return bits.view(x.detach()).sum(-1, dtype=torch.int64).reshape(-1)


class Rows:
    """Checksums of one request by position and place.

    Attributes:
        places: number of places; the last one is `LOGITS`.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self._pieces: list[tuple[int, Words]] = []
        self._logits: dict[int, int] = {}

    def add(self, start: int, sums: Words) -> None:
        """Checksums [positions, places - 1] of consecutive positions from `start` on."""
        self._pieces.append((start, sums))

    def add_logits(self, position: int, sum: int) -> None:
        """The checksum of the logits that follow a position."""
        self._logits[position] = sum

    def table(self, first: int, stop: int) -> tuple[Words, npt.NDArray[np.bool_]]:
        """Checksums [stop, places] by position, and which positions were computed.

        Args:
            first: the position whose logits gave the first token of the answer.
            stop: positions from here on do not belong to the request.
        """
        table, seen = np.zeros((stop, self.places), np.int64), np.zeros(stop, bool)
        for start, sums in self._pieces:
            end = min(stop, start + len(sums))
            if end > start:
                table[start:end, :-1] = sums[: end - start]
                seen[start:end] = True
        for position, value in self._logits.items():
            if first <= position < stop:
                table[position, -1] = value
        return table, seen

    def total(self, first: int, stop: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Checksums of all places, and the ranges of positions that they cover."""
        table, seen = self.table(first, stop)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
        ranges = [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]
        return [int(x) for x in table.sum(0, dtype=np.int64)], ranges


@dataclass
class Running:
    """What is known of a request while it is served.

    Attributes:
        rows: its checksums; None: none are taken.
        logprobs: bits of log-probabilities by the position of their token.
        audit: objects with operands, by name.
    """

    rows: Rows | None
    logprobs: dict[int, int] = field(default_factory=dict)
    audit: dict[str, bytes] = field(default_factory=dict)

    def keep(self, sampler: Sampler | None, key: int | str) -> None:
        """Takes what was kept of the request for an audit."""
        body = sampler.pop(key) if sampler is not None else None
        if body is not None:
            self.audit[address(body)] = body

    def receipt(self, *, input: list[int], output: list[int], **fields: Any) -> Receipt:
        """The receipt of the finished request; `fields` are its other fields."""
        sums: list[int] = []
        covered: list[tuple[int, int]] = []
        if self.rows is not None:
            first = len(input) - 1
            sums, covered = self.rows.total(first, first + len(output))
        known = [self.logprobs.get(len(input) + i, -1) for i in range(len(output))]
        return Receipt(
            time=time.time_ns(), input=input, output=output, sums=sums, covered=covered,
            logprobs=None if -1 in known else known, audit=list(self.audit), **fields,
        )  # fmt: skip


class Listener:
    """Collects the checksums of a model's forward passes.

    Args:
        model: the model.
        level: "layers" or "operations".
        head: the module that makes the logits, of some rows only: `LOGITS` stands for it.

    Attributes:
        places: names; the last is `LOGITS`, which the listener leaves to its owner.
        order: columns in the order in which they were met in the last forward pass.
    """

    def __init__(
        self, model: torch.nn.Module, level: str, head: torch.nn.Module | None = None
    ) -> None:
        self._hooked = [entry for entry in _listened(model, level) if entry[0] is not head]
        self.places = (*(name for _, name, _ in self._hooked), LOGITS)
        self.order: list[int] = []
        self._sums: dict[int, torch.Tensor] = {}
        self._watching = False

    def listen(self) -> Callable[[], None]:
        """Puts its hooks into the model; returns what takes them out again."""
        stack = ExitStack()
        for column, (module, _, given) in enumerate(self._hooked):
            if given:
                handle = module.register_forward_pre_hook(self._before(column))
            else:
                handle = module.register_forward_hook(self._after(column))
            stack.callback(handle.remove)
        return stack.close

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Has its hooks in the model during the block."""
        end = self.listen()
        try:
            yield
        finally:
            end()

    def begin(self) -> None:
        """A forward pass begins: what was seen before is forgotten."""
        self._sums, self.order, self._watching = {}, [], True

    def take(self, rows: int) -> Words:
        """Checksums [rows, places - 1] of the forward pass that has ended.

        A place that saw another number of rows (experts, a module that was skipped) has 0.
        """
        self._watching = False
        device = next((s.device for s in self._sums.values()), torch.device("cpu"))
        table = torch.zeros((len(self.places) - 1, rows), dtype=torch.int64, device=device)
        for column, sums in self._sums.items():
            if len(sums) == rows:
                table[column] = sums
        self._sums = {}
        return np.ascontiguousarray(table.cpu().numpy().T)

    def _before(self, column: int) -> Callable[..., None]:
        def hook(_module: Any, args: Any) -> None:
            self._note(column, args)

        return hook

    def _after(self, column: int) -> Callable[..., None]:
        def hook(_module: Any, _args: Any, output: Any) -> None:
            self._note(column, output)

        return hook

    def _note(self, column: int, value: Any) -> None:
        if not self._watching:
            return
        first = value[0] if isinstance(value, (tuple, list)) and value else value
        if isinstance(first, torch.Tensor) and first.is_floating_point() and first.dim() > 1:
            if column not in self._sums:  # a step that the guard replays meets it again
                self.order.append(column)
            self._sums[column] = row_sums(first)


def _listened(model: torch.nn.Module, level: str) -> Iterator[tuple[torch.nn.Module, str, bool]]:
    """Modules to listen to, names of their places, and whether that is what they are given."""
    layers = _layers(model)
    for name, module in model.named_modules():
        leaf = any(True for _ in module.parameters(recurse=False)) and not any(module.children())
        if level == "operations" and leaf:
            yield module, name + GIVEN, True
        if (level == "operations" and leaf) or any(module is layer for layer in layers):
            yield module, name, False


def _layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The layers of a model: the longest list of modules that is in no other list."""
    lists = {
        name: list(m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)
    }
    outer = [
        found for name, found in lists.items()
        if not any(name.startswith(f"{other}.") for other in lists)
    ]  # fmt: skip
    return max(outer, key=len, default=[])
