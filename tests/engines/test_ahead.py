"""Kernels are compiled side by side, and calls see only what is ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from samebits.engines import ahead
from samebits.engines.cuda import nvrtc


def test_outside_work_is_done_at_once() -> None:
    assert ahead.compiled("a", lambda: 3) == 3
    assert ahead.of_triton("a kernel") == "a kernel"


def test_what_calls_miss_is_compiled_side_by_side() -> None:
    """Each of three compilations waits for the other two: one after the other they would hang."""
    together = threading.Barrier(3, timeout=30)
    main, made = threading.get_ident(), []

    def compiler(name: str) -> Callable[[], str]:
        def work() -> str:
            assert threading.get_ident() != main
            together.wait()
            return name

        return work

    def call(name: str) -> Callable[[], None]:
        return lambda: made.append(ahead.compiled(name, compiler(name)))

    assert ahead.compile_ahead([call(name) for name in "abca"], threads=3) == []
    assert sorted(made) == ["a", "a", "b", "c"]  # the second "a" had nothing to compile


def test_a_call_with_several_kernels_gets_to_its_end() -> None:
    events: list[str] = []

    def step(name: str) -> None:
        events.append(ahead.compiled(name, name.upper))

    def call() -> None:
        for name in "abc":
            step(name)

    assert ahead.compile_ahead([call], threads=1) == []
    assert events == list("AABABC")  # three times it stopped before the next


def test_errors_of_calls_and_compilers_are_handed_back() -> None:
    def broken() -> None:
        raise ValueError("no such tile")

    def call() -> None:
        ahead.compiled("x", broken)

    errors = ahead.compile_ahead([call, broken, lambda: None], threads=2)
    assert [type(e) for e in errors] == [ValueError, ValueError]
    assert ahead.compiled("x", lambda: 1) == 1  # and the mode is over


def test_a_source_of_cuda_is_compiled_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("// nothing\n")
    threads: list[int] = []

    def compiler(texts: Any, main: str, options: list[str]) -> bytes:
        threads.append(threading.get_ident())
        return b"cubin"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(nvrtc, "_compile", compiler)
    found: list[bytes] = []
    calls = [lambda: found.append(nvrtc.compile_source(source, "sm_90a", {}))] * 2
    assert ahead.compile_ahead(calls, threads=2) == []
    assert found == [b"cubin"] * 2
    assert len(threads) == 1 and threads[0] != threading.get_ident()


class Kernel:
    """Has the part of Triton's ``JITFunction`` that compiles in Triton's own mode."""

    def __init__(self) -> None:
        self.known: Any = None

    def warmup(self) -> Any:
        from triton.runtime import _async_compile

        if self.known is not None:
            return self.known
        mode = _async_compile.active_mode.get()
        assert mode is not None

        def finish(made: str) -> None:
            self.known = made

        return mode.submit(id(self), lambda: "compiled", finish)


def test_kernels_of_triton_are_promised_and_then_there() -> None:
    pytest.importorskip("triton")
    kernels, made = [Kernel(), Kernel()], []
    calls = [lambda k=k: made.append(ahead.of_triton(k.warmup())) for k in kernels]
    assert ahead.compile_ahead(calls, threads=2) == []
    assert made == ["compiled"] * 2 == [k.known for k in kernels]
    assert not isinstance(kernels[0].warmup(), Future)
