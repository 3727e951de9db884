"""The root over a model's weights: every bit, name, dtype and shape is in it."""

from __future__ import annotations

import hashlib
import json

import msgspec
import pytest
import torch

from samebits.guard.receipts.merkle import Manifest, forget, leaf_of, manifest_of, root_of
from samebits.guard.receipts.record import address


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    )


def test_the_definition() -> None:
    t = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    head = json.dumps(["w", "float32", [2, 3]], separators=(",", ":")).encode()
    wanted = hashlib.sha256(b"\0" + head + b"\n" + t.numpy().tobytes()).hexdigest()
    assert leaf_of("w", t).hash == leaf_of("w", t.t().contiguous().t()).hash == wanted
    a, b, c = (hashlib.sha256(x).digest() for x in (b"a", b"b", b"c"))
    ab = hashlib.sha256(b"\1" + a + b).digest()
    assert root_of([a]) == a and root_of([]) == bytes(32)
    assert root_of([a, b, c]) == hashlib.sha256(b"\1" + ab + c).digest()


def test_everything_is_in_a_leaf() -> None:
    t = torch.ones(2, 2)
    other = t.clone()
    other.view(torch.int32)[1, 1] ^= 1
    leaves = {
        leaf_of(*pair).hash
        for pair in (
            ("w", t), ("v", t), ("w", other), ("w", t.reshape(4)), ("w", t.view(torch.int32)),
            ("w", t.bfloat16()), ("w", -t),
        )
    }  # fmt: skip
    assert len(leaves) == 7
    assert leaf_of("w", torch.zeros(1)) != leaf_of("w", -torch.zeros(1))


def test_a_change_is_noticed_and_named() -> None:
    net = model()
    before = manifest_of(net)
    assert manifest_of(net) is before and manifest_of(model()) == before
    assert "1.running_mean" in {leaf.name for leaf in before.leaves}
    with torch.no_grad():
        net[2].weight[1, 1] += 1  # type: ignore[index]
    after = manifest_of(net)
    assert after.root != before.root and before.differences(after) == ["2.weight"]
    net[0] = torch.nn.Linear(4, 3, bias=False)  # type: ignore[index]
    assert manifest_of(net).differences(after) == ["0.bias", "0.weight"]


def test_what_is_written_behind_torchs_back_needs_forget() -> None:
    net = model()
    before = manifest_of(net)
    net[0].weight.data.numpy()[0, 0] += 1  # type: ignore[union-attr, operator]
    assert manifest_of(net) is before
    forget(net)
    assert manifest_of(net).differences(before) == ["0.weight"]


@pytest.mark.parametrize("size", [0, 1, (1 << 26) // 4 + 3])
def test_large_and_empty_tensors(size: int) -> None:
    t = torch.zeros(size)
    head = json.dumps(["w", "float32", [size]], separators=(",", ":")).encode()
    wanted = hashlib.sha256(b"\0" + head + b"\n" + bytes(4 * size)).hexdigest()
    assert leaf_of("w", t).hash == wanted


def test_a_manifest_is_an_object() -> None:
    found = manifest_of(model())
    assert msgspec.json.decode(found.body, type=Manifest) == found
    assert address(found.body) == address(manifest_of(model()).body)
