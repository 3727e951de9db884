"""One hash over the bits of many results, for comparing machines, PyTorch versions and threads.

    python scripts/machine_hash.py

Prints a line for each instruction set of this machine. docs/measured.md says what it should be.
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F

import samebits as sb
from samebits.engines import cpu
from samebits.models import tiny

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PROMPT = b"ROMEO:\nBut soft, what light through yonder window breaks?"


def digest(x: torch.Tensor) -> str:
    """A short hash of a tensor's bytes."""
    raw = x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:10]


def main() -> None:
    """Computes everything once per instruction set."""
    g = torch.Generator().manual_seed(1)

    def values(*shape: int) -> torch.Tensor:  # from integers: randn differs between machines
        return torch.randint(-(2**20), 2**20, shape, generator=g).float() / 2**17

    shapes = ((37, 1000), (96, 1000), (2, 6, 70, 64), (2, 2, 1100, 64), (2, 2, 1100, 64))
    inputs = [tuple(values(*shape).to(dtype) for shape in shapes) for dtype in DTYPES]
    model, ids = tiny.load(), torch.tensor([list(PROMPT)] * 3)
    for isa in cpu.isas():
        cpu.set_isa(isa)
        results: list[torch.Tensor] = []
        with sb.deterministic(), torch.inference_mode():
            for x, w, q, k, v in inputs:
                results += [
                    F.linear(x, w),
                    F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                    x.softmax(-1),
                    F.layer_norm(x, (1000,)),
                    F.gelu(x),
                    F.silu(x),
                    x.exp(),
                    x.sum(),
                    x.abs().log(),
                    x.sin(),
                    x.tanh(),
                    x.abs().pow(1.7),
                    x.cumsum(0),
                    F.conv1d(x[None], torch.ones(8, 37, 3, dtype=x.dtype)),
                    x.var(1),
                ]
            results.append(model(ids))
        total = hashlib.sha256("".join(map(digest, results)).encode()).hexdigest()[:16]
        print(f"{isa:8s} {len(results)} results  {total}")


if __name__ == "__main__":
    main()
