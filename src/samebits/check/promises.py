"""The promises, and the tests that a promise is made of. Names are used in options and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from samebits.errors import SettingError

PROMISES: dict[str, str] = {
    "run-to-run": "the same call, repeated, gives the same bits",
    "batch-invariant": "a request's bits do not depend on the other requests of its batch",
    "prefill/decode consistent": "a position's bits do not depend on how the text was cut",
    "thread-invariant": "bits do not depend on the number of threads",
    "layout-invariant": "bits do not depend on where and how tensors lie in memory",
}


@dataclass(frozen=True)
class Kind:
    """One test: the promise it belongs to, its title, and what is compared with what."""

    promise: str
    title: str
    what: str


TESTS: dict[str, Kind] = {
    "repeats": Kind("run-to-run", "repeats", "the same call again"),
    "rows": Kind("batch-invariant", "number of rows", "in a batch of M against alone"),
    "position": Kind("batch-invariant", "position", "at another place of the same batch"),
    "neighbours": Kind("batch-invariant", "neighbours", "beside other contents, same batch size"),
    "padding": Kind("batch-invariant", "padding", "padded left or right against alone"),
    "chunks": Kind("prefill/decode consistent", "chunked prefill", "cut in pieces against one"),
    "decode": Kind("prefill/decode consistent", "decode", "token by token against prefill"),
    "prefix": Kind("prefill/decode consistent", "prefix reuse", "from a kept prefix against cold"),
    "threads": Kind("thread-invariant", "threads", "with other numbers of threads"),
    "layout": Kind("layout-invariant", "layout", "with other strides, offsets and alignments"),
}


def select(names: Iterable[str] | None) -> tuple[str, ...]:
    """The tests that `names` (of promises or tests) stand for, in the order of the table.

    Raises:
        SettingError: a name is neither a promise nor a test.
    """
    if names is None:
        return tuple(TESTS)
    wanted = {names} if isinstance(names, str) else set(names)
    unknown = wanted - set(TESTS) - set(PROMISES)
    if unknown:
        raise SettingError(
            f"no promise or test is called {', '.join(sorted(map(repr, unknown)))}: "
            f"use {', '.join([*PROMISES, *TESTS])}"
        )
    return tuple(name for name, kind in TESTS.items() if name in wanted or kind.promise in wanted)
