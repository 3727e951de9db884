"""The settings and random states that a result may depend on: read, compared, and put in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from samebits.mode import deterministic, is_on, stock

P = ParamSpec("P")
R = TypeVar("R")


def on_stock(fn: Callable[P, R]) -> Callable[P, R]:
    """A function of ours that always computes with torch's own kernels.

    What judges results computes in binary64, which contracts do not cover and the switch refuses.
    """

    @wraps(fn)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        if not is_on():
            return fn(*args, **kwargs)
        with stock():
            return fn(*args, **kwargs)

    return inside


@dataclass(frozen=True)
class Setting:
    """One flag of the frameworks.

    Attributes:
        name: for people.
        get, put: read it, set it.
        kind: what a difference in it is (see `KINDS`).
        raw: what to put back later, where that is more than `get` tells.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    kind: str = "configuration"
    raw: Callable[[], Any] | None = None


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _precision(backend: str, op: str, old: Callable[[bool], Any] | None = None) -> Setting:
    """A precision of fp32 products: read through torch's new flags, set through the old one too.

    The old one sets both, and kernels refuse to run where the two disagree.
    """
    c: Any = torch._C
    found = partial(c._get_fp32_precision_getter, backend, op)

    def get() -> str:
        value: str = found()
        return "ieee" if value == "none" else value

    def put(value: str) -> None:
        if old is not None:
            old(value == "tf32")
        if found() != value:
            c._set_fp32_precision_setter(backend, op, value)

    return Setting(f"{backend}.{op}.fp32_precision", get, put, "precision", found)


def _table() -> tuple[Setting, ...]:
    c: Any = torch._C
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return (
        Setting("threads", torch.get_num_threads, torch.set_num_threads, "reordering"),
        _precision("cuda", "matmul", c._set_cublas_allow_tf32),
        _precision("cuda", "conv", c._set_cudnn_allow_tf32),
        _precision("mkldnn", "matmul"),
        *(
            Setting(
                f"cuda.matmul.allow_{dtype}_reduced_precision_reduction",
                getattr(c, f"_get_cublas_allow_{dtype}_reduced_precision_reduction"),
                _attribute(cuda.matmul, f"allow_{dtype}_reduced_precision_reduction")[1],
                "precision",
            )
            for dtype in ("bf16", "fp16")
        ),
        Setting(
            "cuda.matmul.allow_fp16_accumulation",
            c._get_cublas_allow_fp16_accumulation,
            c._set_cublas_allow_fp16_accumulation,
            "precision",
        ),
        Setting(
            "deterministic algorithms",
            torch.are_deterministic_algorithms_enabled,
            c._set_deterministic_algorithms,
        ),
        Setting("cudnn.benchmark", *_attribute(cudnn, "benchmark")),
        Setting("cudnn.deterministic", *_attribute(cudnn, "deterministic")),
        Setting("mkldnn.enabled", c._get_mkldnn_enabled, c._set_mkldnn_enabled),
        Setting("flash SDPA", cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        Setting(
            "memory-efficient SDPA", cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp
        ),
        Setting("math SDPA", cuda.math_sdp_enabled, cuda.enable_math_sdp),
        Setting("cuDNN SDPA", cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        Setting("BLAS library", c._get_blas_preferred_backend, c._set_blas_preferred_backend),
    )


SETTINGS = _table()
SWITCH = "samebits"


@dataclass(frozen=True)
class Settings:
    """What was in force when an operation ran."""

    values: dict[str, Any]

    def differing(self, other: Settings) -> list[str]:
        """Names of the settings that are not the same."""
        return [name for name, value in self.values.items() if other.values.get(name) != value]

    @contextmanager
    def in_force(self, names: list[str] | None = None) -> Iterator[None]:
        """Puts these settings in force for the block (only `names`, where given).

        The switch is turned first: it has flags of its own.
        """
        wanted = self.values if names is None else {name: self.values[name] for name in names}
        with ExitStack() as stack:
            if SWITCH in wanted and wanted[SWITCH] != is_on():
                stack.enter_context(deterministic() if wanted[SWITCH] else stock())
            if _medium():  # which the flags below cannot put back
                stack.callback(torch.set_float32_matmul_precision, "medium")
            for setting in SETTINGS:
                if setting.name in wanted and setting.get() != wanted[setting.name]:
                    stack.callback(setting.put, (setting.raw or setting.get)())
                    setting.put(wanted[setting.name])
            yield


def _medium() -> bool:
    try:
        return torch.get_float32_matmul_precision() == "medium"
    except RuntimeError:  # the caller mixed torch's old and new flags
        return False


def settings_now() -> Settings:
    """What is in force now."""
    return Settings({SWITCH: is_on(), **{setting.name: setting.get() for setting in SETTINGS}})


def kind_of(name: str) -> str:
    """What a difference in the setting of this name is."""
    return next((setting.kind for setting in SETTINGS if setting.name == name), "configuration")


@dataclass(frozen=True)
class RandomState:
    """The states of torch's default generators."""

    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...] = ()

    def restore(self) -> None:
        """Makes the generators go on from here."""
        torch.set_rng_state(self.cpu)
        for device, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, device)


def random_state() -> RandomState:
    """The present state; asking starts nothing on a GPU."""
    cuda: Any = torch.cuda
    started = cuda.is_available() and cuda.is_initialized()
    return RandomState(torch.get_rng_state(), tuple(cuda.get_rng_state_all()) if started else ())
