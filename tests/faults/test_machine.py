"""Group O: threads and instruction sets. U3: comparing bits."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from faults.models import Decoder, built
from faults.properties import (
    FLOATS,
    Pairs,
    holds,
    instruction_sets,
    stock_fails,
    stock_is_known,
    threads,
    values,
)
from samebits import bits

CALLS = {
    "linear of a vector": lambda d: F.linear(values(56, dtype=d), values(444, 56, dtype=d, seed=1)),
    "linear": lambda d: F.linear(values(65, 300, dtype=d), values(129, 300, dtype=d, seed=1)),
    "sum of 2**20": lambda d: values(2**20, dtype=d).sum(),
    "mean": lambda d: values(3, 40_001, dtype=d).mean(),
    "norm": lambda d: values(2**18 + 3, dtype=d).norm(),
    "sum of columns": lambda d: values(3001, 77, dtype=d).sum(0),
    "softmax": lambda d: values(9, 32_003, dtype=d).softmax(-1),
    "layer_norm": lambda d: F.layer_norm(values(99, 777, dtype=d), (777,)),
    "silu": lambda d: F.silu(values(200_003, dtype=d)),
    "gelu": lambda d: F.gelu(values(200_003, dtype=d)),
    "pow": lambda d: values(100_003, dtype=d).abs() ** 0.7,
    "attention": lambda d: F.scaled_dot_product_attention(
        *(values(2, 4, 130, 32, dtype=d, seed=s) for s in range(3)), is_causal=True
    ),
    "one query": lambda d: F.scaled_dot_product_attention(
        values(1, 8, 1, 64, dtype=d), *(values(1, 8, 1500, 64, dtype=d, seed=s) for s in (1, 2))
    ),
    "index_put": lambda d: torch.zeros(256, dtype=d).index_put(
        ((torch.arange(30_000) * 7919) % 256,), values(30_000, dtype=d), accumulate=True
    ),
    "decoder": lambda d: built(Decoder, d, depth=2).logits(torch.arange(60).view(2, 30)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_o1_o2_any_threads_any_instruction_set(name: str, dtype: torch.dtype) -> None:
    def pairs() -> Pairs:
        yield from threads(lambda: CALLS[name](dtype))
        yield from instruction_sets(lambda: CALLS[name](dtype))

    if name == "sum of 2**20" and dtype is torch.float32:
        stock_fails(pairs)
    holds(pairs)


CHILD = """
import sys, hashlib, torch
sys.path.insert(0, sys.argv[1])
from faults.test_machine import CALLS
from samebits import bits
import samebits
digests = []
def run():
    for call in CALLS.values():
        digests.append(hashlib.sha256(bits.view(call(torch.float32)).numpy().tobytes()).hexdigest())
if sys.argv[2] == "switch":
    with samebits.deterministic():
        run()
else:
    run()
print(" ".join(digests))
"""


def in_process(mode: str, **environment: str) -> list[str]:
    """Digests of all CALLS in a fresh process with these variables."""
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tests, mode],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_o2_any_capability_that_the_libraries_are_told() -> None:
    """Variables that change stock's kernels, and ours: all bits stay."""
    settings: list[dict[str, str]] = [
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"},
        {"SAMEBITS_CPU_ISA": "scalar", "OMP_NUM_THREADS": "3"},
    ]
    if stock_is_known():
        assert in_process("stock") != in_process("stock", **settings[0])
    want = in_process("switch")
    assert len(want) == len(CALLS)
    for environment in settings:
        got = in_process("switch", **environment)
        assert [n for n, a, b in zip(CALLS, want, got, strict=True) if a != b] == [], environment


def test_o4_concurrent_callers_get_what_one_caller_gets() -> None:
    """Many Python threads in the engine at once: no shared scratch, no race."""
    import threading

    x, w = values(33, 500), values(300, 500, seed=1)
    q, k, v = (values(1, 4, 700, 32, seed=s) for s in range(3))

    def work() -> torch.Tensor:
        y = F.linear(x, w).softmax(-1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.cat([y.flatten(), a.flatten(), x.cumsum(1).flatten(), x.sum(0)])

    def pairs() -> Pairs:
        want, results = work(), []
        crew = [
            threading.Thread(target=lambda: results.extend(work() for _ in range(4)))
            for _ in range(6)
        ]
        for t in crew:
            t.start()
        for t in crew:
            t.join()
        assert len(results) == 24
        for i, got in enumerate(results):
            yield f"call {i}", want, got

    holds(pairs)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64, torch.complex64])
def test_u3_bits_are_compared_not_values(dtype: torch.dtype) -> None:
    zero, minus = torch.zeros(3, dtype=dtype), -torch.zeros(3, dtype=dtype)
    assert torch.equal(zero, minus) and not bits.equal(zero, minus)
    assert bits.count_different(zero, minus) == (6 if dtype.is_complex else 3)
    nan = torch.full((3,), float("nan"), dtype=dtype)
    assert not torch.equal(nan, nan) and bits.equal(nan, nan.clone())
    if dtype is torch.float32:
        payload = torch.tensor([0x7FC00001] * 3, dtype=torch.int32).view(torch.float32)
        assert not bits.equal(nan, payload)
    assert not bits.equal(zero, zero.to(torch.complex128))
    assert not bits.equal(zero, zero[:2])
