"""The switch on CUDA tensors: what it covers keeps a row's bits, what it does not is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from test_tested import ELEMENTWISE, values

import samebits as sb
from samebits import bits
from samebits.errors import UncoveredError
from samebits.models import tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

BF16 = torch.bfloat16
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def switch() -> Iterator[None]:
    torch.manual_seed(0)
    with sb.deterministic():
        yield


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


#: Operations on rows of 192: x [M, 192] -> [M, ...].
ROWWISE: dict[str, Function] = {
    "linear": lambda x: F.linear(x, weight(x, 96, 192)),
    "linear with bias": lambda x: F.linear(x, weight(x, 96, 192), weight(x, 96)),
    "mm": lambda x: x @ weight(x, 192, 96),
    "addmm": lambda x: torch.addmm(weight(x, 96), x, weight(x, 192, 96), beta=0.5, alpha=2.0),
    "einsum": lambda x: torch.einsum("mk,nk->mn", x, weight(x, 96, 192)),
    "bmm": lambda x: torch.bmm(x[:, None], x[:, :, None]),
    "baddbmm": lambda x: torch.baddbmm(x[:, :1, None], x[:, None], x[:, :, None]),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rms_norm": lambda x: F.rms_norm(x, (192,), weight(x, 192)),
    "layer_norm": lambda x: F.layer_norm(x, (192,), weight(x, 192), weight(x, 192)),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.pow(2).mean(-1, keepdim=True),
    "var": lambda x: x.float().var(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "amax": lambda x: x.amax(-1),
    "argmax": lambda x: x.round().argmax(-1),
    "topk": lambda x: x.round().topk(5)[1],
    "sort": lambda x: x.round().sort(-1)[1],
    "silu": F.silu,
    "gelu": F.gelu,
    "rotary": lambda x: x * 0.3 + torch.cat((-x[:, 96:], x[:, :96]), -1) * 0.9,
    "attention": lambda x: attend(x),
    "norm by hand": lambda x: norm_by_hand(x),
    "gated layer": lambda x: F.linear(
        F.silu(F.linear(x, weight(x, 96, 192))) * F.linear(x, weight(x, 96, 192) * 0.5),
        weight(x, 192, 96),
    ),
    "cross entropy": lambda x: F.cross_entropy(
        x, torch.zeros(len(x), dtype=torch.long, device=x.device), reduction="none"
    ),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.5),
    "embedding": lambda x: F.embedding(x[:, 0].abs().long(), weight(x, 16, 8)),
    "index put": lambda x: put(x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(
        1, torch.arange(192, device=x.device).expand(x.shape) % 7, x
    ),
}


def weight(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """The same every time, and on the GPU already when a graph is captured."""
    return _weight(shape, x.device, x.dtype)


@cache
def _weight(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=g).to(device, dtype)


def attend(x: torch.Tensor) -> torch.Tensor:
    q = x.view(-1, 3, 1, 64)
    k, v = weight(x, 1, 3, 70, 64), weight(x, 1, 3, 71, 64)[:, :, 1:]
    return F.scaled_dot_product_attention(
        q, k.expand(len(x), -1, -1, -1), v.expand(len(x), -1, -1, -1)
    )


def norm_by_hand(x: torch.Tensor) -> torch.Tensor:
    """As the models of transformers compute it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight(x, 192) * wide.to(x.dtype)


def put(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[torch.arange(len(x), device=x.device)] = x
    return y


@pytest.mark.parametrize("name", ROWWISE)
def test_a_row_keeps_its_bits(name: str) -> None:
    x = random(130, 192)
    f = ROWWISE[name]
    full = f(x)
    for start, stop in ((0, 1), (7, 8), (129, 130), (0, 17), (64, 129)):
        assert bits.equal(f(x[start:stop]), full[start:stop]), (start, stop)
    moved = torch.zeros(131 * 192 + 1, device="cuda", dtype=BF16)[1:].view(131, 192)[:130]
    assert bits.equal(f(moved.copy_(x)), full), "one element off alignment"
    gaps = torch.full((130, 384), float("nan"), device="cuda", dtype=BF16)[:, ::2]
    assert bits.equal(f(gaps.copy_(x)), full), "every second element"


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_element_by_itself(name: str, dtype: torch.dtype) -> None:
    count, f = ELEMENTWISE[name]
    operands = [values(dtype, 4099).cuda() for _ in range(count)]
    try:
        full = f(*operands)
    except (UncoveredError, NotImplementedError) as error:  # refused, or torch has no such kernel
        pytest.skip(str(error)[:80])
    for start, stop in ((1, 4099), (3, 4099), (8, 4099), (17, 18), (100, 613), (4098, 4099)):
        part = f(*(x[start:stop].clone() for x in operands))
        assert bits.equal(part, full[start:stop]), (start, stop)
        assert bits.equal(f(*(x[start:stop] for x in operands)), full[start:stop]), (start, stop)
    strided = [torch.stack([x, x + 1, x], -1)[:, 0] for x in operands]
    assert bits.equal(f(*strided), full)


REFUSED: dict[str, Function] = {
    "cumsum": lambda x: x.double().cumsum(-1),
    "convolution": lambda x: torch.ops.aten.cudnn_convolution(
        x[None], weight(x, 4, 8, 3), [0], [1], [1], 1, False, True, False
    ),
    "flash attention": lambda x: torch.ops.aten._scaled_dot_product_flash_attention(
        *(x.bfloat16().view(1, 1, 8, 16),) * 3
    )[0],
    "svd": lambda x: torch.linalg.svd(x)[1],
    "fft": lambda x: torch.fft.rfft(x),
    "fp32 attention": lambda x: F.scaled_dot_product_attention(*(x.view(1, 1, 8, 16),) * 3),
    "float64 sum": lambda x: x.double().sum(-1),
    "median": lambda x: x.median(-1)[1],
    "max pool backward": lambda x: F.max_pool2d(x[None, None].requires_grad_(), 2).sum().backward(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_contract_is_refused(name: str) -> None:
    x = random(8, 16, dtype=torch.float32)
    with pytest.raises(UncoveredError) as caught:
        REFUSED[name](x)
    assert "test_cuda_mode.py:" in str(caught.value.site)


def test_integers_stay_on_torch() -> None:
    x = torch.arange(12, device="cuda").view(3, 4)
    assert x.cumsum(1)[0].tolist() == [0, 1, 3, 6]
    assert int(x.sum()) == 66 and int((x > 3).sum()) == 8
    assert x.bool().any(1).tolist() == [True] * 3


@pytest.fixture(scope="module")
def model() -> tiny.TinyLM:
    return tiny.load(dtype=BF16, device="cuda")


def ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(256, (batch, tokens), device="cuda")


def test_a_model_in_a_batch(model: tiny.TinyLM) -> None:
    x = ids(5, 70)
    together = model(x)
    for row in range(5):
        assert bits.equal(model(x[row : row + 1]), together[row : row + 1]), row


def test_a_model_decoding(model: tiny.TinyLM) -> None:
    x = ids(2, 70)
    whole = model(x)
    cache = tiny.KVCache(model.config, 2, 70, BF16, "cuda")
    parts = [
        model(x[:, a:b], cache)
        for a, b in ((0, 33), (33, 66), *((i, i + 1) for i in range(66, 70)))
    ]
    assert bits.equal(torch.cat(parts, 1), whole)


def test_a_model_with_padding_on_the_left(model: tiny.TinyLM) -> None:
    x = ids(1, 40)
    alone = model(x)
    for pad in (1, 7, 64):
        padded = torch.cat([ids(1, pad), x], 1)
        mask = torch.arange(pad + 40, device="cuda")[None] >= pad
        assert bits.equal(model(padded, attention_mask=mask)[:, pad:], alone), pad


def test_a_captured_model(model: tiny.TinyLM) -> None:
    x = ids(3, 20)
    with torch.inference_mode():
        eager = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static = model(x)
        for _ in range(3):
            graph.replay()
            assert bits.equal(static, eager)
        x.copy_(ids(3, 20))
        graph.replay()
        assert bits.equal(static, model(x))


@pytest.mark.parametrize("captured", [1, 8, 64, 200])
def test_a_bucket_holds_every_smaller_batch(captured: int) -> None:
    """A graph of M rows, replayed with fewer: each row as in an eager call of its own size."""
    static = random(captured, 192)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode():
        layer(static)
        with torch.cuda.graph(graph):
            result = layer(static)
        for rows in {1, min(2, captured), captured // 2 + 1, captured}:
            x = random(rows, 192)
            static[:rows] = x
            graph.replay()
            assert bits.equal(result[:rows], layer(x)), rows


def layer(x: torch.Tensor) -> torch.Tensor:
    h = F.linear(F.rms_norm(x, (192,), weight(x, 192)), weight(x, 64, 192))
    return F.softmax(F.silu(h), -1)


def test_a_captured_decode_step_at_growing_lengths() -> None:
    batch, heads, kv_heads, most = 3, 4, 2, 1100
    q = random(batch, heads, 1, 64)
    k, v = random(batch, kv_heads, most, 64), random(batch, kv_heads, most, 64)
    keys, values = torch.full_like(k, float("nan")), torch.full_like(v, float("nan"))
    position = torch.zeros(1, dtype=torch.long, device="cuda")

    def step() -> torch.Tensor:
        keys.index_copy_(2, position, k.index_select(2, position))
        values.index_copy_(2, position, v.index_select(2, position))
        return sb.ops.attention(
            q, keys, values, causal=True, q_start=position.expand(batch), enable_gqa=True
        )

    with torch.inference_mode():
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        for length in range(1, most + 1):
            position.fill_(length - 1)
            graph.replay()
            if length in (1, 2, 63, 64, 65, 511, 512, 513, 1024, 1025, most):
                eager = F.scaled_dot_product_attention(
                    q, k[:, :, :length], v[:, :, :length], enable_gqa=True
                )
                assert bits.equal(result, eager), length


def test_a_compiled_model(model: tiny.TinyLM) -> None:
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for batch, tokens in ((2, 20), (1, 33), (5, 7)):
            x = ids(batch, tokens)
            assert bits.equal(compiled(x), model(x))


def test_a_training_step_repeats() -> None:
    x = ids(2, 24)

    def step() -> list[torch.Tensor]:
        model = tiny.load(dtype=BF16, device="cuda").requires_grad_(True)
        logits = model(x)
        F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten()).backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    first, second = step(), step()
    assert len(first) > 40
    assert all(bits.equal(a, b) for a, b in zip(first, second, strict=True))
