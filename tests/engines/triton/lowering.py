"""Lowers kernels for a Hopper GPU as far as Triton's own dialects: no GPU is needed.

Run as a program, for the interpreter cannot be turned off in a process that has it: prints one line
for each variant that Triton does not accept, and for each in which it lays out an operand of a
product so that its k is taken in another order. What the interpreter runs as Python, the compiler
may still refuse, or change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import ASTSource, CompilationError, make_backend
from triton.runtime.jit import mangle_type

from samebits.engines.triton import exact
from samebits.engines.triton.attention.forward import attention_kernel
from samebits.engines.triton.attention.latency import scores_kernel, values_kernel
from samebits.engines.triton.attention.portable import portable_kernel
from samebits.engines.triton.exact import residue
from samebits.engines.triton.exact.wide import wide_kernel
from samebits.engines.triton.launch import _check_blocks
from samebits.engines.triton.rows.fold import fold_kernel
from samebits.engines.triton.rows.pointwise import PORTABLE_FUNCTIONS, unary_kernel

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {"q": "*bf16", "k": "*bf16", "v": "*bf16", "out": "*bf16"}
REALS = {"a", "cap", "masked_at"}
#: Parameters that are tensors or None.
OPTIONAL = {
    "lse", "partial", "stats", "cu_q", "cu_k", "kv_lens", "table", "starts", "mask", "sinks",
    "k_scale", "v_scale", "ticket", "seals", "bias", "edges",
}  # fmt: skip
PORTABLE = {
    "D": 64, "DV": 48, "BLOCK_DV": 64, "GROUP": 2, "KEYS": "dense", "PAGE": 0, "CAUSAL": True,
    "WINDOW": False, "MASK": 0, "SOFTCAP": False, "SINKS": False, "LSE": False, "BLOCK_M": 32,
}  # fmt: skip
FORWARD = {
    "D": 64, "DV": 64, "BLOCK_D": 64, "BLOCK_DV": 64, "GROUP": 4, "KEYS": "dense", "PAGE": 0,
    "CAUSAL": False, "WINDOW": False, "MASK": 0, "SOFTCAP": False, "SINKS": False, "LSE": False,
    "K_SCALE": False, "V_SCALE": False, "BLOCK_M": 16, "ONE_POSITION": False, "SPAN": 1,
    "SPLIT": False, "STAGES": 3, "SLICE": 32, "PDL": False,
}  # fmt: skip
SHARED = {"GROUP": 4, "KEYS": "dense", "PAGE": 0, "CAUSAL": True, "WINDOW": False, "SOFTCAP": False,
          "K_SCALE": False, "BLOCK_M": 16, "SLICE": 16, "PDL": True}  # fmt: skip
#: Kernels that check their paths.
CHECKED = {"seals": "*i64", "ticket": "i64"}


def variants() -> Iterator[tuple[Any, dict[str, Any], dict[str, str]]]:
    """Kernel, its compile-time parameters, and the types of the optional tensors that are there."""
    for span in (1, 2):
        for options in ({}, {"SOFTCAP": True}, {"WINDOW": True, "CAUSAL": True}):
            yield attention_kernel, {"ONE_POSITION": True, "SPAN": span, **options}, {}
        split = {"ONE_POSITION": True, "SPAN": span, "SPLIT": True, "PDL": True}
        written = {"partial": "*fp32", "stats": "*fp32"}
        yield attention_kernel, split, written
        yield attention_kernel, split, written | CHECKED
        yield attention_kernel, {"ONE_POSITION": True, "SPAN": span}, {"ticket": "i64"}
    for block in (16, 64):
        for mask, kind in ((0, None), (1, "*i1"), (2, "*fp32"), (2, "*bf16")):
            for softcap in (False, True):
                there = {"mask": kind} if kind else {}
                yield attention_kernel, {"BLOCK_M": block, "MASK": mask, "SOFTCAP": softcap}, there
    sinks = {"CAUSAL": True, "SINKS": True, "LSE": True, "KEYS": "varlen"}
    there = {"sinks": "*fp32", "lse": "*fp32", "cu_q": "*i32", "cu_k": "*i32"}
    yield attention_kernel, sinks, there
    paged = {"KEYS": "paged", "PAGE": 16, "ONE_POSITION": True, "SPAN": 2}
    yield attention_kernel, paged, {"cu_q": "*i32", "kv_lens": "*i32", "table": "*i32"}
    for softcap in (False, True):
        scores = {"scores": "*fp32", "tops": "*fp32"}
        shared = SHARED | {"SOFTCAP": softcap}
        yield scores_kernel, shared | {"D": 64, "BLOCK_D": 64}, scores
        written = {"partial": "*fp32", "stats": "*fp32"}
        values = shared | {"DV": 64, "COLUMNS": 16, "LEAF": 512}
        yield values_kernel, values, scores | written
        yield values_kernel, values, scores | written | {"seals": "*i64"}
    for parts in (2, 4, 8):
        folded = {"PARTS": parts, "BLOCK": 512, "PDL": True}
        there = {"parts": "*fp32", "y": "*bf16"}
        yield fold_kernel, folded | {"BIAS": False}, there
        yield fold_kernel, folded | {"BIAS": True}, there | {"bias": "*bf16"}

    yield portable_kernel, {}, {}
    masked = {"edges": "*i32", "sinks": "*fp32", "lse": "*fp32"}
    for mask, kind in ((1, "*i1"), (2, "*fp32")):
        options = {"MASK": mask, "SINKS": True, "LSE": True, "SOFTCAP": mask == 2}
        yield portable_kernel, options, masked | {"mask": kind}
    yield portable_kernel, {"WINDOW": True, "KEYS": "paged", "PAGE": 16}, {
        "cu_q": "*i32", "kv_lens": "*i32", "table": "*i32",
    }  # fmt: skip
    for name in sorted(PORTABLE_FUNCTIONS):
        yield unary_kernel, {"F": name, "BLOCK": 512, "PDL": False}, {"x": "*fp32", "y": "*fp32"}


def reordered() -> Iterator[tuple[Any, dict[str, Any], dict[str, str]]]:
    """As `variants`: what might take k in another order, where loads are narrower than operands."""
    fp8 = {"k": "*fp8e4nv", "v": "*fp8e4nv"}
    for block in (16, 32, 64):
        yield attention_kernel, {"BLOCK_M": block, "MASK": 1}, {"mask": "*i1"}
        yield attention_kernel, {"BLOCK_M": block, "CAUSAL": True}, fp8
    yield attention_kernel, {"MASK": 1, "SOFTCAP": True, "D": 32}, fp8 | {"mask": "*i1"}
    yield attention_kernel, {"MASK": 2}, {"mask": "*fp32"}
    yield attention_kernel, {"ONE_POSITION": True, "SPAN": 2}, fp8
    exact = {"BM": 16, "BN": 32, "BK": 32}
    found = {"sums": "*fp64", "x_tops": "*fp32", "w_sizes": "*fp32"}
    for kind in ("*fp32", "*bf16"):
        yield wide_kernel, exact, {"x": kind, "w": kind, "k": "i32"} | found
    scores = {"scores": "*fp32", "tops": "*fp32"}
    yield scores_kernel, SHARED | {"D": 64, "BLOCK_D": 64}, fp8 | scores
    values = SHARED | {"DV": 64, "COLUMNS": 16, "LEAF": 512}
    yield values_kernel, values, fp8 | scores | {"partial": "*fp32", "stats": "*fp32"}


def lower(
    kernel: Any, constants: dict[str, Any], there: dict[str, str], blocks: bool = False
) -> None:
    """Raises what Triton raises; with `blocks`, what `launch` raises for another order of k."""
    if kernel is attention_kernel:
        constants = FORWARD | constants
    if kernel is portable_kernel:
        constants = PORTABLE | constants
    signature, values = {}, {}
    for i, name in enumerate(kernel.arg_names):
        kind = (POINTERS | there).get(name, "fp32" if name in REALS else "i32")
        if name in constants or (name in OPTIONAL and name not in there):
            kind, values[(i,)] = "constexpr", constants.get(name)
        signature[name] = kind
    lower_form(kernel, signature, values, blocks)


def lower_form(
    kernel: Any, signature: dict[str, str], values: dict[tuple[int], Any], blocks: bool = False
) -> None:
    """`lower` of a kernel with a type for every parameter, and the values that are compiled in."""
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    backend = make_backend(TARGET)
    options = backend.parse_options({"num_warps": 4, "enable_fp_fusion": False})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    module = source.make_ir(TARGET, options, functions, backend.get_module_map(), context)
    if blocks:
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, Language.TRITON)
        metadata = {"hash": "", "target": TARGET, **options.__dict__}
        for stage in ("ttir", "ttgir"):
            module = stages[stage](module, metadata)
        _check_blocks(kernel.__name__, str(module))


class Recorder:
    """In the place of `launch`: the forms of the kernels that calls would start.

    Attributes:
        forms: kernel, types and values as `lower_form` takes them, each form once.
    """

    def __init__(self) -> None:
        self.forms: dict[str, tuple[Any, dict[str, str], dict[tuple[int], Any]]] = {}

    def launch(self, kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        """As Triton classes the arguments: an integer that is 1 becomes a value of the kernel.

        Every integer may be 1, so there is a form of each kernel in which all of them are.
        """
        constants = {name: v for name, v in options.items() if name in kernel.arg_names}
        for ones in (False, True):
            signature, values = {}, {}
            for i, name in enumerate(kernel.arg_names):
                value = constants[name] if name in constants else args[i]
                value = 1 if ones and type(value) is int and name not in constants else value
                kind = "constexpr" if name in constants else mangle_type(value, True)
                signature[name] = kind
                if kind == "constexpr":
                    values[(i,)] = value
            form = kernel, signature, values
            self.forms.setdefault(repr((kernel.__name__, signature, values)), form)


def exact_forms() -> Iterator[tuple[Any, dict[str, str], dict[tuple[int], Any]]]:
    """The exact kernels as the operations on bf16 start them, and where fp32 takes other code."""
    recorder = Recorder()
    exact.launch = residue.launch = recorder.launch  # type: ignore[attr-defined]
    residue.cuda.takes = lambda *_: False  # type: ignore[assignment]
    for dtype in (torch.bfloat16, torch.float32):
        x, w, c = (torch.zeros(s, dtype=dtype) for s in ((20, 600), (40, 600), (40,)))
        exact.product(x, w, c.float(), dtype)
        exact.partial(x, w)
        exact.rows(x, dtype)
        exact.columns(x, dtype)
        exact.norm(x, w[0], w[1], 1e-5, layer=True)
        exact.softmax("softmax", x, dtype)
    exact.norm(x, w[0], None, 1e-5, layer=False)
    exact.rows(x, torch.float32, squares=True)
    for value in ("mean", "norm"):
        exact.row_values(value, x, dtype)
    for kind in ("log_softmax", "logsumexp"):
        exact.softmax(kind, x, torch.float32)
    exact.exp(x)
    exact.join(x.double(), x.double(), torch.bfloat16)
    for dtype, term in ((torch.bfloat16, torch.zeros(96)), (torch.float16, None)):
        x, w = torch.zeros(100, 128, dtype=dtype), torch.zeros(96, 128, dtype=dtype)
        exact.product(x, w, term, dtype)
    yield from recorder.forms.values()


def refusal(*variant: Any, by: Any = lower, **options: Any) -> str | None:
    """Why a variant is not accepted; None if it is."""
    try:
        by(*variant, **options)
    except (CompilationError, TypeError, ValueError) as error:
        reason: BaseException = error
        while reason.__cause__ is not None:
            reason = reason.__cause__
        return repr(reason)
    return None


if __name__ == "__main__":
    for variant in variants():
        if why := refusal(*variant):
            print(variant, why)
    for variant in reordered():
        if why := refusal(*variant, blocks=True):
            print(variant, why)
    for form in exact_forms():
        if why := refusal(*form, by=lower_form):
            print(form, why)
