"""Bad input: a clear error or the documented result; never a crash, never silently other bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import samebits as sb
from samebits import bits, ops
from samebits.errors import DTypeError, SamebitsError, ShapeError, UncoveredError


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    sb.disable()
    yield
    sb.disable()


def matrix(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X, W, B = matrix(5, 8), matrix(6, 8), matrix(6)
IDS = torch.tensor([0, 1, 1])

#: Functions of one tensor [5, 8] that every operation below stands for.
ROWS: dict[str, tuple[Callable[[torch.Tensor], object], Callable[[torch.Tensor], object]]] = {
    "linear": (lambda x: ops.linear(x, W), lambda x: F.linear(x, W)),
    "matmul": (lambda x: ops.matmul(x, W.t()), lambda x: x @ W.t()),
    "sum": (lambda x: ops.sum(x, 1), lambda x: x.sum(1)),
    "mean": (lambda x: ops.mean(x, 1), lambda x: x.mean(1)),
    "var": (lambda x: ops.var(x, 1), lambda x: x.var(1)),
    "cumsum": (lambda x: ops.cumsum(x, 1), lambda x: x.cumsum(1)),
    "softmax": (lambda x: ops.softmax(x, 1), lambda x: x.softmax(1)),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), lambda x: x.log_softmax(1)),
    "layer_norm": (lambda x: ops.layer_norm(x, (8,)), lambda x: F.layer_norm(x, (8,))),
    "rms_norm": (lambda x: ops.rms_norm(x, (8,)), lambda x: F.rms_norm(x, (8,))),
}

STRANGE: dict[str, Callable[[], torch.Tensor]] = {
    "float64": lambda: X.double(),
    "complex": lambda: torch.complex(X, X),
    "float8": lambda: X.to(torch.float8_e4m3fn),
    "sparse": lambda: X.to_sparse(),
    "sparse csr": lambda: X.to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "meta": lambda: X.to("meta"),
    "integers": lambda: X.to(torch.int32),
    "mkldnn": lambda: X.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ROWS)
def test_functions_name_what_they_do_not_take(name: str, kind: str) -> None:
    """Every function of samebits.ops raises its own error for a tensor that it cannot read."""
    with pytest.raises(SamebitsError, match=r"float|dense|dtype|CPU") as caught:
        ROWS[name][0](STRANGE[kind]())
    assert isinstance(caught.value, (DTypeError, ShapeError))
    assert name in str(caught.value) or "mm" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("name", ROWS)
def test_strange_tensors_under_the_switch(name: str, kind: str) -> None:
    """An error, the exact result for integers, or a shape for meta tensors: never other bits."""
    call, x = ROWS[name][1], STRANGE[kind]()
    if kind == "meta":
        with sb.deterministic():
            shape = (
                F.linear(x, W.to("meta")).shape if name in ("linear", "matmul") else call(x).shape
            )  # type: ignore[attr-defined]
        assert len(shape) >= 1
        return
    try:
        expected = call(x)
    except Exception:
        expected = None
    try:
        with sb.deterministic():
            got = call(x)
    except (SamebitsError, RuntimeError, TypeError, IndexError, NotImplementedError) as error:
        assert str(error)
        return
    assert kind == "integers", "a result where no contract is"
    assert isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)
    assert bits.equal(got, expected)


SHAPES: dict[str, Callable[[], object]] = {
    "linear: K": lambda: F.linear(X, matrix(6, 7)),
    "linear: 1-D weight of wrong size": lambda: F.linear(X, matrix(7)),
    "linear: bias": lambda: F.linear(X, W, matrix(5)),
    "linear: 3-D weight": lambda: F.linear(X, matrix(2, 6, 8)),
    "mm: K": lambda: X.mm(W),
    "mm: 3-D": lambda: torch.mm(matrix(2, 5, 8), W.t()),
    "matmul: 0-D": lambda: torch.matmul(torch.tensor(1.0), W),
    "matmul: batches": lambda: matrix(2, 3, 4) @ matrix(3, 4, 5),
    "bmm: batches": lambda: torch.bmm(matrix(2, 3, 4), matrix(3, 4, 5)),
    "baddbmm: input": lambda: torch.baddbmm(matrix(9, 9), matrix(2, 3, 4), matrix(2, 4, 5)),
    "addmm: input": lambda: torch.addmm(matrix(4), X, W.t()),
    "addmv: vector": lambda: torch.addmv(B, W, matrix(7)),
    "dot": lambda: torch.dot(B, matrix(5)),
    "mv: 0-D": lambda: torch.mv(W, torch.tensor(1.0)),
    "out: dtype": lambda: torch.mm(X, W.t(), out=torch.empty(5, 6, dtype=torch.int64)),
    "sum: dim": lambda: X.sum(7),
    "sum: dim twice": lambda: X.sum((0, 0)),
    "softmax: dim": lambda: X.softmax(2),
    "cumsum: dim": lambda: X.cumsum(-3),
    "layer_norm: shape": lambda: F.layer_norm(X, (7,)),
    "layer_norm: weight": lambda: F.layer_norm(X, (8,), matrix(7)),
    "layer_norm: empty shape": lambda: F.layer_norm(X, ()),
    "rms_norm: shape": lambda: F.rms_norm(X, (5, 7)),
    "group_norm: groups": lambda: F.group_norm(matrix(2, 6, 4), 4),
    "topk: k": lambda: X.topk(9),
    "topk: negative k": lambda: X.topk(-1),
    "kthvalue: 0": lambda: X.kthvalue(0),
    "index_add: index": lambda: X.index_add(0, torch.tensor([0, 9]), matrix(2, 8)),
    "index_add: negative": lambda: X.index_add(0, torch.tensor([-1]), matrix(1, 8)),
    "index_add: source": lambda: X.index_add(0, IDS, matrix(2, 8)),
    "scatter_add: index": lambda: X.scatter_add(0, torch.full((5, 8), 5), X),
    "scatter_add: shape": lambda: X.scatter_add(0, torch.zeros(5, 9, dtype=torch.int64), X),
    "index_put: index": lambda: X.clone().index_put_((torch.tensor([77]),), B[:1], accumulate=True),
    "bincount: negative": lambda: torch.bincount(torch.tensor([-1, 2]), B[:2]),
    "bincount: weights": lambda: torch.bincount(IDS, B),
    "embedding_bag: index": lambda: F.embedding_bag(torch.tensor([[9]]), W),
    "embedding: index": lambda: F.embedding(torch.tensor([-1]), W),
    "conv2d: channels": lambda: F.conv2d(matrix(1, 3, 8, 8), matrix(4, 2, 3, 3)),
    "conv2d: kernel": lambda: F.conv2d(matrix(1, 3, 2, 2), matrix(4, 3, 3, 3)),
    "conv1d: negative stride": lambda: F.conv1d(matrix(1, 3, 9), matrix(4, 3, 3), stride=-1),
    "conv2d: groups": lambda: F.conv2d(matrix(1, 3, 8, 8), matrix(4, 3, 3, 3), groups=2),
    "attention: head size": lambda: attention(matrix(1, 2, 3, 8), matrix(1, 2, 3, 7)),
    "attention: heads": lambda: attention(matrix(1, 3, 3, 8), matrix(1, 2, 3, 8)),
    "attention: mask": lambda: attention(
        matrix(1, 2, 3, 8), matrix(1, 2, 4, 8), attn_mask=torch.ones(3, 5, dtype=torch.bool)
    ),
    "attention: integer mask": lambda: attention(
        matrix(1, 2, 3, 8), matrix(1, 2, 4, 8), attn_mask=torch.ones(3, 4, dtype=torch.int64)
    ),
    "einsum: sizes": lambda: torch.einsum("ij,jk->ik", X, W),
    "negative size": lambda: torch.empty(-1, 8).sum(),
    "mixed dtypes: linear": lambda: F.linear(X, W.half()),
    "mixed dtypes: mm": lambda: X.mm(W.t().bfloat16()),
    "mixed dtypes: bias": lambda: F.linear(X, W, B.half()),
    "mixed dtypes: attention": lambda: attention(matrix(1, 2, 3, 8), matrix(1, 2, 3, 8).half()),
    "mixed dtypes: integers": lambda: X.mm(torch.ones(8, 3, dtype=torch.int64)),
    "mixed devices: bias": lambda: F.linear(X, W, B.to("meta")),
    "mixed devices: addmm": lambda: torch.addmm(B.to("meta"), X, W.t()),
    "mixed devices: norm": lambda: F.layer_norm(X, (8,), matrix(8).to("meta")),
}


def attention(q: torch.Tensor, k: torch.Tensor, **options: object) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, k.clone(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SHAPES)
def test_operands_that_do_not_fit_raise(name: str) -> None:
    """What stock PyTorch refuses is refused under the switch too, with a message."""
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)):
        SHAPES[name]()
    with sb.deterministic(), pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as e:
        SHAPES[name]()
    assert not isinstance(e.value, AssertionError) and len(str(e.value)) > 8


EMPTY: dict[str, Callable[[], torch.Tensor]] = {
    "M = 0": lambda: F.linear(matrix(0, 8), W, B),
    "N = 0": lambda: F.linear(X, matrix(0, 8)),
    "K = 0": lambda: F.linear(matrix(5, 0), matrix(6, 0)),
    "K = 0 and bias": lambda: F.linear(matrix(5, 0), matrix(6, 0), B),
    "all 0": lambda: F.linear(matrix(0, 0), matrix(0, 0)),
    "mm, K = 0": lambda: matrix(5, 0).mm(matrix(0, 6)),
    "bmm, no matrices": lambda: matrix(0, 5, 8).bmm(matrix(0, 8, 6)),
    "bmm, K = 0": lambda: matrix(2, 5, 0).bmm(matrix(2, 0, 6)),
    "addmm, K = 0": lambda: torch.addmm(B, matrix(5, 0), matrix(0, 6), beta=2),
    "dot of nothing": lambda: torch.dot(matrix(0), matrix(0)),
    "mv, K = 0": lambda: matrix(5, 0).mv(matrix(0)),
    "sum of nothing": lambda: matrix(0).sum(),
    "sum of empty rows": lambda: matrix(5, 0).sum(1),
    "sum of no rows": lambda: matrix(0, 5).sum(1),
    "mean of nothing": lambda: matrix(3, 0).mean(1),
    "prod of nothing": lambda: matrix(0).prod(),
    "norm of nothing": lambda: matrix(3, 0).norm(dim=1),
    "softmax of no rows": lambda: matrix(0, 8).softmax(1),
    "softmax of empty rows": lambda: matrix(5, 0).softmax(1),
    "cumsum of nothing": lambda: matrix(5, 0).cumsum(1),
    "layer_norm of no rows": lambda: F.layer_norm(matrix(0, 8), (8,)),
    "rms_norm of no rows": lambda: F.rms_norm(matrix(0, 8), (8,)),
    "topk of 0": lambda: X.topk(0).values,
    "sort of nothing": lambda: matrix(0).sort().values,
    "index_add of nothing": lambda: X.index_add(0, IDS[:0], matrix(0, 8)),
    "scatter_add of nothing": lambda: X.scatter_add(0, torch.zeros(0, 8, dtype=torch.int64), X),
    "bincount of nothing": lambda: torch.bincount(IDS[:0], B[:0], minlength=3),
    "attention, no batch": lambda: attention(matrix(0, 2, 3, 8), matrix(0, 2, 4, 8)),
    "attention, no queries": lambda: attention(matrix(1, 2, 0, 8), matrix(1, 2, 4, 8)),
    "conv2d, no images": lambda: F.conv2d(matrix(0, 3, 8, 8), matrix(4, 3, 3, 3)),
    "gelu of nothing": lambda: F.gelu(matrix(0, 4)),
    "scalar softmax": lambda: torch.tensor(2.0).softmax(0),
    "scalar sum": lambda: torch.tensor(2.0).sum(),
    "scalar cumsum": lambda: torch.tensor(2.0).cumsum(0),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_operands_give_what_torch_gives(name: str) -> None:
    want = EMPTY[name]()
    with sb.deterministic():
        got = EMPTY[name]()
    assert got.shape == want.shape and got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_attention_over_no_keys_is_zero() -> None:
    """A row without visible keys gives zero: also where there are no keys at all."""
    with sb.deterministic():
        out = attention(matrix(1, 2, 3, 8), matrix(1, 2, 0, 8))
    assert bits.equal(out, torch.zeros(1, 2, 3, 8))


def test_nan_in_a_mask_reaches_its_own_rows_only() -> None:
    q, k = matrix(1, 2, 4, 8), matrix(1, 2, 6, 8)
    mask = torch.zeros(4, 6)
    with sb.deterministic():
        want = attention(q, k, attn_mask=mask)
        mask[2, 3] = float("nan")
        got = attention(q, k, attn_mask=mask)
    others = torch.tensor([0, 1, 3])
    assert bits.equal(got[:, :, others], want[:, :, others])
    assert bool(got[:, :, 2].isnan().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_and_infinity_stay_in_their_row(dtype: torch.dtype) -> None:
    x, w = matrix(7, 40).to(dtype), matrix(9, 40).to(dtype)
    dirty = x.clone()
    dirty[3, 5], dirty[5, 7] = float("nan"), float("inf")
    others = torch.tensor([0, 1, 2, 4, 6])
    with sb.deterministic():
        for f in (
            lambda t: F.linear(t, w),
            lambda t: t.softmax(-1),
            lambda t: t.log_softmax(-1),
            lambda t: F.layer_norm(t, (40,)),
            lambda t: F.rms_norm(t, (40,)),
            lambda t: t.sum(-1),
            lambda t: t.logsumexp(-1),
        ):
            clean, marked = f(x), f(dirty)
            assert bits.equal(clean[others], marked[others])
            assert bool(marked[3].isnan().all())


def child(code: str, timeout: int = 120) -> str:
    """Runs code in a process of its own, so that a crash is a failure and not the end."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


HUGE = """
import torch, samebits as sb
import torch.nn.functional as F
n = 2**31 + 17
one = torch.ones(1).expand(n)
with sb.deterministic():
    assert one.sum().item() == torch.tensor(float(n)).item()  # sums of ones: exact until rounded
    assert one.mean().item() == 1.0
    rows = torch.ones(1, 1).expand(2**16 + 1, 2**15).sum(1)
    assert rows.shape == (2**16 + 1,) and bool((rows == 2**15).all())
    assert F.linear(torch.ones(1, 1).expand(1, n)[:, -9:], torch.ones(2, 9)).tolist() == [[9, 9]]
print("done")
"""


def test_two_to_the_31_elements() -> None:
    """Sizes and offsets beyond 32 bits, in broadcast views that take no memory."""
    assert child(HUGE, timeout=300) == "done\n"


READ_ONLY = """
import mmap, tempfile, warnings
import numpy as np, torch
import torch.nn.functional as F
import samebits as sb
from samebits import bits
warnings.simplefilter("ignore")
w = torch.randn(64, 96); x = torch.randn(5, 96)
with tempfile.TemporaryDirectory() as folder:
    path = folder + "/weights"
    w.numpy().tofile(path)
    file = open(path, "rb")
    area = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    frozen = torch.from_numpy(np.frombuffer(area, dtype=np.float32).reshape(64, 96))
    mapped = torch.from_file(path, shared=False, size=64 * 96).view(64, 96)
    with sb.deterministic():
        for f in (
            lambda w: F.linear(x, w), lambda w: x @ w.t(), lambda w: w.softmax(-1),
            lambda w: w.sum(0), lambda w: F.layer_norm(w, (96,), w[0], w[1]), lambda w: w.cumsum(1),
            lambda w: w.topk(3).values, lambda w: F.gelu(w), lambda w: w.sort().indices,
            lambda w: torch.zeros(3, 96).index_add(0, torch.arange(64) % 3, w),
            lambda w: F.embedding(torch.tensor([3, 1]), w), lambda w: F.rms_norm(w, (96,), w[0]),
            lambda w: F.scaled_dot_product_attention(*(w.view(1, 2, 32, 96) for _ in range(3))),
            lambda w: F.conv1d(w.view(1, 64, 96), w.view(96, 64, 1)),
        ):
            assert bits.equal(f(w), f(frozen)) and bits.equal(f(w), f(mapped))
    print("done")
"""


def test_read_only_memory_is_only_read() -> None:
    """Weights mapped from a file without leave to write: a write would end the process."""
    assert child(READ_ONLY) == "done\n"


FORK = """
import os, torch, samebits as sb
import torch.nn.functional as F
from samebits import bits
def work():
    g = torch.Generator().manual_seed(1)
    x, w = torch.randn(65, 300, generator=g), torch.randn(400, 300, generator=g)
    q = torch.randn(2, 2, 50, 32, generator=g)
    return [F.linear(x, w), x.softmax(-1), F.layer_norm(x, (300,)), x.cumsum(1), x.topk(5).indices,
            F.gelu(x), F.scaled_dot_product_attention(q, q, q, is_causal=True), x.sum(0)]
sb.enable()
want = work()
for attempt in range(3):
    pid = os.fork()
    if pid == 0:
        same = all(bits.equal(a, b) for a, b in zip(work(), want)) and sb.status().on
        os._exit(0 if same else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert all(bits.equal(a, b) for a, b in zip(work(), want))
print("done")
"""


def test_fork_after_enabling() -> None:
    """Children of a process whose thread pool runs compute the same bits, and end."""
    assert child(FORK) == "done\n"


def test_functions_refuse_shapes_with_their_own_errors() -> None:
    for call in (
        lambda: ops.linear(X, matrix(6, 7)),
        lambda: ops.linear(X, W, matrix(5)),
        lambda: ops.linear(torch.tensor(1.0), W),
        lambda: ops.mm(X, W),
        lambda: ops.bmm(matrix(2, 3, 4), matrix(3, 4, 5)),
        lambda: ops.matmul(matrix(2, 3, 4), matrix(3, 4, 5)),
        lambda: ops.dot(B, matrix(5)),
        lambda: ops.mv(W, matrix(7)),
        lambda: ops.sum(X, 7),
        lambda: ops.softmax(X, -3),
        lambda: ops.cumsum(X, 2),
        lambda: ops.layer_norm(X, (7,)),
        lambda: ops.rms_norm(X, (8,), matrix(7)),
        lambda: ops.group_norm(matrix(2, 6, 4), 4),
    ):
        with pytest.raises(ShapeError):
            call()
    for call in (
        lambda: ops.linear(X, W.half()),
        lambda: ops.linear(X, W, B.half()),
        lambda: ops.linear(X, W, out_dtype=torch.float16),
        lambda: ops.mm(X, W.t().to("meta")),
        lambda: ops.matmul(X.bfloat16(), W.t()),
    ):
        with pytest.raises(DTypeError):
            call()


def test_overlapping_outputs_are_refused_or_right() -> None:
    """An output that overlaps an input, or itself, gives torch's error or the right bits."""
    square = matrix(6, 6)
    with sb.deterministic():
        want = square @ square
        inside = square.clone()
        torch.mm(inside, inside, out=inside)
        assert bits.equal(inside, want)
        added = square.clone()
        added.addmm_(added, added)
        assert bits.equal(added, torch.addmm(square, square, square))
        with pytest.raises(RuntimeError):
            torch.mm(square, square, out=torch.zeros(1, 1).expand(6, 6))
        shifted = torch.cat([square, square[:1]])
        summed = shifted.clone()
        torch.cumsum(summed[:6], 0, out=summed[1:])
        assert bits.equal(summed[1:], shifted[:6].cumsum(0))


def test_a_refusal_leaves_nothing_half_done() -> None:
    x = matrix(4, 4)
    out, kept = x.clone(), x.clone()
    with sb.deterministic():
        for call in (
            lambda: torch.mm(x, matrix(5, 4), out=out),
            lambda: out.addmm_(x, matrix(3, 4)),
            lambda: out.index_add_(0, torch.tensor([0, 99]), x[:2]),
            lambda: out.index_put_((torch.tensor([0, 99]),), x[:2], accumulate=True),
        ):
            with pytest.raises((RuntimeError, IndexError, ValueError)):
                call()
            assert bits.equal(out, kept)
        with pytest.raises(UncoveredError):
            torch.cdist(x, x)
        assert bits.equal(x @ x, ops.matmul(x, x))


def test_unaligned_memory() -> None:
    """Tensors at odd byte addresses, as from a file header, are read correctly."""
    raw = bytearray(4 * 96 * 9 + 1)
    want = matrix(9, 96)
    raw[1:] = want.numpy().tobytes()
    odd = torch.frombuffer(raw, dtype=torch.float32, offset=1).view(9, 96)
    with sb.deterministic():
        for f in (lambda t: F.linear(t, t), lambda t: t.softmax(-1), lambda t: t.sum(0)):
            assert bits.equal(f(odd), f(want))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.linear(x, torch.ones(5, 4)),
        lambda x: F.linear(torch.ones(5, 4), x),
        lambda x: F.layer_norm(x, (4,)),
        lambda x: F.rms_norm(x, (4,)),
        lambda x: x.softmax(-1),
        lambda x: x.exp(),
        lambda x: x.sum(-1),
        lambda x: x.cumsum(-1),
    ],
)
def test_elements_without_memory(call):
    freed = torch.randn(3, 4)
    freed.untyped_storage().resize_(0)
    with sb.deterministic(), pytest.raises(ValueError, match="no memory"):
        call(freed)


def test_attention_of_keys_without_memory():
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    k.untyped_storage().resize_(0)
    with sb.deterministic(), pytest.raises(ValueError, match="no memory"):
        F.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("call", [F.layer_norm, F.rms_norm])
def test_the_stand_in_for_zeros(call):
    with sb.deterministic(), pytest.raises(ValueError, match="no memory"):
        call(torch._efficientzerotensor(3, 4), (4,))


def test_attention_without_heads():
    x = torch.ones(1, 0, 3, 4)
    with sb.deterministic():
        assert F.scaled_dot_product_attention(x, x, x).shape == x.shape


def test_misuse_has_an_error_of_its_own_under_the_switch() -> None:
    with sb.deterministic():
        assert torch.ones(3, 0).topk(0).values.shape == (3, 0)
        for call, message in (
            (lambda: F.gelu(torch.ones(3), approximate="foo"), "approximate"),
            (lambda: torch.ones(2, 2, 2).trace(), "matrix"),
            (lambda: torch.ones(2, 2).mv(torch.tensor(1.0)), "(vector|1D|1-D)"),
            (lambda: torch.histogram(torch.ones(3), torch.tensor([2.0, 1.0])), "ascending"),
            (lambda: torch.histogram(torch.ones(3), torch.tensor([])), "at least two"),
        ):
            with pytest.raises(RuntimeError, match=message):
                call()
    with pytest.raises(DTypeError, match="ndarray"):
        ops.linear(torch.ones(2, 2).numpy(), torch.ones(2, 2))
