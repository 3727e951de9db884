"""Random elements of recorded operations, computed again on a CPU by their contracts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open

import samebits.engines.cpu.evaluate  # noqa: F401  (the fast twin of evaluation registers itself)
from samebits.contract import AttentionContract, Contract, LinearContract, parse
from samebits.errors import ReceiptError
from samebits.guard.receipts.between import Between, word_array
from samebits.guard.receipts.merkle import Leaf, Manifest, leaf_of, root_of
from samebits.guard.receipts.operands import Attended, Gated, Product, Rotated, Sample, unpack
from samebits.guard.receipts.reading import Source
from samebits.guard.receipts.record import UNREADABLE, Identity, Receipt, address

Tensors = Callable[[Leaf], torch.Tensor]
"""Finds a tensor by its leaf."""


class Wrong(msgspec.Struct, frozen=True):
    """An element whose bits are not the contract's."""

    op: str
    place: str
    position: int
    element: int
    recorded: int
    computed: int

    def __str__(self) -> str:
        return (
            f"{self.op} {self.place}, position {self.position}, element {self.element}: recorded "
            f"{self.recorded:#x}, the contract gives {self.computed:#x}"
        )


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit has found.

    Attributes:
        elements: compared, by operation.
        recorded: elements that the receipt holds operands for.
        links: attention results that were found again as the operand of the product behind them.
        broken: those that were not.
        wrong: elements with other bits.
        products: multiplications that were computed.
        seconds: of processor time they took.
    """

    elements: dict[str, int]
    recorded: int
    links: int
    broken: int
    wrong: tuple[Wrong, ...]
    products: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing was found wrong."""
        return not self.wrong and not self.broken

    def __str__(self) -> str:
        count = sum(self.elements.values())
        by_op = ", ".join(f"{n} of {op}" for op, n in sorted(self.elements.items()))
        rate = self.products / max(self.seconds, 1e-9) / 1e6
        lines = [
            f"{count} of {self.recorded} recorded elements computed again ({by_op}), "
            f"{self.products:,} products, {rate:.0f} million a second of processor time",
            f"{self.links} results of attention are the next product's operand"
            + (f", {self.broken} are NOT" if self.broken else ""),
        ]
        lines += [f"WRONG: {wrong}" for wrong in self.wrong[:10]]
        if self.good:
            lines.append(
                f"all bits are the contract's; had a share of more than {100 * 3 / count:.2g} % of "
                "them been wrong, this would have been seen with 95 %"
            )
        else:
            lines.append(f"{len(self.wrong)} elements have other bits")
        return "\n".join(lines)


def audit(
    source: Source,
    receipt: Receipt,
    identity: Identity,
    tensors: Tensors,
    *,
    elements: int = 1000,
    seed: int = 0,
) -> Audit:
    """Computes random elements again, whatever device they were computed on.

    Args:
        source: the ledger.
        tensors: the weights, each of which is compared with its hash first.
        elements: how many.
        seed: of the choice.

    Raises:
        ReceiptError: the receipt has no operands; an object is missing or altered; weights are not
            those of the receipt.
    """
    if elements < 1:
        raise ReceiptError(f"elements: {elements} is not at least 1")
    samples = _samples(source, receipt)
    manifest = _manifest(source, identity)
    sizes = [s.dv if isinstance(s, Attended) else s.n for s in samples]
    between = Between(samples)
    chosen = _chosen(sizes, elements, random.Random(seed))
    counts: Counter[str] = Counter()
    wrong: list[Wrong] = []
    products, seconds = 0, 0.0
    for index, columns in sorted(chosen.items()):
        sample = samples[index]
        start = time.process_time()
        if isinstance(sample, Gated | Rotated):
            op, amount = ("gate" if isinstance(sample, Gated) else "rotary"), 0
            recorded, computed = (row[columns] for row in between.rows(sample))
        else:
            op = "linear" if isinstance(sample, Product) else "attention"
            contract = _contract(identity, sample)
            prepared: tuple[Any, ...] = ()
            if isinstance(sample, Product):
                prepared = _weights(sample, manifest, tensors, columns)
            start = time.process_time()
            computed, amount = _compute(contract, sample, columns, prepared)
            recorded = word_array(sample.y, sample.dtype)[columns]
        seconds += time.process_time() - start
        products += amount
        counts[op] += len(columns)
        wrong += [
            Wrong(op, sample.place, sample.position, column, int(was), int(should))
            for column, was, should in zip(columns, recorded, computed, strict=True)
            if was != should
        ]
    links, broken = _links(samples)
    return Audit(
        elements=dict(counts), recorded=sum(sizes), links=links, broken=broken,
        wrong=tuple(wrong), products=products, seconds=seconds,
    )  # fmt: skip


def _samples(source: Source, receipt: Receipt) -> list[Sample]:
    found: list[Sample] = []
    for name in receipt.audit:
        raw = source.object(name)
        if raw is None or address(raw) != name:
            state = "missing" if raw is None else "altered"
            raise ReceiptError(f"object {name[:12]}… is {state}")
        try:
            found += unpack(raw)
        except UNREADABLE as error:
            raise ReceiptError(f"object {name[:12]}… cannot be read: {error}") from None
    if not found:
        raise ReceiptError(
            f"the receipt of {receipt.request} holds no operands: record with "
            "samebits.receipts(..., audit=SHARE), and choose a request that has some"
        )
    return found


def _manifest(source: Source, identity: Identity) -> dict[str, Leaf]:
    raw = source.object(identity.manifest)
    if raw is None or address(raw) != identity.manifest:
        raise ReceiptError("manifest: the list of weights is missing or altered")
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
        root = root_of([bytes.fromhex(leaf.hash) for leaf in manifest.leaves])
    except (*UNREADABLE, ValueError) as error:
        raise ReceiptError(f"manifest: the list of weights cannot be read: {error}") from None
    if root.hex() != identity.weights:
        raise ReceiptError("weights: the list of weights does not have the recorded root")
    return {leaf.name: leaf for leaf in manifest.leaves}


def _chosen(sizes: Sequence[int], count: int, draw: random.Random) -> dict[int, list[int]]:
    """Distinct elements, evenly among all: columns by sample."""
    total = sum(sizes)
    edges = np.cumsum(sizes)
    found: dict[int, list[int]] = {}
    for flat in draw.sample(range(total), min(count, total)):
        index = int(np.searchsorted(edges, flat, side="right"))
        found.setdefault(index, []).append(flat - int(edges[index] - sizes[index]))
    return {index: sorted(columns) for index, columns in found.items()}


def _contract(identity: Identity, sample: Product | Attended) -> Contract:
    if isinstance(sample, Product):
        name = f"linear {sample.n}x{sample.k} {sample.dtype}"
    else:
        name = f"attention {sample.d} {sample.dtype}"
    known = identity.contracts.get(name)
    if known is None or known not in identity.texts:
        raise ReceiptError(f"contracts: the receipt names none for {name}")
    contract = parse(identity.texts[known])
    if contract.id != known:
        raise ReceiptError(f"contracts: the text of {name} is not that of contract {known}")
    return contract


def _weights(
    sample: Product, manifest: dict[str, Leaf], tensors: Tensors, columns: list[int]
) -> tuple[Any, ...]:
    """Rows of the weight, and elements of the bias, for the chosen columns."""
    weight = _checked(f"{sample.place}.weight", manifest, tensors)[columns]
    if not sample.bias:
        return weight, None
    return weight, _checked(f"{sample.place}.bias", manifest, tensors)[columns]


def _checked(name: str, manifest: dict[str, Leaf], tensors: Tensors) -> torch.Tensor:
    leaf = manifest.get(name)
    if leaf is None:
        raise ReceiptError(f"weights: the receipt's model has no tensor {name}")
    tensor = tensors(leaf)
    if leaf_of(name, tensor) != leaf:
        raise ReceiptError(f"weights: {name} is not the tensor that the receipt was made with")
    return tensor


def _compute(
    contract: Contract,
    sample: Product | Attended,
    columns: list[int],
    prepared: tuple[Any, ...],
) -> tuple[np.ndarray[Any, Any], int]:
    """The contract's words of the chosen elements, and the number of products."""
    if isinstance(sample, Product):
        assert isinstance(contract, LinearContract)
        weight, bias = prepared
        x = _tensor(sample.x, sample.dtype, 1, sample.k)
        y = contract.evaluate(x, weight, bias, contract.output, engine="cpu")
        return word_array(_bytes(y), sample.dtype), len(columns) * sample.k
    assert isinstance(contract, AttentionContract)
    kind, keys = sample.dtype, sample.keys
    seen = None
    if sample.seen is not None:
        seen = np.frombuffer(sample.seen, np.uint8).astype(bool)[None]
    y = contract.evaluate(
        _tensor(sample.q, kind, 1, sample.d), _tensor(sample.k, kind, keys, sample.d),
        _tensor(sample.v, kind, keys, sample.dv)[:, columns], seen=seen, scale=sample.scale,
        softcap=sample.softcap, sink=sample.sink, out_dtype=contract.output, engine="cpu",
    )  # fmt: skip
    return word_array(_bytes(y), kind), keys * (sample.d + len(columns) + 1)


def _links(samples: Sequence[Sample]) -> tuple[int, int]:
    """How many attention results stand, unchanged, in the operand of the product behind them."""
    good = bad = 0
    for sample, behind in pairwise(samples):
        if isinstance(sample, Attended) and isinstance(behind, Product):
            size = len(sample.y)
            same = behind.x[sample.head * size : (sample.head + 1) * size] == sample.y
            good, bad = good + same, bad + (not same)
    return good, bad


_TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _tensor(raw: bytes, dtype: str, *shape: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=_TORCH[dtype]).reshape(shape)


def _bytes(y: Any) -> bytes:
    return bytes(y.contiguous().view(torch.uint8).numpy().tobytes())


def checkpoint(folder: str | Path) -> Tensors:
    """The tensors of a folder's safetensors files, each read when it is needed.

    A tensor that a model ties to another one, and the file has once, is found by its shape.

    Raises:
        ReceiptError: there are no such files; when called: a tensor is missing.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise ReceiptError(f"weights {folder}: there are no safetensors files: give --weights DIR")
    homes: dict[str, Path] = {}
    try:
        for file in files:
            with safe_open(file, framework="pt") as opened:
                homes |= dict.fromkeys(opened.keys(), file)
    except (OSError, SafetensorError) as error:
        raise ReceiptError(f"weights {folder}: {error}") from None

    def read(name: str) -> torch.Tensor:
        with safe_open(homes[name], framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

    def find(leaf: Leaf) -> torch.Tensor:
        dtype = getattr(torch, leaf.dtype)
        if leaf.name in homes:
            return read(leaf.name).to(dtype)
        for name in homes:
            tensor = read(name)
            if tuple(tensor.shape) == leaf.shape and leaf_of(leaf.name, tensor.to(dtype)) == leaf:
                return tensor.to(dtype)
        raise ReceiptError(f"weights {folder}: there is no tensor {leaf.name}")

    return find
