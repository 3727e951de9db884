"""What runs leave behind: the generators' states and the model's buffers, put back for each one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits import bits
from samebits.check.cause.settings import random_state

_FEW = 2**16
"""Elements of integer buffers up to which they are states (positions, counters), not weights."""


@dataclass(frozen=True)
class _Held:
    """A buffer as it was: where it is, its tensor, and a copy of that."""

    owner: torch.nn.Module
    name: str
    tensor: torch.Tensor | None
    copy: torch.Tensor | None

    @property
    def written(self) -> bool:
        """Whether it holds other bits now, or is another tensor.

        Its version would not tell: batch norm writes its statistics without counting.
        """
        now = self.owner._buffers.get(self.name)
        if now is not self.tensor or now is None or self.copy is None:
            return now is not self.tensor
        return not bits.equal(now, self.copy)

    def restore(self) -> None:
        """Puts the tensor and its contents back."""
        if self.tensor is not None and self.copy is not None:
            with torch.inference_mode(self.tensor.is_inference()), torch.no_grad():
                self.tensor.copy_(self.copy)
        self.owner._buffers[self.name] = self.tensor


class State:
    """The random state, and the buffers that runs write to.

    A model that counts what it has seen (batch norm in training mode, a running scale) would
    otherwise move on with every repetition, and no two of them would start alike.

    Args:
        module: the model, or None.
    """

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._random = random_state()
        self._held = {
            (id(owner), name): _Held(owner, name, b, None if b is None else b.detach().clone())
            for owner in (module.modules() if module is not None else ())
            for name, b in owner._buffers.items()
            if b is None or b.is_floating_point() or b.numel() <= _FEW
        }

    def written(self) -> set[tuple[int, str]]:
        """The buffers that hold other bits since."""
        return {key for key, held in self._held.items() if held.written}

    def keep(self, these: set[tuple[int, str]]) -> None:
        """Forgets all other buffers."""
        self._held = {key: held for key, held in self._held.items() if key in these}

    def restore(self) -> None:
        """Puts the generators and the buffers back."""
        self._random.restore()
        for held in self._held.values():
            held.restore()
