"""The frameworks' own flags and environment variables: set while the switch is on, then restored.

Every change is written to an undo log, so `restore` puts back what was found, in reverse order.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from samebits.engines import cpu
from samebits.errors import LateSwitchWarning, SwitchError
from samebits.mode import scaled
from samebits.mode.compile import redirect

#: Environment read by CUDA libraries when they start, and the values that make them repeatable.
#: 32 MiB is torch's own default on the newest devices; what matters is that it is one value.
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUBLASLT_WORKSPACE_SIZE": "32768"}

_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "all"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)


@dataclass
class Flags:
    """What was changed, and how to put it back."""

    changed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _undo: list[Callable[[], Any]] = field(default_factory=list)

    def set(self, label: str, get: Callable[[], Any], put: Callable[[Any], Any], want: Any) -> None:
        """Sets one flag, remembering the value found."""
        found = get()
        if found != want:
            put(want)
            self.changed.append(f"{label}: {found} -> {want}")
            self._undo.append(lambda: put(found))

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute, remembering what was there."""
        found = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, found))

    def on_restore(self, undo: Callable[[], Any]) -> None:
        """Adds a step to the undo log."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Puts every flag back."""
        while self._undo:
            self._undo.pop()()
        for log in (self.changed, self.late, self.notes):
            log.clear()


def apply(flags: Flags) -> None:
    """Turns on every deterministic setting of the frameworks in this process."""
    guarded = not torch.are_deterministic_algorithms_enabled()
    _subnormals(flags)
    _torch(flags)
    _precision(flags)
    _environment(flags)
    _tensorflow(flags)
    _hold(flags)
    scaled.patch(flags.set_attribute)
    flags.on_restore(redirect(flags.set_attribute, guarded))


def _subnormals(flags: Flags) -> None:
    """Gradual underflow in every thread: torch's flag is a thread's own, and workers inherit it."""
    one = torch.tensor([1], dtype=torch.int32, device="cpu")
    tiny = one.view(torch.float32)  # made without arithmetic
    if (tiny * 1.0).item() == 0.0:
        torch.set_flush_denormal(False)
        flags.changed.append("torch.set_flush_denormal: True -> False")
        flags.on_restore(lambda: torch.set_flush_denormal(True))
    if cpu.set_worker_flush(False):
        flags.changed.append("subnormals in torch's worker threads: flushed -> kept")
        flags.on_restore(lambda: cpu.set_worker_flush(True))
    # One parallel region in which every worker computes at least one chunk, for pools that the
    # engine does not share.
    chunk = 32768
    many = tiny.expand(2 * chunk * torch.get_num_threads()) * 1.0
    if not bool(many.view(torch.int32)[:: chunk // 2].all()):
        raise SwitchError(
            "worker threads of torch flush subnormal numbers to zero, so an element's bits would "
            "depend on the thread that computes it. Call torch.set_flush_denormal(False) before "
            "the first parallel operation of the process"
        )


def _hold(flags: Flags) -> None:
    """Keeps callers from turning off, for the whole process, what the switch stands on."""
    flush = torch.set_flush_denormal

    def set_flush_denormal(mode: bool) -> bool:
        if mode:
            raise SwitchError(
                "torch.set_flush_denormal(True) would act on this thread alone, so an element's "
                "bits would depend on the thread. Call samebits.disable() first"
            )
        return flush(mode)

    def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        if not mode or warn_only:
            warnings.warn(
                "torch.use_deterministic_algorithms stays on while samebits is enabled",
                LateSwitchWarning,
                stacklevel=2,
            )

    flags.set_attribute(torch, "set_flush_denormal", set_flush_denormal)
    flags.set_attribute(torch, "use_deterministic_algorithms", use_deterministic_algorithms)


def _torch(flags: Flags) -> None:
    c: Any = torch._C
    backends = torch.backends
    if not torch.are_deterministic_algorithms_enabled():
        # Filling fresh memory would cost a pass over every result; no covered operation reads it.
        fill: Any = torch.utils.deterministic
        flags.set(
            "torch.utils.deterministic.fill_uninitialized_memory",
            partial(getattr, fill, "fill_uninitialized_memory"),
            partial(setattr, fill, "fill_uninitialized_memory"),
            False,
        )
    flags.set(
        "torch.use_deterministic_algorithms",
        lambda: (
            c._get_deterministic_algorithms(),
            c._get_deterministic_algorithms_warn_only(),
        ),
        lambda v: c._set_deterministic_algorithms(v[0], warn_only=v[1]),
        (True, False),
    )
    simple = (
        ("cudnn.deterministic", c._get_cudnn_deterministic, c._set_cudnn_deterministic, True),
        ("cudnn.benchmark", c._get_cudnn_benchmark, c._set_cudnn_benchmark, False),
        # oneDNN chooses kernels and RNN paths by batch size.
        ("mkldnn.enabled", c._get_mkldnn_enabled, c._set_mkldnn_enabled, False),
        ("mkldnn.deterministic", c._get_mkldnn_deterministic, c._set_mkldnn_deterministic, True),
        ("nnpack.enabled", c._get_nnpack_enabled, c._set_nnpack_enabled, False),
        # The fused encoder and attention modules bypass the operations that are covered.
        (
            "mha.fastpath_enabled",
            backends.mha.get_fastpath_enabled,
            backends.mha.set_fastpath_enabled,
            False,
        ),
        (
            "cuda.matmul.allow_fp16_accumulation",
            c._get_cublas_allow_fp16_accumulation,
            c._set_cublas_allow_fp16_accumulation,
            False,
        ),
        (
            "cpu.allow_fp16_reduced_precision_reduction",
            c._get_cpu_allow_fp16_reduced_precision_reduction,
            c._set_cpu_allow_fp16_reduced_precision_reduction,
            False,
        ),
        (
            "cuda.math_sdp_allow_fp16_bf16_reduction",
            c._get_math_sdp_allow_fp16_bf16_reduction,
            c._set_math_sdp_allow_fp16_bf16_reduction,
            False,
        ),
    )
    for label, get, put, want in simple:
        flags.set(f"torch.backends.{label}", get, put, want)
    matmul = backends.cuda.matmul
    for kind in ("fp16", "bf16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        flags.set(
            f"torch.backends.cuda.matmul.{name}",
            getattr(c, f"_get_cublas_{name}"),
            partial(setattr, matmul, name),
            (False, False),
        )
    # Its contraction order follows the sizes of all operands, so of the batch too.
    einsum = backends.opt_einsum
    flags.set(
        "torch.backends.opt_einsum.enabled",
        partial(getattr, einsum, "enabled"),
        partial(setattr, einsum, "enabled"),
        False,
    )


def _precision(flags: Flags) -> None:
    c: Any = torch._C
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    legacy = (
        # The first of these also sets the second.
        (
            "torch.set_float32_matmul_precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "highest",
        ),
        (
            "torch.backends.cuda.matmul.allow_tf32",
            partial(getattr, matmul, "allow_tf32"),
            partial(setattr, matmul, "allow_tf32"),
            False,
        ),
        (
            "torch.backends.cudnn.allow_tf32",
            partial(getattr, cudnn, "allow_tf32"),
            partial(setattr, cudnn, "allow_tf32"),
            False,
        ),
    )
    for label, get, put, want in legacy:
        try:
            flags.set(label, get, put, want)
        except RuntimeError:  # noqa: PERF203
            # The caller mixed torch's old and new flags; the new ones below are set all the same.
            flags.notes.append(f"{label} conflicts with fp32_precision and was left alone")
    # A parent's value is inherited, so only what still differs after the parent is touched. The
    # setter of torch.backends.mkldnn writes to the generic flag instead: the raw one is used.
    for key in _PRECISIONS:
        flags.set(
            "torch.backends.{}.{}.fp32_precision".format(*key),
            partial(c._get_fp32_precision_getter, *key),
            partial(c._set_fp32_precision_setter, *key),
            "ieee",
        )


def _environment(flags: Flags) -> None:
    cuda_up = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    for name, want in ENVIRONMENT.items():
        if name in os.environ:
            continue
        if cuda_up:
            flags.late.append(f"{name} is read when CUDA starts, and CUDA is already running")
        os.environ[name] = want
        flags.changed.append(f"{name}={want}")
        flags.on_restore(partial(os.environ.pop, name, None))


def _tensorflow(flags: Flags) -> None:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    tensorflow.config.experimental.enable_op_determinism()
    flags.notes.append(
        "tensorflow: enable_op_determinism() was called: run-to-run only, and it cannot be undone"
    )
