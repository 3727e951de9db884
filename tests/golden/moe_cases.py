"""Small cases of mixture of experts, sampling and scattering: inputs, the GPU's work, the CPU's.

``python tests/golden/moe_cases.py DIRECTORY [CASE...]`` on a GPU records inputs and the bytes of
its results; `test_moe_golden` holds the CPU's evaluators to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import samebits as sb
from samebits import bits
from samebits.ops.moe import reference as moe
from samebits.ops.sampling import reference as sampling

Tensors = dict[str, torch.Tensor]
FILES = Path(__file__).with_name("moe")


@dataclass(frozen=True)
class Case:
    """One operation: how inputs are made, what a GPU runs, and what must come out."""

    make: Callable[[], Tensors]
    gpu: Callable[..., Tensors]
    cpu: Callable[..., Tensors]


def values(seed: int, *shape: int, dtype: torch.dtype, spread: int = 6) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    return (x * 2.0 ** torch.randint(-spread, spread, shape, generator=g)).to(dtype)


def chosen(seed: int, experts: int, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(-1, experts, shape, generator=g)


def grouped(dtype: torch.dtype, n: int, k: int, scaling: str | None = None) -> Case:
    """7 rows with 2 slots each, 3 experts."""

    def make() -> Tensors:
        made = {
            "x": values(1, 7, k, dtype=dtype, spread=3 if scaling else 8),
            "weight": values(2, 3, n, k, dtype=dtype, spread=3 if scaling else 8),
            "ids": chosen(3, 3, 7, 2),
        }
        if scaling is not None:
            blocks = (-(-k // 128), -(-n // 128), -(-k // 128)) if scaling == "block" else (1, n, 1)
            made["x_scale"] = values(4, 7, blocks[0], dtype=torch.float32).abs()
            made["w_scale"] = values(5, 3, *blocks[1:], dtype=torch.float32).abs()
        return made

    def gpu(**given: torch.Tensor) -> Tensors:
        return {"accumulators": sb.ops.grouped_linear(out_dtype=torch.float32, **given)}

    def cpu(**given: torch.Tensor) -> Tensors:
        contract = sb.contract_of(
            "grouped_linear", n=n, k=k, dtype=dtype, out_dtype="fp32", scaling=scaling,
            device="sm_90",
        )  # fmt: skip
        return {"accumulators": moe.grouped_linear(contract, **given).view(7, 2, n)}

    return Case(make, gpu, cpu)


def mixture(dtype: torch.dtype) -> Case:
    """Router, experts and combine."""

    def make() -> Tensors:
        return {
            "x": values(1, 9, 64, dtype=dtype, spread=2),
            "logits": values(2, 9, 6, dtype=dtype, spread=1),
            "gate_up": values(3, 6, 48, 64, dtype=dtype, spread=2),
            "down": values(4, 6, 64, 24, dtype=dtype, spread=2),
        }

    def gpu(
        x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
    ) -> Tensors:
        weights, ids = sb.ops.router_topk(logits, 2)
        return {"weights": weights, "ids": ids, "y": sb.ops.moe(x, gate_up, down, ids, weights)}

    def cpu(
        x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
    ) -> Tensors:
        weights, ids = (torch.from_numpy(t) for t in moe.router_topk(logits, 2))
        first, second = (
            sb.contract_of("grouped_linear", n=n, k=k, dtype=dtype, device="sm_90")
            for n, k in ((48, 64), (64, 24))
        )
        opened = moe.silu_mul(moe.grouped_linear(first, x, gate_up, ids))
        y = moe.grouped_linear(second, opened, down, ids.reshape(-1)).view(9, 2, 64)
        return {"weights": weights, "ids": ids, "y": moe.combine(y, weights)}

    return Case(make, gpu, cpu)


def sampled() -> Case:
    """40 rows with parameters of their own."""

    def make() -> Tensors:
        g = torch.Generator().manual_seed(0)

        def pick(*options: float) -> torch.Tensor:
            return torch.tensor(options)[torch.randint(0, len(options), (40,), generator=g)]

        return {
            "logits": torch.randn(40, 211, generator=g) * 3,
            "seeds": torch.randint(-(2**62), 2**62, (40,), generator=g),
            "positions": torch.randint(0, 2**40, (40,), generator=g),
            "temperature": pick(0.0, 0.3, 1.0, 1.7),
            "top_k": pick(0, 0, 2, 11).int(),
            "top_p": pick(1.0, 0.95, 0.5),
            "min_p": pick(0.0, 0.0, 0.05),
        }

    def gpu(**given: torch.Tensor) -> Tensors:
        found = sb.ops.sample(**given, logprobs=True)
        assert found.logprobs is not None
        return {"tokens": found.tokens, "logprobs": found.logprobs}

    def cpu(**given: torch.Tensor) -> Tensors:
        rows = [
            sampling.sample_row(*(t[i] if t.dim() > 1 else t[i].item() for t in given.values()))
            for i in range(40)
        ]
        scores = torch.from_numpy(np.stack([score for _, score in rows]))
        return {"tokens": torch.tensor([token for token, _ in rows]), "logprobs": scores}

    return Case(make, gpu, cpu)


def scattered(dtype: torch.dtype) -> Case:
    """300 sources for 7 places."""

    def make() -> Tensors:
        return {
            "x": values(1, 7, 5, dtype=dtype),
            "index": chosen(2, 7, 300).clamp(min=0),
            "source": values(3, 300, 5, dtype=dtype),
        }

    def run(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> Tensors:
        return {"y": sb.ops.index_add(x, 0, index, source, 0.7)}

    return Case(make, run, run)


CASES = {
    "grouped_bf16": grouped(torch.bfloat16, 40, 272),
    "grouped_fp16": grouped(torch.float16, 40, 272),
    "grouped_fp32": grouped(torch.float32, 24, 77),
    "grouped_e4m3_row": grouped(torch.float8_e4m3fn, 72, 304, "row"),
    "grouped_e4m3_block": grouped(torch.float8_e4m3fn, 72, 304, "block"),
    "mixture_bf16": mixture(torch.bfloat16),
    "sample": sampled(),
    "index_add_fp32": scattered(torch.float32),
    "index_add_bf16": scattered(torch.bfloat16),
}


def record(folder: Path, name: str) -> None:
    """Writes a case's inputs and the results of this machine's GPU."""
    inputs = CASES[name].make()
    results = CASES[name].gpu(**{n: t.cuda() for n, t in inputs.items()})
    arrays = {}
    for kind, tensors in (("in", inputs), ("out", results)):
        for n, t in tensors.items():
            dtype = str(t.dtype).removeprefix("torch.")
            arrays[f"{kind}/{n}/{dtype}"] = bits.view(t.cpu().contiguous()).numpy()
    np.savez_compressed(folder / f"{name}.npz", **arrays)


def load(name: str) -> tuple[Tensors, Tensors]:
    """Recorded inputs and results of a case."""
    found: dict[str, Tensors] = {"in": {}, "out": {}}
    with np.load(FILES / f"{name}.npz") as arrays:
        for key in arrays.files:
            kind, n, dtype = key.split("/")
            found[kind][n] = torch.from_numpy(arrays[key]).view(getattr(torch, dtype))
    return found["in"], found["out"]


if __name__ == "__main__":
    for chosen_name in sys.argv[2:] or CASES:
        record(Path(sys.argv[1]), chosen_name)
        print(chosen_name, flush=True)
