"""Kernels compiled before they are needed, several at once.

A call that misses a kernel compiles it and waits, which a server notices. `compile_ahead` makes the
calls that will come: what they miss is compiled side by side in threads (Triton's passes, ptxas and
NVRTC let go of Python's lock), and calls are made again until none misses anything. Calls
themselves, and so launches, never run side by side.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")


class PostponedError(Exception):
    """A kernel is being compiled in another thread. Leaves `compile_ahead` never."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__("a kernel is being compiled")
        self.future = future


class _Ahead:
    """Compilations of one `compile_ahead`, by key."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.futures: dict[Hashable, Future[Any]] = {}


_active: ContextVar[_Ahead | None] = ContextVar("samebits_ahead", default=None)


def compile_ahead(calls: Iterable[Callable[[], object]], threads: int) -> list[Exception]:
    """Makes calls until nothing that they need has to be compiled any more.

    Args:
        calls: as a program will make them. A call that misses a kernel stops there and is made
            again, so it must not mind being made in part.
        threads: compilers at a time.

    Returns:
        What calls raised, in no order: a call that cannot be made is none that will come.
    """
    left = list(calls)
    errors: list[Exception] = []
    with ThreadPoolExecutor(threads, "samebits-compile") as pool, _triton(pool):
        token = _active.set(_Ahead(pool))
        try:
            while left:
                missed = [(call, _missed_by(call, errors)) for call in left]
                left = [call for call, future in missed if future is not None]
                wait({future for _, future in missed if future is not None})
        finally:
            _active.reset(token)
    return errors


def _missed_by(call: Callable[[], object], errors: list[Exception]) -> Future[Any] | None:
    """What a call waits for; None if it got to its end, or to an error."""
    try:
        call()
    except PostponedError as postponed:
        return postponed.future
    except Exception as error:
        errors.append(error)
    return None


def compiled(key: Hashable, work: Callable[[], T]) -> T:
    """``work()``, here and now, or inside `compile_ahead` in another thread.

    Args:
        key: the same for the same work.

    Raises:
        PostponedError: inside `compile_ahead`, as long as it is not done.
    """
    ahead = _active.get()
    if ahead is None:
        return work()
    if key not in ahead.futures:
        ahead.futures[key] = ahead.pool.submit(work)
    future: Future[T] = ahead.futures[key]
    return _done(future)


def of_triton(made: Any) -> Any:
    """What ``kernel.warmup`` returned: a compiled kernel, or Triton's promise of one.

    Raises:
        PostponedError: inside `compile_ahead`, as long as it is a promise.
    """
    if not hasattr(made, "result"):
        return made
    if _active.get() is not None:
        _done(made.future)
    return made.result()


def _done(future: Future[T]) -> T:
    if not future.done():
        raise PostponedError(future)
    return future.result()


@contextlib.contextmanager
def _triton(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Triton's own mode in which ``warmup`` compiles in a pool, where there is Triton."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    from triton.runtime._async_compile import AsyncCompileMode

    # Errors were raised by the calls.
    with AsyncCompileMode(pool, ignore_errors=True):
        yield
