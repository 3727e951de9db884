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
        lambda x: torch.round(x, decimals=2),
        lambda x: F.threshold(x, 0.1, 0.3),
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


NUMBERS = (3, True, 0.1, -7.0, torch.tensor(0.3), torch.tensor(3))


@pytest.fixture
def gpus_quotient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a GPU gets for div, on a CPU: the dispatcher hands Python numbers to it as such."""
    original = portable_mode.Stock("div.Tensor", "CPU")

    def stock(self: torch.Tensor, other: object) -> torch.Tensor:
        assert isinstance(other, torch.Tensor)
        y: torch.Tensor = original(self, other)
        return y

    # A tensor of no axis stands for the host's; beside it everything is on the GPU.
    monkeypatch.setattr(portable_mode, "_on_host", lambda x, partner: x.dim() == 0 < partner.dim())
    library = torch.library.Library("aten", "IMPL")
    quotient = portable_mode._quotient(stock)
    library.impl("div.Tensor", quotient, "CPU", allow_override=True)
    library.impl("div_.Tensor", portable_mode.inplace_form("div_.Tensor", quotient), "CPU")
    yield
    library._destroy()


@pytest.mark.filterwarnings("ignore:.*verriding.*:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
def test_a_gpu_divides_by_numbers_of_any_kind(
    dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    x = torch.arange(-40, 41).to(dtype) * (1 if dtype is torch.int64 else 0.7)
    y = x if dtype is torch.int64 else x[41:]
    want = [x / other for other in NUMBERS] + [other / y for other in NUMBERS]
    request.getfixturevalue("gpus_quotient")
    got = [x / other for other in NUMBERS] + [other / y for other in NUMBERS]
    for a, b in zip(got, want, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
    if dtype.is_floating_point:
        for other, b in zip(NUMBERS, want, strict=False):
            assert equal(x.clone().div_(other), b)


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_meet_short_tensors_as_on_a_cpu(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernels of a GPU take a number of the host in fp32, wherever it stands."""
    op = getattr(torch, name)
    monkeypatch.setattr(portable_mode, "_on_host", lambda x, partner: x.dim() == 0 < partner.dim())

    def gpus(a: object, b: object) -> torch.Tensor:
        y: torch.Tensor = op(*(torch.as_tensor(v).float() for v in (a, b)))
        return y.to(dtype)

    ours = portable_mode._as_on_a_cpu(gpus, name == "mul", written=False)
    x = torch.randn(5000).to(dtype)
    for number in (0.3, -7, torch.tensor(0.3), torch.tensor(0.3).double()):
        assert equal(ours(x, number), op(x, number))
        first = number if isinstance(number, torch.Tensor) else torch.tensor(number)
        assert equal(ours(first, x), op(first, x))
    assert equal(ours(x, x.flip(0)), op(x, x.flip(0)))


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_torchs_kernels_take_numbers_as_tensors(name: str, dtype: torch.dtype) -> None:
    """A kernel that is called past the dispatcher takes no Python number."""
    op = getattr(torch, name)
    stock = portable_mode.Stock(f"{name}.Tensor", "CPU")
    into = portable_mode.Stock(f"{name}_.Tensor", "CPU")
    ours = portable_mode._as_on_a_cpu(stock, name == "mul", written=False)
    in_place = portable_mode._as_on_a_cpu(into, name == "mul", written=True)
    for x in (torch.arange(9).to(dtype), torch.tensor(5).to(dtype)):
        for number in (3, 0.3, -7.0, torch.tensor(3)):
            want, got = op(x, number), ours(x, number)
            assert got.dtype is want.dtype and torch.equal(got, want)
            if want.dtype is dtype:
                y = x.clone()
                assert in_place(y, number) is y and torch.equal(y, want)
        assert torch.equal(ours(3, x), op(torch.tensor(3), x))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_elementwise_on_a_gpu_has_the_bits_of_a_cpu(portable: None) -> None:
    x = torch.randn(5000)
    for call in (
        *((lambda x, d=d: x / d) for d in NUMBERS),
        *((lambda x, d=d: d / x.bfloat16()) for d in NUMBERS[-2:]),
        *((lambda x, d=d: torch.div(x.double(), d, out=x.double()).float()) for d in NUMBERS),
        lambda x: (100 * x).long() / 7,
        *((lambda x, d=d: x.bfloat16() * d + d) for d in NUMBERS),
        *((lambda x, d=d: d - d * x.half()) for d in NUMBERS[2:]),
        *((lambda x, d=d: x.half().mul_(d).add_(d)) for d in NUMBERS),
        lambda x: x.clone().div_(7),
        lambda x: x.bfloat16() / 3,
        lambda x: x.pow(2).mean(-1),
        lambda x: torch.rsqrt(x.abs() + 1e-6),
        lambda x: torch.exp_(x.clone()),
        lambda x: torch.tanh(x) * torch.sin(100 * x),
    ):
        assert equal(call(x.cuda()).cpu(), call(x))
