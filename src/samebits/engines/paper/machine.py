"""The machine's data, and how long it takes for work: pure arithmetic on sizes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from samebits.contract.devices import PAPER, described


class Mode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mode of the machine.

    Attributes:
        reduction, kv: how partial results are added, and who gets which keys, in words.
        slowdown: of everything that the cores do.
        wait_ns: what the reduction unit waits for each core's turn.
    """

    reduction: str
    kv: str
    slowdown: float
    wait_ns: float


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a speed model needs to know.

    Attributes:
        cores: that work side by side.
        clock_ghz: cycles in a nanosecond.
        products_per_cycle: of a core.
        memory_gbs: bytes in a nanosecond that all cores together read.
        link_gbs: the same of a core's link to the reduction unit.
        link_ns: what a message takes, whatever its size.
        launch_ns: what a piece of work costs before it starts.
        tile: rows and columns of a core's tile of a product.
        modes: by name.
    """

    cores: int
    clock_ghz: float
    products_per_cycle: int
    memory_gbs: float
    link_gbs: float
    link_ns: float
    launch_ns: float
    tile: tuple[int, int]
    modes: dict[str, Mode]


@lru_cache(maxsize=1)
def machine() -> Machine:
    """The machine of `contract/devices/paper.json`."""
    return msgspec.convert(described()[PAPER].machine, Machine)


def nanoseconds(
    products: float, bytes_read: float, tiles: int, partial: float, mode: str, parts: int
) -> float:
    """How long work takes.

    Args:
        products: of one tile, all its parts together.
        bytes_read: from memory, by all tiles.
        tiles: of the result.
        partial: bytes of a tile's partial result.
        mode: of the machine.
        parts: cores that share a tile; each sends its partial result to the reduction unit.
    """
    m = machine()
    kind = m.modes[mode]
    blocks = tiles * parts
    waves = -(-blocks // m.cores)
    compute = waves * products / parts / m.products_per_cycle / m.clock_ghz
    memory = bytes_read / m.memory_gbs / min(1.0, blocks / m.cores)
    time = m.launch_ns + max(compute, memory) * kind.slowdown
    if parts == 1:
        return time
    arrive = m.link_ns + partial / m.link_gbs * -(-blocks // m.cores)
    return time + arrive + kind.wait_ns * parts
