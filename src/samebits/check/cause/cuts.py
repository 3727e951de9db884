"""Whether the request was cut out of a result at the right place.

A tensor does not name its axes. `samebits.check.tape.Window` takes the batch to come before the
tokens, which is wrong inside recurrent layers (time first) and where rows were sorted or gathered.
Then other rows' values are compared, which have nothing to do with the request's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from samebits.check.cause.capture import Operation
from samebits.check.cause.settings import on_stock
from samebits.check.compare import Bits

#: How far results of other rows part at least, and results of the same row at most.
_APART, _NEAR = 2.0**-4, 2.0**-7
#: Vectors that are looked for, and elements in which they are.
_VECTORS, _ELEMENTS = 32, 2**22


def cut_wrongly(
    first: Operation, second: Operation, behind: Callable[[], tuple[Bits, Bits]]
) -> bool:
    """Whether an operation's results part only because other rows are compared.

    They do if they part far more than what is computed from them, and one run's vectors are found
    in the other run's result at other places.

    Args:
        first, second: the operation as the two runs made it.
        behind: gives both runs' results of the module around it.
    """
    if torch.Tag.nondeterministic_seeded in first.func.tags:
        return False  # numbers drawn for another row are the cause
    mine = first.parts(first.output), second.parts(second.output)
    if parted(*mine) < _APART or parted(*behind()) > _NEAR:
        return False
    return _holds(second.output, mine[0], mine[1]) or _holds(first.output, mine[1], mine[0])


def time_first(first: Operation, second: Operation) -> bool:
    """Whether the results agree where the tokens come before the requests."""
    pair = []
    for op in (first, second):
        window = op.window.in_time()
        cuts = (window.select(t, op.row, None) for t in op.output)
        pair.append([cut[0] for cut in cuts if cut is not None])
    return bool(pair[0]) and parted(*pair) <= _NEAR


@on_stock
def parted(x: Bits | list[torch.Tensor], y: Bits | list[torch.Tensor]) -> float:
    """How far results part: the mean distance of their elements in units of their RMS.

    Each distance counts as 1 at most; 0 where nothing can be compared.
    """
    found = [0.0]
    for a, b in zip(x, y, strict=False):
        if a.shape != b.shape or not a.is_floating_point() or not a.numel():
            continue
        p, q = a.double(), b.double()
        scale = float(p.square().mean().sqrt().nan_to_num(0.0, 0.0, 0.0)) or 1.0
        gap = ((p - q).abs() / scale).nan_to_num(1.0, 1.0)
        found.append(float(gap.clamp(max=1.0).mean()))
    return max(found)


@on_stock
def _holds(
    results: list[torch.Tensor], wanted: list[torch.Tensor], got: list[torch.Tensor]
) -> bool:
    """Whether results hold the vectors that are wanted, where they are not at their place."""
    for whole, want, have in zip(results, wanted, got, strict=False):
        if want.shape != have.shape or not want.is_floating_point() or not want.dim():
            continue
        size = 1 if whole.dim() == 1 else want.shape[-1]
        if size not in (1, whole.shape[-1]):
            continue
        vectors, others = (t.double().reshape(-1, size) for t in (want, have))
        far = (vectors - others).norm(dim=1) > _APART * vectors.norm(dim=1)
        some = vectors[far][:_VECTORS]
        pool = whole.double().reshape(-1, size)[: max(_ELEMENTS // size, 1)]
        if len(some):
            nearest = torch.cdist(some, pool).amin(1)
            return bool((nearest <= _NEAR * some.norm(dim=1)).double().mean() > 0.75)
    return False
