"""What two calls returned, whatever it is: tensors, numbers, text, and containers of them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from samebits import bits
from samebits.check.compare import Bits
from samebits.check.tape import items

#: Values without parts that are compared as they are.
_PLAIN = (
    type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, slice,
)  # fmt: skip
_LONGEST = 40
"""Characters of a value that are shown."""

What = Literal["bits", "dtype", "shape", "value"]
Cut = Callable[[torch.Tensor], "torch.Tensor | None"]
"""Gives the request's part of a tensor, or None where it has none."""


@dataclass(frozen=True)
class Leaf:
    """One value among what a call returned, kept as it was then.

    Attributes:
        form: what it is, for people.
        value: a tensor (the request's part of it) or a plain value.
        cut: it is the request's part of a tensor.
        known: it can be compared.
    """

    form: str
    value: Any = None
    cut: bool = False
    known: bool = True

    @property
    def is_tensor(self) -> bool:
        """Whether it has bits."""
        return isinstance(self.value, torch.Tensor)


Tree = dict[str, Any]
"""The parts of a container by label: leaves, or trees."""
_NOTHING = Leaf("nothing", value="")


def kept(value: Any, cut: Cut, above: tuple[int, ...] = ()) -> Tree | Leaf:
    """A copy of what a call returned that later calls cannot change.

    Args:
        value: what it returned.
        cut: gives the request's part of a tensor.
        above: the containers that it is in, by identity.
    """
    if isinstance(value, np.ndarray | np.generic):
        numbers = value.dtype.kind in "biufc" and value.dtype.char not in "gG"  # long doubles
        value = torch.as_tensor(np.array(value)) if numbers else value.tolist()
    if isinstance(value, torch.Tensor):
        return _tensor(value, cut)
    if isinstance(value, _PLAIN):
        return Leaf(_shown(value), value)
    if isinstance(value, (set, frozenset)) and all(isinstance(x, _PLAIN) for x in value):
        return Leaf(_shown(value), tuple(sorted(map(_word, value))))
    parts = None if id(value) in above else items(value)
    if parts is None:
        return Leaf(f"a {type(value).__name__}", known=False)
    inside = (*above, id(value))
    found: Tree = {f"[{label}]": kept(part, cut, inside) for label, part in parts}
    return found or Leaf(f"an empty {type(value).__name__}", value="empty")


def _tensor(t: torch.Tensor, cut: Cut) -> Leaf:
    dtype = str(t.dtype).removeprefix("torch.")
    if t.is_nested:  # it has no shape
        return Leaf(f"a nested tensor of {dtype}", known=False)
    form = f"{tuple(t.shape)} {dtype}"
    try:
        whole = (t if t.layout is torch.strided else t.to_dense()).detach()
        part = cut(whole)
        copy = (whole if part is None else part).clone()
        bits.equal(copy[:1] if copy.dim() else copy, copy[:1] if copy.dim() else copy)
    except (RuntimeError, NotImplementedError):  # it has no bits of its own: nested, on meta, ...
        return Leaf(f"{form}, {t.layout}, {t.device}", known=False)
    return Leaf(form, copy, part is not None)


@dataclass(frozen=True)
class Apart:
    """Where two returned values are not alike: label, in what, and what they are."""

    label: str
    what: What
    first: str
    second: str

    def __str__(self) -> str:
        where = f"The result {self.label}" if self.label else "The result"
        if self.what == "bits":
            return f"{where} ({self.first}) differs in its bits."
        return f"{where} is {self.first} in the first run and {self.second} in the second."


@dataclass
class Compared:
    """What two calls returned, side by side.

    Attributes:
        apart: where they are not alike.
        unsure: where they are not alike, and may hold more than the request.
        omitted: what could not be compared, and why, a phrase each.
        pairs: the tensors of equal shape, of the first and of the second run.
        count: values that were compared.
    """

    apart: list[Apart] = field(default_factory=list)
    unsure: list[Apart] = field(default_factory=list)
    omitted: list[str] = field(default_factory=list)
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    count: int = 0

    @property
    def values(self) -> tuple[Bits, Bits]:
        """The tensors of equal shape of both runs."""
        return tuple(a for a, _ in self.pairs), tuple(b for _, b in self.pairs)

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs."""
        return not self.apart and not self.unsure


def compared(
    first: Tree | Leaf,
    second: Tree | Leaf,
    *,
    rows: tuple[int, int] | None = None,
    batches: tuple[int, int] = (0, 0),
    alike: bool = True,
) -> Compared:
    """Compares what two calls returned.

    Args:
        first, second: what they returned.
        rows: the request's row in each run, where a part of them is compared.
        batches: sizes of their batches: a list of as many results has one for each request.
        alike: both runs cut the request into the same numbers of tokens, so shapes must agree.
    """
    found = Compared()
    each = rows if batches[0] != batches[1] else None
    for label, a, b in _pairs("", first, second, each, batches):
        _compare(found, label, a, b, rows is not None, alike)
    return found


def _pairs(
    label: str, a: Any, b: Any, rows: tuple[int, int] | None, batches: tuple[int, int]
) -> Iterator[tuple[str, Leaf, Leaf]]:
    """The leaves of two trees that belong together."""
    if isinstance(a, Leaf) and isinstance(b, Leaf):
        yield label, a, b
    elif isinstance(a, Leaf) or isinstance(b, Leaf):
        x, y = (t if isinstance(t, Leaf) else Leaf(f"{len(t)} values", value=t) for t in (a, b))
        yield label, x, y
    elif rows is not None and (len(a), len(b)) == batches and f"[{rows[0]}]" in a:
        yield from _pairs(f"{label}[row]", a[f"[{rows[0]}]"], b[f"[{rows[1]}]"], rows, batches)
    else:
        for key in dict.fromkeys([*a, *b]):
            x, y = a.get(key, _NOTHING), b.get(key, _NOTHING)
            yield from _pairs(label + key, x, y, rows, batches)


def _compare(found: Compared, label: str, a: Leaf, b: Leaf, cut: bool, alike: bool) -> None:
    """Compares two leaves; `cut`: only a request's part of the runs is compared."""
    if not (a.known and b.known):
        where = label or "the result"
        form = a.form if a.form == b.form else f"{a.form} against {b.form}"
        found.omitted.append(f"{where} ({form})")
        return
    if not (a.is_tensor and b.is_tensor):
        found.count += a.value is not None or b.value is not None
        if a.is_tensor or b.is_tensor or _word(a.value) != _word(b.value):
            part = cut and not label.endswith("[row]")
            (found.unsure if part else found.apart).append(Apart(label, "value", a.form, b.form))
        return
    x, y = a.value, b.value.to(a.value.device)
    if not _same_shape(x, y, a.cut or b.cut):
        if not alike or (cut and not (a.cut and b.cut)):
            found.omitted.append(f"{label or 'the result'} ({a.form} against {b.form})")
        else:
            found.apart.append(Apart(label, "shape", *_forms(a, b)))
        return
    found.count += x.numel() > 0
    found.pairs.append((x.reshape(-1), y.reshape(-1)))
    if x.dtype is not y.dtype:
        found.apart.append(Apart(label, "dtype", *_forms(a, b)))
    elif not bits.equal(x.reshape(-1), y.reshape(-1)):
        whole = cut and not (a.cut and b.cut)
        (found.unsure if whole else found.apart).append(Apart(label, "bits", a.form, b.form))


def _same_shape(x: torch.Tensor, y: torch.Tensor, cut: bool) -> bool:
    """Whether shapes agree; axes of one entry count only where nothing was cut out."""
    return x.shape == y.shape or (cut and x.squeeze().shape == y.squeeze().shape)


def _forms(a: Leaf, b: Leaf) -> tuple[str, str]:
    """What two tensors are, cut to the request."""
    x, y = (f"{tuple(t.value.shape)} {str(t.value.dtype).removeprefix('torch.')}" for t in (a, b))
    return x, y


def _word(value: Any) -> str:
    """What a plain value is, with its type: 1, 1.0 and True are three; so are 0.0 and -0.0."""
    return f"{type(value).__name__} {value!r}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
