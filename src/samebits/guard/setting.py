"""What the guard is asked to do: ``off``, ``path``, ``sample:0.01`` or ``path,sample:0.01``."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from samebits.errors import SettingError

#: The share of calls where "sample" is said without a number.
RATE = 0.01


class Setting(msgspec.Struct, frozen=True):
    """Which checks run.

    Attributes:
        path: kernels compare the reduction paths they take, and the sums of their partial results,
            with what the contract says.
        rate: the share of calls that are executed again with another schedule.
    """

    path: bool = False
    rate: float = 0.0

    @property
    def on(self) -> bool:
        """Whether anything is checked."""
        return self.path or self.rate > 0

    def __str__(self) -> str:
        parts = (["path"] if self.path else []) + ([f"sample:{self.rate:g}"] if self.rate else [])
        return ",".join(parts) or "off"


def parse(text: str) -> Setting:
    """The setting that `text` means.

    Raises:
        SettingError: it means none.
    """
    path, rate = False, 0.0
    parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else [repr(text)]
    if parts in (["off"], [""]):
        return Setting()
    for part in parts:
        name, _, number = part.partition(":")
        if part == "path" and not path:
            path = True
        elif name == "sample" and not rate:
            rate = _rate(text, number) if number else RATE
        else:
            raise SettingError(
                f"guard={text!r} is not understood: use off, path, sample:RATE, or path,sample:RATE"
            )
    return Setting(path, rate)


def _rate(text: str, number: str) -> float:
    try:
        rate = float(number)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise SettingError(f"guard={text!r}: the share of sampled calls lies in (0, 1]")
    return rate


def chosen(seed: int, numbers: range, rate: float) -> list[int]:
    """Which of the calls with these numbers are sampled: a pure function, so a run can be repeated.

    Numbers are those of a thread. Time, load and results play no part. A number is scrambled by the
    end of SplitMix64 (Steele, Lea and Flood, 2014), and sampled where that is among the lowest.
    """
    words = np.arange(numbers.start, numbers.stop, dtype=np.uint64) + np.uint64(seed)
    with np.errstate(over="ignore"):
        words *= np.uint64(0x9E3779B97F4A7C15)
        words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
    # Compared by the upper 32 bits: a rate is no finer than that.
    hits = np.flatnonzero(words >> np.uint64(32) < rate * 2**32)
    return [numbers.start + int(hit) for hit in hits]
