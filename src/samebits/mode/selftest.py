"""Shows at installation that the overrides are really hit, and not only registered.

A new torch may route a public function to a kernel that did not exist before. Each probe calls the
front door and names the overrides of which at least one must have run. Only what is in the registry
is probed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from samebits.engines.cpu._cpu import Counted
from samebits.errors import SwitchError
from samebits.mode import install


@dataclass(frozen=True)
class Probe:
    """A public call and the schemas of which it must reach one."""

    name: str
    call: Callable[[torch.Tensor], Any]
    reaches: tuple[str, ...]


PROBES = (
    Probe("torch.mm", lambda x: torch.mm(x, x), ("mm",)),
    Probe("linear", lambda x: F.linear(x, x, x[0]), ("linear", "addmm")),
    Probe("matmul", lambda x: x[None] @ x[None], ("matmul", "bmm")),
    Probe("einsum", lambda x: torch.einsum("ij,kj->ik", x, x), ("einsum", "bmm", "mm")),
    Probe("softmax", lambda x: F.softmax(x, -1), ("_softmax", "softmax.int")),
    Probe("log_softmax", lambda x: F.log_softmax(x, -1), ("_log_softmax", "log_softmax.int")),
    Probe("layer_norm", lambda x: F.layer_norm(x, (4,)), ("native_layer_norm", "layer_norm")),
    Probe("sum", lambda x: x.sum(-1), ("sum.dim_IntList",)),
    Probe("mean", lambda x: x.mean(-1), ("mean.dim",)),
    Probe("silu", F.silu, ("silu",)),
    Probe("silu_", lambda x: F.silu(x.clone(), inplace=True), ("silu_", "silu.out", "silu")),
    Probe("gelu", F.gelu, ("gelu",)),
    Probe("exp", torch.exp, ("exp",)),
    Probe("cumsum", lambda x: x.cumsum(0), ("cumsum",)),
    Probe("topk", lambda x: x.topk(2), ("topk",)),
    Probe("index_add", lambda x: x.index_add(0, torch.tensor([0]), x[:1]), ("index_add",)),
    Probe(
        "scaled_dot_product_attention",
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
        (
            "scaled_dot_product_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_attention_math",
        ),
    ),
)


def run() -> None:
    """Probes every override family that is installed. Its own calls are not counted as hits.

    Raises:
        SwitchError: an override is not in force, or a public call does not reach one.
    """
    install.verify()
    by_name: dict[str, list[Counted]] = {}
    for (name, _), counted in install.overrides().items():
        by_name.setdefault(name, []).append(counted)
    hits = [(k, k.hits) for kernels in by_name.values() for k in kernels]
    x = torch.eye(4)
    missed = []
    with torch.no_grad():
        for probe in PROBES:
            kernels = [k for name in probe.reaches for k in by_name.get(name, ())]
            before = sum(k.hits for k in kernels)
            if kernels:
                probe.call(x)
                if sum(k.hits for k in kernels) == before:
                    missed.append(probe.name)
    for kernel, count in hits:
        kernel.hits = count
    if missed:
        raise SwitchError(
            f"torch {torch.__version__} does not reach the overrides of {', '.join(missed)}; "
            "this release of samebits does not fit it"
        )
