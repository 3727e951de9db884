# Pointers are Tensor.data_ptr(); sizes and strides count elements; dtypes: engines.cpu.DTYPE_CODE.
from collections.abc import Callable
from typing import Any

class Counted:
    """Calls `fn` and counts."""

    __name__: str
    fn: Callable[..., Any]
    hits: int
    def __init__(self, name: str, fn: Callable[..., Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class Guarded:
    """Calls `fn` under the guard's eye; nothing but `fn` runs while nothing is due.

    Args:
        fn: the function.
        keep: makes, of a call's arguments, what the others are given of it.
        settle: ``settle(kept, result, number, wrong)``: that many outputs took a wrong path.
        look: ``look(kept, result, number, 0)``: the call is sampled, or is to be believed.
        follows: launches of `fn` compare their paths.
        out_at: the place of ``out``, which may be an addend of the call; -1: there is none.
    """

    fn: Callable[..., Any]
    def __init__(
        self,
        fn: Callable[..., Any],
        keep: Callable[..., Any],
        settle: Callable[[Any, Any, int, int], None],
        look: Callable[[Any, Any, int, int], None],
        follows: bool,
        out_at: int,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class CacheSums:
    """Sums of contiguous tensors [sequences, heads, length, width] by sequence and position.

    Args:
        tensors: address, bytes of an element (1, 2, 4, 8), and width of each; kept alive by others.
    """

    def __init__(
        self, sequences: int, heads: int, length: int, tensors: list[tuple[int, int, int]]
    ) -> None: ...
    def write(self, rows: int, begin: int, end: int) -> None: ...
    def move(self, source: list[int]) -> None: ...
    def changed(self, rows: int, begin: int, end: int) -> list[int]: ...

def guard_start(seed: int, rate: float) -> None: ...
def guard_due(number: int) -> bool: ...
def guard_counts() -> list[int]: ...
def guard_believes() -> bool: ...
def guard_believe(on: bool) -> bool: ...
def found_wrong(outputs: int) -> None: ...
def found_blind() -> None: ...
def isa() -> str: ...
def isas() -> list[str]: ...
def set_isa(name: str) -> bool: ...
def set_thread_isa(name: str) -> bool: ...
def check_paths(on: bool, product: int, attention: int, leaf: int) -> None: ...
def inject_fault(kind: int) -> None: ...
def path_digest(seed: int, edges: list[int], lanes: int) -> int: ...
def max_threads() -> int: ...
def pool_name() -> str: ...
def set_worker_flush(flush: bool) -> bool: ...
def probe_binary(op: int, a: int, b: int, c: int, out: int) -> None: ...
def probe_fold(a: int) -> float: ...
def probe_fold16(a: int, out: int) -> None: ...
def probe_narrow(dtype: int, a: int, out: int) -> None: ...
def probe_widen(dtype: int, a: int, out: int) -> None: ...
def topk(
    dtype: int,
    x: int,
    rows: int,
    row_stride: int,
    stride: int,
    n: int,
    k: int,
    largest: bool,
    values: int,
    indices: int,
) -> None: ...
def scatter(
    op: int,
    dtype: int,
    dst: int,
    pos: int,
    src: int,
    n: int,
    inner: int,
    src_stride: int,
    alpha: float,
) -> None: ...
def scatter_f64(
    op: int, dst: int, pos: int, src: int, n: int, inner: int, src_stride: int, alpha: float
) -> None: ...
def narrow(dtype: int, src: int, dst: int, n: int) -> None: ...
def embedding_bag(
    dtype: int,
    weight: int,
    row_stride: int,
    dim: int,
    indices: int,
    offsets: int,
    per_sample: int,
    bags: int,
    mode: int,
    padding: int,
    out: int,
    counts: int,
    arg: int,
) -> None: ...
def pointwise_unary_ops() -> list[str]: ...
def pointwise_unary(
    op: int, dtype: int, x: int, y: int, n: int, p0: float, p1: float, p2: float
) -> None: ...
def reduce(
    kind: int,
    x: int,
    dtype: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    axes: tuple[int, ...],
    out: int,
    out_dtype: int,
    correction: float,
    mean_out: int,
    wide: bool,
) -> None: ...
def softmax(
    x: int,
    dtype: int,
    rows: int,
    n: int,
    stride: int,
    out: int,
    out_dtype: int,
    log: bool,
    wide: bool,
) -> None: ...
def softmax_apply(
    x: int,
    dtype: int,
    outer: int,
    n: int,
    inner: int,
    m: int,
    s: int,
    out: int,
    out_dtype: int,
    log: bool,
) -> None: ...
def token_logprob(
    x: int,
    dtype: int,
    rows: int,
    n: int,
    stride: int,
    ids: int,
    out: int,
    out_dtype: int,
    wide: bool,
) -> bool: ...
def wide_logsumexp(
    x: int, dtype: int, rows: int, n: int, stride: int, out: int, out_dtype: int
) -> None: ...
def chips_nan(at: int, n: int, dtype: int) -> None: ...
def norm(
    centred: bool,
    x: int,
    dtype: int,
    rows: int,
    n: int,
    stride: int,
    weight: int,
    bias: int,
    same_type: bool,
    eps: float,
    out: int,
    mean: int,
    rstd: int,
    wide: bool,
) -> None: ...
def reciprocal_deviation(var: int, out: int, n: int, eps: float) -> None: ...
def affine(
    x: int,
    dtype: int,
    batch: int,
    channels: int,
    space: int,
    groups: int,
    mean: int,
    rstd: int,
    weight: int,
    bias: int,
    out: int,
) -> None: ...
def scan(
    product: bool, x: int, dtype: int, outer: int, n: int, inner: int, out: int, out_dtype: int
) -> None: ...
def linear(
    x: int,
    w: int,
    bias: int,
    out: int,
    rows: int,
    n: int,
    k: int,
    w_row: int,
    w_col: int,
    dtype: int,
    out_dtype: int,
    chain: bool,
) -> int: ...
def packed_size(n: int, k: int, dtype: int) -> list[int]: ...
def pack_weight(
    w: int, n: int, k: int, w_row: int, w_col: int, dtype: int, to: int, ranges: int
) -> None: ...
def linear_packed(
    x: int,
    x_row: int,
    packed: int,
    ranges: int,
    bias: int,
    out: int,
    rows: int,
    n: int,
    k: int,
    dtype: int,
    out_dtype: int,
) -> None: ...
def has_dot() -> bool: ...
def set_dot(use: bool) -> bool: ...
def gemm(
    x: int,
    w: int,
    c: int,
    out: int,
    batch: int,
    rows: int,
    n: int,
    k: int,
    x_batch: int,
    x_row: int,
    x_col: int,
    w_batch: int,
    w_row: int,
    w_col: int,
    c_batch: int,
    c_row: int,
    c_col: int,
    out_batch: int,
    out_row: int,
    out_col: int,
    dtype: int,
    c_dtype: int,
    out_dtype: int,
    alpha: float,
    beta: float,
    chain: bool,
) -> int: ...
def evaluate_block(
    x: int,
    w: int,
    out: int,
    rows: int,
    columns: int,
    k: int,
    fraction: int,
    min_exponent: int,
    block: int,
    grid: int,
    significand: int,
    floor: int,
    threads: int,
) -> None: ...
def evaluate_fma(
    x: int, w: int, out: int, rows: int, columns: int, k: int, width: int, threads: int
) -> None: ...
def attention(call: list[int], scale: float, cap: float, masked_at: float) -> int: ...
def pointwise_binary_ops() -> list[str]: ...
def pointwise_binary(
    op: int, dtype: int, a: int, b: int, y: int, n: int, p0: float, p1: float, p2: float
) -> None: ...
def pointwise_gated(op: int, dtype: int, gate: int, up: int, y: int, n: int) -> None: ...
def pointwise_rotary(
    dtype: int, interleaved: bool, d: int, sizes: list[int], cos_strides: list[int],
    sin_strides: list[int], second: int, step: int, x: int, cos: int, sin: int, y: int,
) -> None: ...  # fmt: skip
def exact_product(
    x: int,
    w: int,
    c: int,
    out: int,
    batch: int,
    m: int,
    n: int,
    k: int,
    x_batch: int,
    x_row: int,
    w_batch: int,
    w_row: int,
    c_batch: int,
    c_row: int,
    c_col: int,
    out_batch: int,
    out_row: int,
    out_col: int,
    dtype: int,
    out_dtype: int,
    plain: bool,
) -> int: ...
def exact_rows(
    x: int, rows: int, row: int, n: int, value: int, out: int, dtype: int, out_dtype: int
) -> int: ...
def exact_softmax(
    kind: int, x: int, rows: int, row: int, n: int, out: int, dtype: int, out_dtype: int
) -> None: ...
def augmented(op: int, wide: bool, x: int, y: int, result: int, error: int, n: int) -> None: ...
def binned_sum(wide: bool, x: int, rows: int, row: int, n: int, out: int) -> None: ...
def exact_columns(
    x: int, terms: int, stride: int, n: int, out: int, dtype: int, out_dtype: int
) -> int: ...
def pointwise_gated_rows(
    op: int, dtype: int, gate: int, gate_row: int, up: int, up_row: int, y: int, rows: int, n: int
) -> None: ...
def pointwise_rotary_at(
    dtype: int, interleaved: bool, d: int, heads: int, tokens: int, x: int, x_row: int,
    positions: int, limit: int, cos: int, cos_row: int, sin: int, sin_row: int, second: int,
    step: int, y: int,
) -> bool: ...  # fmt: skip
def cache_store(
    size: int, tokens: int, heads: int, d: int, x: int, x_row: int, x_head: int, slots: int,
    cache: int, pages: int, page: int, to_page: int, to_slot: int, to_head: int,
) -> bool: ...  # fmt: skip
def exact_norm(
    x: int, rows: int, row: int, n: int, w: int, b: int, eps: float, centred: bool, out: int,
    dtype: int,
) -> None: ...  # fmt: skip

EXACT_LIMBS: int

def exact_partial(
    x: int,
    w: int,
    y: int,
    bound: int,
    rows: int,
    n: int,
    k: int,
    x_row: int,
    w_row: int,
    dtype: int,
) -> None: ...
def exact_join(y: int, e: int, parts: int, n: int, out: int, out_dtype: int, open: int) -> None: ...
def exact_limbs(
    x: int, w: int, k: int, x_row: int, w_row: int, dtype: int, rows: int, columns: int, count: int,
    limbs: int,
) -> None: ...  # fmt: skip
def exact_value(limbs: int, term: int, count: int, out: int, out_dtype: int) -> None: ...
