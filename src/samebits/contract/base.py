"""What all contracts have in common: a canonical text, an id made from it, and a drawing."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from samebits.contract.render import render_svg, render_text
from samebits.errors import ContractError

if TYPE_CHECKING:
    from samebits.contract.operands import Operand
    from samebits.contract.tree import Tree

#: Raised when the meaning of a text changes, so that old ids cannot be taken for new bits.
TEXT_VERSION = 1


@dataclass(frozen=True)
class Contract(ABC):
    """What decides the bits of one operation. Pure data, hashable, compared by value.

    There is no batch size in it, and no place to put one.
    """

    #: First word of the canonical text.
    kind: ClassVar[str] = ""

    @property
    def text(self) -> str:
        """The canonical text: one line a field. `parse` gives the contract back."""
        lines = [f"samebits {TEXT_VERSION} {self.kind}"]
        for field in fields(self):
            value = getattr(self, field.name)
            shown = ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
            lines.append(f"{field.name}: {shown}")
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"contract {self.id}\n{self.text}"

    @property
    def id(self) -> str:
        """12 hexadecimal digits of the SHA-256 of `text`: equal ids, equal bits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @abstractmethod
    def evaluate(self, *args: Any, **kwargs: Any) -> Operand:
        """The exact bits of the operation, computed on a CPU; see the kind of contract."""

    @abstractmethod
    def drawn_tree(self) -> tuple[Tree, str, int, int]:
        """The tree to draw: (tree, name of its axis, a length to draw it for, products a step)."""

    def render(self, fmt: str = "text", *, length: int | None = None) -> str:
        """A drawing of the reduction tree with the contract's text.

        Args:
            fmt: "text" (for a terminal) or "svg" (a self-contained picture).
            length: elements along the reduced axis; a typical number if None.

        Raises:
            ContractError: another format, or a negative length.
        """
        tree, axis, typical, block = self.drawn_tree()
        length = typical if length is None else length
        if fmt == "text":
            return render_text(self.text, self.id, tree, axis, length, block)
        if fmt == "svg":
            return render_svg(self.text, self.id, tree, axis, length, block)
        raise ContractError(f"format {fmt!r} cannot be drawn: use 'text' or 'svg'")
