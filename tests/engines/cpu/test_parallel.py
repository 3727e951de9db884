"""Threads of the pool: what happens in one of them is the caller's to know."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCARCE = """
import resource, torch
from samebits.engines.cpu import attention, gemm

torch.set_num_threads(2)
a, b = torch.randn(300, 64), torch.randn(64, 300)
before = gemm.bmm(a, b)
q, keys, values = torch.ones(4, 1, 2, 1), 1 << 22, 4096
k = torch.ones(1).expand(4, 1, keys, 1)
v = torch.ones(values).expand(4, 1, keys, values)
held = next(line for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = int(held.split()[1]) * 1024 + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    attention.dense(q, k, v, scale=1.0)
except MemoryError:
    print("refused", torch.equal(gemm.bmm(a, b), before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_task_without_memory_raises() -> None:
    """A task wants 256 MiB. An exception that leaves a thread of the pool would end the process."""
    run = subprocess.run([sys.executable, "-c", _SCARCE], capture_output=True, text=True)
    assert run.stdout.strip() == "refused True", run.stderr
