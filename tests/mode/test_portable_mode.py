"""The switch with the portable contracts: what they are, what they refuse, and that they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits.bits import equal, view
from samebits.contract import portable_linear
from samebits.engines import family
from samebits.errors import SettingError, UncoveredError
from samebits.mode import portable as portable_mode
from samebits.models import tiny

PROMPT = b"ROMEO:\nBut soft, what light"


@pytest.fixture
def portable() -> Iterator[None]:
    with sb.deterministic(contract="portable"):
        yield


def test_the_family_follows_the_switch() -> None:
    x, w = torch.randn(3, 700), torch.randn(20, 700)
    chain = portable_linear("fp32", "fp32").evaluate(x, w)
    with sb.deterministic():
        own = F.linear(x, w)
        assert not equal(own, chain)  # type: ignore[arg-type]
        with sb.deterministic(contract="portable"):
            assert sb.status().contract == family.in_force() == "portable"
            assert "contract=portable" in str(sb.status())
            assert equal(F.linear(x, w), chain)  # type: ignore[arg-type]
        assert sb.status().contract == "device"
        assert equal(F.linear(x, w), own)
    sb.enable(contract="portable")
    assert equal(F.linear(x, w), chain)  # type: ignore[arg-type]
    sb.disable()
    assert family.in_force() == "device"
    assert torch.linspace(0, 1, 3).tolist() == [0, 0.5, 1]


def test_a_family_that_does_not_exist() -> None:
    with pytest.raises(SettingError, match="device, portable"):
        sb.enable(contract="everywhere")
    assert not sb.status().on and family.in_force() == "device"


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.lerp(x, x, 0.3),
        lambda x: torch.addcmul(x, x, x),
        lambda x: F.avg_pool1d(x[None, None], 2),
        lambda x: F.conv1d(x[None, None], x[None, None, :3]),
        lambda x: torch.linspace(0, 1, 5),
        lambda x: torch.arange(0, 1, 0.1),
        lambda x: F.softplus(x.requires_grad_()).sum().backward(),
    ],
)
def test_what_is_not_portable_is_refused(
    portable: None, call: Callable[[torch.Tensor], object]
) -> None:
    with pytest.raises(UncoveredError, match="a CPU and a GPU would give it different bits"):
        call(torch.randn(16))


def test_what_is_exact_passes(portable: None) -> None:
    x = torch.arange(6.0)
    assert torch.arange(5).tolist() == [0, 1, 2, 3, 4]
    assert (x + x * 2 - x / 3).shape == x.relu().shape
    assert x.cumsum(0)[-1] == 15 and x.topk(2).indices.tolist() == [5, 4]
    pooled = F.max_pool1d(x[None, None], 2)
    assert pooled.tolist() == [[[1, 3, 5]]]


def test_packed_weights_have_a_tree_of_their_own(portable: None) -> None:
    weight = sb.ops.pack_weight(torch.randn(8, 40))
    with pytest.raises(UncoveredError, match=r"lanes\(16\), which is not portable"):
        sb.ops.linear(torch.randn(2, 40), weight)


def test_the_policy_lets_it_run() -> None:
    with sb.deterministic(contract="portable", allow=["aten::lerp"]):
        torch.lerp(torch.ones(3), torch.zeros(3), 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_promises_hold_as_ever(portable: None, dtype: torch.dtype) -> None:
    """One request alone, padded among others, and token by token."""
    model = tiny.load(dtype=dtype)
    alone = model(torch.tensor([list(PROMPT)]))
    ids, real = tiny.encode([PROMPT, PROMPT * 3])
    among = model(ids, attention_mask=real)[0, -len(PROMPT) :]
    assert equal(among, alone[0])
    cache = tiny.KVCache(model.config, 1, len(PROMPT), dtype)
    steps = [model(torch.tensor([[byte]]), cache)[0, 0] for byte in PROMPT]
    assert equal(torch.stack(steps), alone[0])
    assert not view(alone).eq(0).all()


def test_what_a_gpu_gets_besides() -> None:
    """Forms that write into a tensor are covered like the others: torch divides by numbers there
    by their reciprocals."""
    if torch.version.cuda is None:
        pytest.skip("this torch has no kernels for a GPU")
    found = portable_mode._on_gpu()
    assert {"exp", "exp_", "exp.out", "div.Tensor", "div_.Tensor", "div.out"} <= set(found)
    assert {"pow.Tensor_Scalar", "pow_.Scalar", "rsqrt_", "sqrt.out"} <= set(found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_elementwise_on_a_gpu_has_the_bits_of_a_cpu(portable: None) -> None:
    x = torch.randn(5000)
    for call in (
        lambda x: x / 3,
        lambda x: x.clone().div_(7),
        lambda x: x.bfloat16() / 3,
        lambda x: x.pow(2).mean(-1),
        lambda x: torch.rsqrt(x.abs() + 1e-6),
        lambda x: torch.exp_(x.clone()),
        lambda x: torch.tanh(x) * torch.sin(100 * x),
    ):
        assert equal(call(x.cuda()).cpu(), call(x))
