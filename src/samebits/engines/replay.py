"""Times of GPU work from replays of a CUDA graph: no host, no launches, only the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Clock cycles (some 20 us) that the GPU is kept busy while the host starts a replay.
LEAD = 40_000

Work = Callable[[int], object]
"""One call on the i-th set of buffers. It allocates its results, and nobody reads them."""


class Captured:
    """A CUDA graph of `calls` calls of one contender over its rotating sets.

    Args:
        pool: of memory, shared with graphs that never run at the same time (`pool_handle`).
    """

    def __init__(self, work: Work, sets: int, calls: int, pool: Any = None) -> None:
        self.calls = calls
        self.graph = torch.cuda.CUDAGraph()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # torch.cuda.graph would collect garbage and empty the cache at every capture.
            self.graph.capture_begin(*(() if pool is None else (pool,)))
            try:
                for call in range(calls):
                    work(call % sets)
            finally:
                self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def seconds(self) -> float:
        """Seconds of one call, from one replay."""
        event: Any = torch.cuda.Event
        start, stop = event(enable_timing=True), event(enable_timing=True)
        sleep: Any = torch.cuda._sleep
        sleep(LEAD)  # the GPU waits for nothing once the clock runs
        start.record()
        self.graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / self.calls
