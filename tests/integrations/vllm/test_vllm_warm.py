"""What a server compiles at its start, made on a CPU, where nothing has to be compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_engines import HAS_VLLM

from samebits.engines.ahead import compile_ahead
from samebits.engines.schedule import BUCKETS
from samebits.integrations.vllm import warm, workers

LIMITS = warm.Limits(tokens=600, requests=9, keys=2048)
CPU = torch.device("cpu")


class Recorder:
    """Stands for vLLM's method of a layer; knows the rows of every product."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert x.is_contiguous()
        self.rows.append(len(x))
        return torch.nn.functional.linear(x, layer.samebits_weight, bias)


class Linear(torch.nn.Module):
    """A layer as `layers._weights_ready` leaves it."""

    def __init__(self, method: Recorder, n: int, k: int, **fields: Any) -> None:
        super().__init__()
        self.samebits_weight, self.samebits_tree, self.bias = torch.ones(n, k), "", None
        self.quant_method = method
        for name, value in fields.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.quant_method.rows.append(len(x))
        return x


def test_every_bucket_of_rows_is_there_with_and_without_a_multiple_of_16() -> None:
    found = warm.rows(600)
    assert [n for n in found if n in BUCKETS] == [n for n in BUCKETS if n <= 600]
    assert {511, 512, 600} <= set(found) and max(found) == 600
    assert warm.rows(1) == [1]


def test_each_kind_of_product_is_made_once_with_every_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[tuple[int, int]] = []  # rows and leaves of a rank's part
    monkeypatch.setattr(warm, "subtree", lambda x, _, leaves: parts.append((len(x), leaves)))
    column, row, parallel, head = (Recorder() for _ in range(4))
    model = torch.nn.ModuleList((
        Linear(column, 4, 8), Linear(column, 4, 8),  # the same kind
        Linear(row, 4, 8, reduce_results=True, tp_size=1),
        Linear(parallel, 4, 1024, reduce_results=True, tp_size=2),
        Linear(head, 16, 8, num_embeddings=16), torch.nn.Linear(3, 3),
    ))  # fmt: skip
    assert compile_ahead(warm.products(model, LIMITS), 1) == []
    assert column.rows == row.rows == warm.rows(600)
    assert parallel.rows == []  # ranks would wait for each other
    assert parts == [(count, 4) for count in warm.rows(600)]
    assert head.rows == warm.rows(600)  # vLLM takes 1,024 rows of a prompt at a time


def test_mixtures_of_one_rank_are_made() -> None:
    layer = torch.nn.Module()
    layer.w13_weight, layer.w2_weight = torch.ones(4, 32, 16), torch.ones(4, 16, 16)
    layer.expert_map, layer.top_k, layer.activation = None, 2, SimpleNamespace(value="silu")
    few = warm.Limits(tokens=32, requests=4, keys=64)
    calls = list(warm.experts(torch.nn.ModuleList((layer, layer)), few))
    assert len(calls) == len(warm.rows(32))
    assert compile_ahead(calls, 1) == []
    layer.expert_map = torch.zeros(8)
    assert list(warm.experts(layer, few)) == []


def test_routers_are_called_with_every_number_of_rows() -> None:
    class Router:
        top_k, renormalize, scoring_func = 2, True, "softmax"

    layer = torch.nn.Module()
    layer.router = Router()
    layer.routed_experts = SimpleNamespace(
        w13_weight=torch.ones(4, 32, 16), global_num_experts=4,
        moe_config=SimpleNamespace(router_logits_dtype=None),
    )  # fmt: skip
    calls = list(warm.experts(layer, warm.Limits(tokens=32, requests=4, keys=64)))
    assert len(calls) == len(warm.rows(32))
    assert compile_ahead(calls, 1) == []


def test_norms_gates_and_rotary_embedding_are_called_as_their_layers_call_them() -> None:
    made: list[tuple[str, tuple[int, ...]]] = []

    class RMSNorm(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = torch.ones(width)

        def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> None:
            made.append(("norm" if residual is None else "both", x.shape))

    block = torch.nn.Module()
    block.norm, block.head_norm = RMSNorm(8), RMSNorm(2)  # norms of heads run with the embedding
    block.gate_up_proj = Linear(Recorder(), 12, 8)
    block.act_fn = torch.nn.Identity()
    block.act_fn.register_forward_hook(lambda _, x, y: made.append(("gate", x[0].shape)))
    block.qkv_proj, block.q_size, block.kv_size = Linear(Recorder(), 8, 8), 4, 2
    block.rotary_emb = lambda positions, q, k: made.append(("turned", (*q.shape, k.shape[1])))
    block.q_norm = block.k_norm = block.head_dim = None
    few = warm.Limits(tokens=3, requests=1, keys=64)
    assert (
        compile_ahead(warm.elements(torch.nn.ModuleList((block, block)), few, torch.empty(0, 8)), 1)
        == []
    )
    counts = warm.rows(3)
    assert sorted(made) == sorted(
        call for n in counts
        for call in (("norm", (n, 8)), ("both", (n, 8)), ("gate", (n, 12)), ("turned", (n, 4, 2)))
    )  # fmt: skip


def test_draws_with_all_filters_are_made() -> None:
    calls = list(warm.draws(torch.empty(0, 50), LIMITS))
    assert len(calls) == len(warm.rows(9)) * (8 + 1)
    assert compile_ahead(calls, 1) == []


def test_drafts_are_drawn_too() -> None:
    assert warm.Limits(tokens=8, requests=2, keys=64).rows == 2
    assert warm.Limits(tokens=8, requests=2, keys=64, drawn=6).rows == 6


def test_steps_stay_within_the_limits() -> None:
    found = set(warm.steps(LIMITS))
    assert all(len(step) <= 9 and sum(new for new, _ in step) <= 600 for step in found)
    assert all(1 <= new <= keys <= 2048 for step in found for new, keys in step)
    assert {((1, 2048),) * 8, ((500, 500),), ((1, 300),) * 5 + ((200, 200),)} <= found


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_worker_compiles_once_before_its_first_dry_run(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(warm, "warm_up", lambda worker: seen.append(worker.page))

    class Worker:
        page = 16

        def determine_available_memory(self, *, room: int) -> int:
            seen.append("dry run")
            return room

    worker: Any = Worker()
    workers._warm_up_once(worker)
    worker.page, worker.device = 64, device  # vLLM decides how long a page is behind the load
    assert [worker.determine_available_memory(room=n) for n in (7, 8)] == [7, 8]
    assert seen == [64][: device == "cuda"] + ["dry run"] * 2


def test_requests_need_no_kernel_that_was_not_warmed_up() -> None:
    pytest.importorskip("triton")
    program = Path(__file__).with_name("warm_kernels.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
@pytest.mark.parametrize("window", [None, 40])
def test_steps_of_all_kinds_are_made(window: int | None) -> None:
    from samebits.integrations.vllm import model
    from samebits.integrations.vllm.attention_gpu import GpuImpl
    from samebits.integrations.vllm.backend import SamebitsBackend

    class Layer(torch.nn.Module):
        dtype = torch.float32

        def __init__(self) -> None:
            super().__init__()
            self.impl = GpuImpl(2, 16, 0.25, num_kv_heads=1, sliding_window=window)
            self.attn_backend = SamebitsBackend

    assert model.reasons(Layer()) == []
    calls = list(warm.attention(torch.nn.ModuleList((Layer(), Layer())), LIMITS, CPU))
    stored = len(warm.rows(LIMITS.tokens))
    assert len(calls) == len(list(warm.steps(LIMITS, 2))) + stored  # a kind of attention once
    few = [*calls[::40], *calls[-stored:]]
    assert compile_ahead(few, 1) == []
