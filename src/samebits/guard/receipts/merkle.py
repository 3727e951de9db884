"""Which weights? The root of a Merkle tree over all tensors of a model.

    leaf = SHA-256(0x00 + canonical JSON [name, dtype, shape] + "\\n" + bytes, row-major)
    node = SHA-256(0x01 + left + right)

Leaves are sorted by name, neighbours are paired, and what is left over goes up as it is. The list
of leaves is kept with the receipts, so that one tensor can be checked without the others, and a
model with other weights is told by the tensor's name.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch

from samebits.guard.receipts.record import encode

#: Bytes of a tensor that are brought to the host and hashed at a time.
_CHUNK = 1 << 26
#: hashlib lets other threads run; more than a few only compete for memory.
_THREADS = 4


class Leaf(msgspec.Struct, frozen=True):
    """One tensor: its name, dtype, shape, and the hash of all of it, hexadecimal."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    hash: str


class Manifest(msgspec.Struct, frozen=True):
    """The leaves of a model's tree, sorted by name, and its root."""

    root: str
    leaves: tuple[Leaf, ...]

    @property
    def body(self) -> bytes:
        """The bytes that are kept as an object."""
        return encode(self)

    def differences(self, other: Manifest) -> list[str]:
        """Names of the tensors that are not the same in both, or in one of them only."""
        mine, theirs = ({leaf.name: leaf for leaf in m.leaves} for m in (self, other))
        names = sorted(mine.keys() | theirs.keys())
        return [name for name in names if mine.get(name) != theirs.get(name)]


def root_of(hashes: list[bytes]) -> bytes:
    """The root over the leaves' hashes; 32 zeros over none."""
    level = hashes or [bytes(32)]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        above = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs]
        level = above + level[len(above) * 2 :]
    return level[0]


def leaf_of(name: str, tensor: torch.Tensor) -> Leaf:
    """The leaf of one tensor."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    hash = hashlib.sha256(b"\0" + encode([name, dtype, shape]) + b"\n")
    for chunk in _bytes(tensor):
        hash.update(chunk)
    return Leaf(name, dtype, shape, hash.hexdigest())


def _bytes(tensor: torch.Tensor) -> Iterator[Any]:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    for start in range(0, len(flat), _CHUNK):
        yield flat[start : start + _CHUNK].cpu().numpy()


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers by name; shared ones under each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    return dict(sorted([*parameters, *buffers], key=lambda pair: pair[0]))


_known: WeakKeyDictionary[torch.nn.Module, tuple[Any, Manifest]] = WeakKeyDictionary()
_lock = threading.Lock()


def manifest_of(model: torch.nn.Module) -> Manifest:
    """The manifest of a model's weights as they are now.

    It is kept, and computed anew when a tensor was replaced or written to through torch. What
    changes memory behind torch's back, or through ``.data``, is not seen; `forget` helps.
    """
    tensors = tensors_of(model)
    state = tuple((name, t.data_ptr(), t.shape, _version(t)) for name, t in tensors.items())
    with _lock:
        found = _known.get(model)
        if found is not None and found[0] == state:
            return found[1]
        with ThreadPoolExecutor(_THREADS) as pool:
            leaves = tuple(pool.map(leaf_of, tensors.keys(), tensors.values()))
        root = root_of([bytes.fromhex(leaf.hash) for leaf in leaves]).hex()
        manifest = Manifest(root, leaves)
        _known[model] = state, manifest
    return manifest


def forget(model: torch.nn.Module) -> None:
    """The next `manifest_of` hashes the weights again."""
    with _lock:
        _known.pop(model, None)


def _version(tensor: torch.Tensor) -> int:
    """How often torch wrote to a tensor; those made in inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version
