"""The gallery of reduction trees: docs/gallery.md and its pictures.

    PYTHONPATH=src python scripts/gallery.py record [cpu | cuda]    probe, write docs/gallery/*.json
    PYTHONPATH=src python scripts/gallery.py draw                   pictures from what is recorded

Stock PyTorch's trees are those of the machine that recorded them, which the files name; drawing
needs no such machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import samebits
from samebits.report import tree_svg
from samebits.reveal import RevealedTree

FOLDER = Path(__file__).parents[1] / "docs" / "gallery"


@dataclass(frozen=True)
class Case:
    """One tree: what is probed, by whom, and how the picture is called."""

    name: str
    title: str
    op: str
    ours: bool = False
    sizes: dict[str, Any] = field(default_factory=dict)
    #: Key of the comparison that it is a row of, and its name there.
    group: str = ""
    row: str = ""
    drawn: bool = True

    @property
    def fn(self) -> str | Callable[..., Any]:
        """What is probed."""
        if not self.ours:
            return self.op
        functions: dict[str, Callable[..., Any]] = {
            "linear": samebits.ops.linear,
            "pv": samebits.ops.attention,
            "sum": lambda x: samebits.ops.sum(x, -1),
        }
        return functions[self.op]


def _linear(ms: tuple[int, ...], n: int, k: int, dtype: str, prefix: str) -> list[Case]:
    """Stock at every M, samebits at every M, drawn once."""
    cases = []
    for ours in (False, True):
        for m in ms:
            who = "samebits" if ours else "stock"
            cases.append(
                Case(
                    f"{prefix}linear-{who}-{m}", f"linear, {dtype}, K = {k}, M = {m}: {who}",
                    "linear", ours, {"m": m, "n": n, "k": k, "dtype": dtype}, f"{prefix}linear",
                    f"{who}\nM = {m}", not ours or m == ms[0],
                )
            )  # fmt: skip
    return cases


def _attention(rows: tuple[int, ...], keys: int, dtype: str, prefix: str) -> list[Case]:
    cases = []
    for ours in (False, True):
        for m in rows:
            who = "samebits" if ours else "stock"
            what = "decode (1 query)" if m == 1 else f"prefill ({m} queries)"
            cases.append(
                Case(
                    f"{prefix}attention-{who}-{m}",
                    f"attention's sum over {keys} keys, {dtype}, {what}: {who}", "pv", ours,
                    {"m": m, "n": 64, "k": keys, "dtype": dtype}, f"{prefix}attention",
                    f"{who}\n{what}", not ours or m == rows[0],
                )
            )  # fmt: skip
    return cases


CASES: dict[str, list[Case]] = {
    "cpu": [
        *_linear((1, 2, 8), 4096, 4096, "fp32", ""),
        *_attention((1, 64), 1024, "fp32", ""),
        *(
            Case(
                f"sum-{who}",
                f"sum of 16,384 numbers, fp32: {who}",
                "sum",
                who == "samebits",
                {"m": 1, "k": 16384},
                "sum",
                who,
            )
            for who in ("stock", "samebits")
        ),
    ],
    "cuda": [
        *_linear((1, 16, 64, 128, 512), 4096, 14336, "bf16", "cuda-"),
        *_attention((1, 128), 4096, "bf16", "cuda-"),
    ],
}

COMPARISONS = {
    "linear": "One product, fp32, K = 4096, on a CPU",
    "attention": "Attention's sum over 1,024 keys, fp32, on a CPU",
    "sum": "A sum of 16,384 numbers, fp32, on a CPU",
    "cuda-linear": "One product, bf16, N = 4096, K = 14336, on a GPU",
    "cuda-attention": "Attention's sum over 4,096 keys, bf16, on a GPU",
}


def machine(device: str) -> str:
    """What recorded a tree, in one line."""
    if device == "cuda":
        return f"PyTorch {torch.__version__} on an {torch.cuda.get_device_name()}"
    from samebits.check.environment import processor

    return f"PyTorch {torch.__version__} on an {processor()}, {torch.get_num_threads()} threads"


def record(device: str) -> None:
    """Probes the cases of a device; what cannot be probed is printed and left out."""
    from samebits.errors import SamebitsError
    from samebits.reveal import reveal

    found = []
    for case in CASES[device]:
        op = {"op": case.op} if case.ours else {}
        try:
            revealed = reveal(case.fn, device=device, arithmetic=False, **case.sizes, **op)
        except SamebitsError as error:
            print(f"{case.name}: {error}", flush=True)
            continue
        print(f"{case.name}: {revealed.tree.describe()}", flush=True)
        found.append({"name": case.name, "tree": revealed.tree.to_data()})
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = {"machine": machine(device), "trees": found}
    (FOLDER / f"{device}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def draw() -> dict[str, str]:
    """All pictures by their file names, from the recorded trees."""
    pictures: dict[str, str] = {}
    for device, cases in CASES.items():
        path = FOLDER / f"{device}.json"
        if not path.exists():
            continue
        data = json.loads(path.read_text(encoding="utf-8"))
        trees = {entry["name"]: RevealedTree.from_data(entry["tree"]) for entry in data["trees"]}
        known = [case for case in cases if case.name in trees]
        for case in known:
            if case.drawn:
                pictures[f"{case.name}.svg"] = tree_svg.draw(
                    trees[case.name], title=case.title, note=data["machine"]
                )
        for group in dict.fromkeys(case.group for case in known):
            rows = [(case.row, trees[case.name]) for case in known if case.group == group]
            pictures[f"{group}.svg"] = tree_svg.compare(
                rows, title=COMPARISONS[group], note=data["machine"]
            )
    return pictures


def main() -> None:
    command, *rest = [*sys.argv[1:], "draw"][:2]
    if command == "record":
        record(rest[0] if rest and rest[0] in CASES else "cpu")
    for name, picture in draw().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
        print(f"docs/gallery/{name}")


if __name__ == "__main__":
    main()
