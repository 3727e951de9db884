"""The switch with the exact contracts: what is exact, what stays portable, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits.bits import equal
from samebits.engines import family
from samebits.errors import UncoveredError
from samebits.models import tiny
from samebits.ops import exact as exactly

PROMPT = b"ROMEO:\nBut soft, what light"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
#: What torch is asked for, and the operation that answers; x [6, 64], w [9, 64], b [9].
ANSWERS: dict[str, tuple[Call, Call]] = {
    "linear": (F.linear, exactly.linear),
    "mm": (lambda x, w, b: x @ w.T, lambda x, w, b: exactly.matmul(x, w.T)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w.T), exactly.linear),
    "bmm": (
        lambda x, w, b: torch.bmm(x[None], w.T[None]),
        lambda x, w, b: exactly.matmul(x[None], w.T[None]),
    ),
    "baddbmm": (
        lambda x, w, b: torch.baddbmm(b, x[None], w.T[None]),
        lambda x, w, b: exactly.linear(x, w, b)[None],
    ),
    "mv": (lambda x, w, b: x @ w[0], lambda x, w, b: exactly.matmul(x, w[0])),
    "dot": (lambda x, w, b: x[0] @ w[0], lambda x, w, b: exactly.dot(x[0], w[0])),
    "einsum": (
        lambda x, w, b: torch.einsum("ik,jk->ij", x, w),
        lambda x, w, b: exactly.matmul(x, w.T),
    ),
    "vdot": (lambda x, w, b: torch.vdot(x[0], w[0]), lambda x, w, b: exactly.dot(x[0], w[0])),
    "addmv": (
        lambda x, w, b: torch.addmv(b[:6], x, w[0]),
        lambda x, w, b: exactly.linear(x, w[:1], b[:6, None])[:, 0],
    ),
    "addbmm": (
        lambda x, w, b: torch.addbmm(
            b, x.view(6, 2, 32).transpose(0, 1), w.view(9, 2, 32).permute(1, 2, 0)
        ),
        exactly.linear,
    ),
    "_addmm_activation": (
        lambda x, w, b: torch._addmm_activation(b, x, w.T),
        lambda x, w, b: exactly.linear(x, w, b).relu(),
    ),
    "linear of one row": (
        lambda x, w, b: F.linear(x, w[0]),
        lambda x, w, b: exactly.linear(x, w[:1])[:, 0],
    ),
    "nansum": (
        lambda x, w, b: x.where(x < 2, torch.nan).nansum(-1),
        lambda x, w, b: exactly.sum(x.where(x < 2, 0), -1),
    ),
    "trace": (lambda x, w, b: w.trace(), lambda x, w, b: exactly.sum(w.diagonal())),
    "aten::norm": (
        lambda x, w, b: torch.ops.aten.norm.ScalarOpt_dim(x, None, [1]),
        lambda x, w, b: exactly.vector_norm(x, 1),
    ),
    "sum": (lambda x, w, b: x.sum(), lambda x, w, b: exactly.sum(x)),
    "sum.dim": (lambda x, w, b: x.sum(0, True), lambda x, w, b: exactly.sum(x, 0, True)),
    "mean": (lambda x, w, b: x.mean(-1), lambda x, w, b: exactly.mean(x, -1)),
    "norm": (lambda x, w, b: x.norm(dim=-1), lambda x, w, b: exactly.vector_norm(x, -1)),
    "softmax": (lambda x, w, b: x.softmax(0), lambda x, w, b: exactly.softmax(x, 0)),
    "log_softmax": (lambda x, w, b: x.log_softmax(-1), lambda x, w, b: exactly.log_softmax(x)),
    "logsumexp": (lambda x, w, b: x.logsumexp(-1), lambda x, w, b: exactly.logsumexp(x, -1)),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (64,), w[0], w[1]),
        lambda x, w, b: exactly.layer_norm(x, w[0], w[1]),
    ),
    "rms_norm": (
        lambda x, w, b: F.rms_norm(x, (64,), w[0], 1e-6),
        lambda x, w, b: exactly.rms_norm(x, w[0]),
    ),
    "attention": (
        lambda x, w, b: F.scaled_dot_product_attention(x[None], w[None], w[None], is_causal=True),
        lambda x, w, b: exactly.attention(x[None], w[None], w[None], causal=True, q_start=0),
    ),
}


@pytest.fixture
def exact() -> Iterator[None]:
    with sb.deterministic(contract="exact"):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ANSWERS)
def test_operations(name: str, dtype: torch.dtype, exact: None) -> None:
    x, w, b = (torch.randn(s).to(dtype) for s in ((6, 64), (9, 64), (9,)))
    x[:, 7], x[:, 40], w[:, 7], w[:, 40] = 2**10, -(2**10), 2**5, 2**5  # what cancels, order shows
    asked, answer = ANSWERS[name]
    assert equal(asked(x, w, b), answer(x, w, b))


@pytest.mark.parametrize("name", ["linear", "sum.dim", "softmax", "layer_norm", "rms_norm",
                                  "attention", "nansum"])  # fmt: skip
def test_compiled_code_is_exact(name: str, exact: None) -> None:
    x, w, b = torch.randn(6, 64), torch.randn(9, 64), torch.randn(9)
    asked, answer = ANSWERS[name]
    torch._dynamo.reset()
    with torch.no_grad():
        assert equal(torch.compile(asked, backend="aot_eager")(x, w, b), answer(x, w, b))


def test_what_was_compiled_under_other_contracts_is_not_called() -> None:
    x, w = torch.randn(16, 2000), torch.randn(16, 2000)
    compiled = torch.compile(lambda x, w: F.linear(x, w), backend="aot_eager")
    with torch.no_grad():
        with sb.deterministic(contract="portable"):
            portable = F.linear(x, w)
            assert equal(compiled(x, w), portable)
        with sb.deterministic(contract="exact"):
            assert equal(compiled(x, w), exactly.linear(x, w))
    assert not equal(portable, exactly.linear(x, w))


def test_the_order_of_terms_does_not_show() -> None:
    x, w = torch.randn(16, 2000), torch.randn(16, 2000)
    p = torch.randperm(2000)

    def turned() -> bool:
        return equal(F.linear(x, w), F.linear(x[:, p], w[:, p]))

    with sb.deterministic(contract="portable"):
        assert not turned()
    with sb.deterministic(contract="exact"):
        assert family.in_force() == "exact" and family.portable()
        assert turned()
    assert family.in_force() == "device"


def test_other_forms_of_the_same_operation(exact: None) -> None:
    x, w = torch.randn(5, 300), torch.randn(7, 300)
    want = exactly.matmul(x, w.T)
    out = torch.empty(0)
    assert equal(torch.mm(x, w.T, out=out), want)
    total = torch.zeros(5, 7)
    assert equal(total.addmm_(x, w.T), want)
    assert equal(torch.sum(x, 1, out=torch.empty(5)), exactly.sum(x, 1))
    assert equal(torch.logsumexp(x, 1, out=torch.empty(5)), exactly.logsumexp(x, 1))
    assert equal(torch.zeros(5).addmv_(x, w[0]), want[:, 0])
    assert equal(torch.vmap(lambda row: row.nansum())(x), exactly.sum(x, 1))
    whole = torch.arange(10)
    assert whole.sum().item() == 45


def test_gradients_of_products_are_exact_products(exact: None) -> None:
    x, w = torch.randn(5, 300, requires_grad=True), torch.randn(7, 300, requires_grad=True)
    g = torch.randn(5, 7)
    F.linear(x, w).backward(g)
    with torch.no_grad():
        assert x.grad is not None and equal(x.grad, exactly.matmul(g, w))
        assert w.grad is not None and equal(w.grad, exactly.matmul(g.T, x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.addmm(x, x, x, alpha=2.0),
        lambda x: torch.addmm(x, x, x, beta=0.5),
        lambda x: x.norm(3),
        lambda x: x.logsumexp((0, 1)),
        lambda x: F.layer_norm(x, (4, 4)),
        lambda x: F.layer_norm(x.requires_grad_(), (4,)),
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
        lambda x: torch.addcmul(x, x, x),
        lambda x: torch.addmv(x[0], x, x[0], alpha=2.0),
        lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5),
        lambda x: torch.vmap(lambda row: F.layer_norm(row, (4,)))(x),
        lambda x: torch.vmap(lambda q: F.scaled_dot_product_attention(q, q, q))(x[None, None]),
        lambda x: F.scaled_dot_product_attention(
            x[None], x[None], x[None], attn_mask=torch.zeros(4, 4, requires_grad=True)
        ),
    ],
)
def test_what_has_no_exact_contract_is_refused(call: Call, exact: None) -> None:
    with pytest.raises(UncoveredError):
        call(torch.randn(4, 4))  # type: ignore[call-arg]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_alone_among_others_and_step_by_step(dtype: torch.dtype, exact: None) -> None:
    model = tiny.load(dtype=dtype)
    with torch.no_grad():
        alone = model(torch.tensor([list(PROMPT)]))
        ids, real = tiny.encode([PROMPT, PROMPT * 3])
        among = model(ids, attention_mask=real)[0, -len(PROMPT) :]
        assert equal(among, alone[0])
        cache = tiny.KVCache(model.config, 1, len(PROMPT), dtype)
        steps = [model(torch.tensor([[byte]]), cache)[0, 0] for byte in PROMPT]
    assert equal(torch.stack(steps), alone[0])
