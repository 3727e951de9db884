"""Memory in which the CTAs of a split product meet.

Partial results come from torch's allocator, which knows streams and graphs. The arrival counters
must be zero before a kernel, which leaves them so. Kernels of one stream run one after another and
share counters. A captured kernel may run at any time on any stream, so every one has counters of
its own, cut from a strip that is prepared outside of captures.
"""

from __future__ import annotations

import threading

import torch

#: Counters that a stream's kernels share, and those in a strip for captured kernels.
SHARED, STRIP = 1 << 12, 1 << 20
#: Counters in 16 bytes.
ALIGNED = 4

_shared: dict[tuple[int, int], torch.Tensor] = {}
_strips: dict[int, tuple[torch.Tensor, int]] = {}
_lock = threading.Lock()


def arrivals(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` int32 zeros for one kernel on the current stream of `device`."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        return _captured(device, count)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    found = _shared.get((device.index, stream))
    if found is None or len(found) < count:
        found = _first(device, stream, count)
    return found


def _captured(device: torch.device, count: int) -> torch.Tensor:
    with _lock:
        strip, used = _strips.get(device.index, (None, 0))
        if strip is None or used + count > len(strip):
            # Right as well, but every replay of the graph fills them with zeros first.
            return torch.zeros(count, dtype=torch.int32, device=device)
        # The next ones are aligned as these: another alignment would be another compiled kernel.
        _strips[device.index] = strip, used + -(-count // ALIGNED) * ALIGNED
        return strip[used : used + count]


def _first(device: torch.device, stream: int, count: int) -> torch.Tensor:
    with _lock:
        found = torch.zeros(max(count, SHARED), dtype=torch.int32, device=device)
        _shared[device.index, stream] = found
        strip, used = _strips.get(device.index, (None, 0))
        if strip is None or used > len(strip) // 2:
            strip = torch.zeros(STRIP, dtype=torch.int32, device=device)
            torch.cuda.current_stream(device).synchronize()  # a graph may use it on another stream
            _strips[device.index] = strip, 0
    return found
