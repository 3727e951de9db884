"""Shows at installation that the overrides are really hit, and not only registered.

A new torch may route a public function to a kernel that did not exist before. Each probe calls the
front door and names the overrides of which at least one must have run. Only what is in the registry
is probed.

On a GPU the probes have no rows: they take every turn that other calls take, and start no kernel.
They wait until the process uses CUDA; the switch alone does not start it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from samebits.engines.cpu._cpu import Counted
from samebits.engines.triton import CLASSES
from samebits.errors import SwitchError
from samebits.mode import install


@dataclass(frozen=True)
class Probe:
    """A public call on a matrix of 4 columns, and the schemas of which it must reach one."""

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
    Probe(
        "index_add",
        lambda x: x.index_add(0, x.new_zeros(1, dtype=torch.int64), x[:1]),
        ("index_add",),
    ),
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


def _attention(x: torch.Tensor) -> torch.Tensor:
    q = x.view(-1, 1, 1, 4)
    return F.scaled_dot_product_attention(q, q, q)


CUDA_PROBES = (
    Probe("torch.mm", lambda x: torch.mm(x, x.new_empty(4, 4)), ("mm",)),
    Probe("linear", lambda x: F.linear(x, x.new_empty(4, 4)), ("linear",)),
    Probe("matmul", lambda x: x[None] @ x.new_empty(1, 4, 4), ("matmul", "bmm")),
    Probe("softmax", lambda x: F.softmax(x, -1), ("_softmax",)),
    Probe("log_softmax", lambda x: F.log_softmax(x, -1), ("_log_softmax",)),
    Probe("layer_norm", lambda x: F.layer_norm(x, (4,)), ("native_layer_norm", "layer_norm")),
    Probe("rms_norm", lambda x: F.rms_norm(x, (4,)), ("_fused_rms_norm", "rms_norm")),
    Probe("sum", lambda x: x.sum(-1), ("sum.dim_IntList",)),
    Probe("mean", lambda x: x.mean(-1), ("mean.dim",)),
    Probe("topk", lambda x: x.topk(2), ("topk",)),
    Probe("scaled_dot_product_attention", _attention, ("scaled_dot_product_attention",)),
)


def run() -> None:
    """Probes every override family that is installed. Its own calls are not counted as hits.

    Raises:
        SwitchError: an override is not in force, or a public call does not reach one.
    """
    install.verify()
    counted = install.overrides()
    hits = [(kernel, kernel.hits) for kernel in counted.values()]
    missed = _missed(PROBES, "CPU", torch.eye(4, dtype=torch.float32, device="cpu"))
    if _on_covered_gpu():
        rows = torch.empty(0, 4, dtype=torch.bfloat16, device="cuda")
        missed += [f"{name} on CUDA" for name in _missed(CUDA_PROBES, "CUDA", rows)]
    for kernel, count in hits:
        kernel.hits = count
    if missed:
        raise SwitchError(
            f"torch {torch.__version__} does not reach the overrides of {', '.join(missed)}; "
            "this release of samebits does not fit it"
        )


def _on_covered_gpu() -> bool:
    if not install.gpu() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return torch.cuda.get_device_capability() in CLASSES


def _missed(probes: tuple[Probe, ...], device: str, x: torch.Tensor) -> list[str]:
    by_name: dict[str, list[Counted]] = {}
    for (name, key), counted in install.overrides().items():
        if key.endswith("CUDA") is (device == "CUDA"):
            by_name.setdefault(name, []).append(counted)
    missed = []
    with torch.no_grad():
        for probe in probes:
            kernels = [k for name in probe.reaches for k in by_name.get(name, ())]
            before = sum(k.hits for k in kernels)
            if kernels:
                probe.call(x)
                if sum(k.hits for k in kernels) == before:
                    missed.append(probe.name)
    return missed
