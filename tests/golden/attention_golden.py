"""What an H200 gave for attention: the cases, and the script that records them on the chip.

Inputs come from words of NumPy's frozen RandomState, so only results are stored. A case is recorded
when all of its schedules have the same bytes.

    python tests/golden/attention_golden.py OUT.npz     (on an H200)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import samebits.engines.cpu.evaluate  # noqa: F401  (the evaluator's fast twin)
from samebits.contract import AttentionContract, hopper_attention

#: Where `on_chip` runs.
DEVICE = "cuda"
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Case:
    """One call: H query heads on Hkv KV heads, T rows at the end of S keys.

    Attributes:
        spread: exponents of the entries lie in 2^-spread ... 2^spread.
        mask: "bool" or "float": drawn too.
        special: how many Inf, NaN, largest and subnormal entries k and v get of each.
        scale: 0.1 / sqrt(d) if None, so that many weights matter.
        scales: static factors of fp8 k and v.
    """

    heads: int = 4
    kv_heads: int = 1
    rows: int = 1
    keys: int = 1100
    d: int = 128
    dv: int = 128
    dtype: str = "bf16"
    kv: str = ""
    spread: int = 4
    causal: bool = True
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    sinks: tuple[float, ...] = ()
    mask: str = ""
    special: int = 0
    scales: tuple[float, float] | None = None

    @property
    def factor(self) -> float:
        return 0.1 * self.d**-0.5 if self.scale is None else self.scale

    @property
    def contract(self) -> AttentionContract:
        return hopper_attention(self.dtype, kv=self.kv)


CASES: dict[str, Case] = {
    "decode": Case(),
    "decode wide": Case(spread=20),
    "decode narrow": Case(spread=0),
    "decode of sixteen heads": Case(heads=16, keys=700),
    "verify": Case(rows=5),
    "prefill": Case(heads=2, rows=70, keys=600),
    "fp16": Case(dtype="fp16", d=64, dv=64, rows=3),
    "fp16 alone": Case(dtype="fp16", heads=1, d=64, dv=64, rows=40, keys=90),
    "80": Case(d=80, dv=80, heads=2),
    "96": Case(d=96, dv=96, heads=2, rows=2),
    "192 and 128": Case(d=192, heads=2),
    "256": Case(d=256, dv=256, heads=2, keys=600),
    "window": Case(d=64, dv=64, rows=40, keys=700, window=100),
    "window on both sides": Case(d=64, dv=64, rows=3, keys=700, window=650, causal=False),
    "softcap": Case(d=64, dv=64, rows=3, softcap=1.0),
    "negative scale": Case(d=64, dv=64, scale=-0.01),
    "sinks": Case(d=64, dv=64, rows=2, sinks=(0.5, 40.0, -30.0, 3.0)),
    "bool mask": Case(d=64, dv=64, rows=3, mask="bool", causal=False),
    "float mask": Case(d=64, dv=64, rows=3, mask="float", causal=False),
    "fp8": Case(d=64, dv=64, rows=3, kv="e4m3"),
    "fp8 with scales": Case(kv="e4m3", scales=(0.3, 1.7)),
    "special values": Case(d=64, dv=64, rows=16, heads=2, special=3),
    "special values, one row": Case(d=64, dv=64, heads=8, special=4),
    "far apart": Case(d=64, dv=64, rows=3, spread=9, scale=0.02),
}  # fmt: skip


def _entries(
    r: np.random.RandomState, shape: tuple[int, ...], dtype: str, spread: int
) -> torch.Tensor:
    """Numbers of random sign, exponent and fraction."""
    fraction, bias, bits = {"bf16": (7, 127, 16), "fp16": (10, 15, 16), "e4m3": (3, 7, 8)}[dtype]
    spread = min(spread, bias - 1)
    words = r.randint(0, 2, shape) << (bits - 1)
    words |= (bias + r.randint(-spread, spread + 1, shape)) << fraction
    words |= r.randint(0, 1 << fraction, shape)
    kind = np.int16 if bits == 16 else np.uint8
    stored = words.astype(np.uint16 if bits == 16 else np.uint8).view(kind)
    return torch.from_numpy(stored).view(TYPES[dtype])


def operands(name: str) -> dict[str, torch.Tensor]:
    """q [H, T, D], k, v [Hkv, S, D], and the mask [T, S] if there is one."""
    case = CASES[name]
    r = np.random.RandomState(list(CASES).index(name))
    kv = case.kv or case.dtype
    found = {
        "q": _entries(r, (case.heads, case.rows, case.d), case.dtype, 2),
        "k": _entries(r, (case.kv_heads, case.keys, case.d), kv, case.spread),
        "v": _entries(r, (case.kv_heads, case.keys, case.dv), kv, case.spread),
    }
    # Anywhere in v, where one spoils a column; in k among the last keys, which few rows see.
    for x in (found["k"][:, case.keys - case.rows // 2 :], found["v"]) if case.special else ():
        for value in (float("inf"), float("-inf"), float("nan"), 3e38, -1e-39, 0.0):
            for _ in range(case.special if len(x[0]) else 0):
                x[tuple(r.randint(0, n) for n in x.shape)] = value
    if case.mask:
        allowed = torch.from_numpy(r.randint(0, 2, (case.rows, case.keys)).astype(bool))
        found["mask"] = allowed
        if case.mask == "float":
            bias = _entries(r, (case.rows, case.keys), "bf16", 3).float()
            found["mask"] = torch.where(allowed, bias, float("-inf"))
    return found


def evaluated(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The contract's result [H, T, Dv] and logsumexp [H, T]."""
    case, x = CASES[name], operands(name)
    row, key = case.keys - case.rows + np.arange(case.rows)[:, None], np.arange(case.keys)
    seen = np.ones((case.rows, case.keys), bool)
    if case.causal:
        seen &= key <= row
    if case.window is not None:
        seen &= np.abs(row - key) < case.window
    options: dict[str, Any] = {"scale": case.factor, "softcap": case.softcap}
    if case.mask == "bool":
        seen &= x["mask"].numpy()
    elif case.mask:
        options["bias"] = x["mask"].numpy()
        seen &= x["mask"].numpy() > -np.inf
    if case.scales:
        options["k_scale"], options["v_scale"] = case.scales
    out, lse = [], []
    for h in range(case.heads):
        group = h // (case.heads // case.kv_heads)
        head = (x["q"][h], x["k"][group], x["v"][group])
        if case.sinks:
            options["sink"] = case.sinks[h]
        out.append(case.contract.evaluate(*head, seen=seen, out_dtype=case.dtype, **options))
        lse.append(case.contract.logsumexp(*head, seen=seen, **options))
    return torch.stack(out), torch.stack(lse)


def on_chip(name: str, schedule: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernels' result and logsumexp."""
    from samebits.engines.triton.attention import run

    case = CASES[name]
    x = {n: t.to(DEVICE) for n, t in operands(name).items()}
    q, k, v = (x[n][None] for n in "qkv")
    mask = x.get("mask")
    scales = [torch.full((case.kv_heads,), s, device=DEVICE) for s in case.scales or ()] or [
        None,
        None,
    ]
    options = run.Options(
        case.factor, case.causal, case.window, case.softcap,
        torch.tensor(case.sinks, device=DEVICE) if case.sinks else None, scales[0], scales[1], True,
    )  # fmt: skip
    if mask is not None:
        mask = mask.expand(1, case.heads, case.rows, case.keys)
    out, lse = run.dense(
        case.contract, schedule, q, k, v, options, q_start=case.keys - case.rows, mask=mask,
        masked_at=-3e38,
    )  # fmt: skip
    assert lse is not None
    return out[0].cpu(), lse[0].cpu()


def words(x: torch.Tensor) -> np.ndarray:
    """The bits of a result as integers."""
    kind = torch.int32 if x.dtype is torch.float32 else torch.int16
    return x.contiguous().view(kind).numpy()


def record(name: str) -> tuple[dict[str, np.ndarray], str]:
    """What all schedules of a case agree on, and what is to be said about it."""
    from samebits.engines.triton.attention.schedule import AttentionSchedule

    case = CASES[name]
    rows = case.rows * case.heads // case.kv_heads
    tried = [AttentionSchedule(block_m=16, programs=1, span=1, stages=2)]
    if rows > 16:
        tried = [
            AttentionSchedule(block_m=64, programs=1, stages=1 if case.d > 128 else 2, warps=8)
        ]
    if name in ("decode", "verify", "prefill", "fp16", "special values, one row", "fp8"):
        tried.append(AttentionSchedule(block_m=16, programs=10**6, stages=3, pdl=False))
    found = [on_chip(name, schedule) for schedule in tried]
    for other in found[1:]:
        if any((words(a) != words(b)).any() for a, b in zip(found[0], other, strict=True)):
            return {}, "the schedules differ"
    want = evaluated(name)
    differ = [int((words(a) != words(b)).sum()) for a, b in zip(found[0], want, strict=True)]
    return (
        {f"{name}/{part}": words(x) for part, x in zip(("out", "lse"), found[0], strict=True)},
        f"differs from the evaluator in {differ[0]} results, {differ[1]} logsumexps",
    )


if __name__ == "__main__":
    path, part, parts = sys.argv[1], *(int(x) for x in (sys.argv[2:] or ["0", "1"]))
    recorded: dict[str, np.ndarray] = {}
    for at, title in enumerate(CASES):
        if at % parts == part:
            try:
                arrays, said = record(title)
                recorded |= arrays
            except Exception as error:
                said = repr(error)[:300]
            print(f"{title}: {said}", flush=True)
    np.savez_compressed(path, **recorded)
