"""A request that is served again, compared with its receipt bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from samebits.errors import ReceiptError
from samebits.guard.receipts.identity import differences
from samebits.guard.receipts.merkle import Manifest
from samebits.guard.receipts.reading import Source
from samebits.guard.receipts.record import Identity, Receipt
from samebits.guard.receipts.sums import GIVEN, LOGITS

#: Fewest and most tokens of a random neighbour, as multiples of the request's own.
_NEIGHBOURS = 0.3, 1.5


class Place(msgspec.Struct, frozen=True):
    """Where results differ first.

    Attributes:
        layer: the layer's module, or "logits".
        operation: the operation in it, in words; None where nothing tells.
    """

    layer: str
    operation: str | None = None

    def __str__(self) -> str:
        return f"{self.layer}: {self.operation}" if self.operation else self.layer


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What serving a request again has shown.

    Attributes:
        company: requests that it was served with.
        token: first token of the answer that differs, or None.
        logprob: first token whose log-probability differs in a bit, or None.
        place: where checksums of the recorded run differ first from those of this one, or None.
        here: where results alone and in company differ first on this machine, or None.
        compared: what could be compared: "tokens", "logprobs", "sums".
        notes: what could not be told, and why.
    """

    company: int
    token: int | None = None
    logprob: int | None = None
    place: Place | None = None
    here: Place | None = None
    compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether everything that could be compared is the same, bit for bit."""
        found = (self.token, self.logprob, self.place, self.here)
        return all(x is None for x in found)

    def __str__(self) -> str:
        with_whom = f"in the company of {self.company} other requests"
        if self.same:
            return f"the same bits {with_whom}: {', '.join(self.compared)}" + self._notes()
        lines = [f"NOT the same {with_whom}:"]
        if self.token is not None:
            lines.append(f"  tokens differ from number {self.token} of the answer on")
        if self.logprob is not None:
            lines.append(f"  log-probabilities differ from number {self.logprob} of the answer on")
        if self.place is not None:
            lines.append(f"  the recorded run differs first in {self.place}")
        if self.here is not None:
            lines.append(f"  alone and in company differ on this machine, first in {self.here}")
        elif self.place is not None:
            lines.append(
                "  alone and in company agree on this machine: the recorded run was another one, "
                "or went wrong"
            )
        return "\n".join(lines) + self._notes()

    def _notes(self) -> str:
        return "".join(f"\n  note: {note}" for note in self.notes)


def require_same_identity(
    source: Source,
    recorded: Identity,
    mine: Identity,
    manifest: Manifest,
    *,
    allow: Sequence[str] = (),
) -> list[str]:
    """Refuses to compare what another model, plan or machine computed.

    Args:
        source: the ledger, which has the recorded weights' manifest.
        mine, manifest: of the model at hand.
        allow: fields that may differ ("device", "libraries.torch", ...).

    Returns:
        The differences that were allowed, in words.

    Raises:
        ReceiptError: other fields differ; all of them are named, and tensors by name.
    """
    found = differences(recorded, mine)
    allowed = tuple(name if "." in name else f"{name}." for name in allow)
    kept = [
        text for text in found
        if not (text.partition(":")[0] + ".").startswith(allowed or ("\0",))
        and text.partition(":")[0] not in allow
    ]  # fmt: skip
    if not kept:
        return found
    raw = source.object(recorded.manifest)
    if raw is not None and any(text.startswith("weights") for text in kept):
        names = msgspec.json.decode(raw, type=Manifest).differences(manifest)
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        kept.append(f"tensors that differ: {shown}")
    raise ReceiptError(
        "this is not what the receipt was made with:" + "".join(f"\n  {text}" for text in kept)
        + "\nUse the same, or allow a field to differ (--allow FIELD) to see what it changes"
    )  # fmt: skip


def stored_dtype(source: Source, identity: Identity) -> str:
    """The dtype that most of a model's weights have: "float32", "bfloat16" or "float16"."""
    raw = source.object(identity.manifest)
    if raw is None:
        return "float32"
    kinds = [leaf.dtype for leaf in msgspec.json.decode(raw, type=Manifest).leaves]
    floats = [kind for kind in kinds if kind in ("float32", "bfloat16", "float16")]
    return max(set(floats), key=floats.count, default="float32")


def neighbours(
    receipt: Receipt, count: int, vocabulary: int, draw: random.Random
) -> list[list[int]]:
    """The request's prompt and `count` others of random tokens and lengths, in random order."""
    size = len(receipt.input)
    low, high = (max(1, round(size * share)) for share in _NEIGHBOURS)
    rows = [
        [draw.randrange(vocabulary) for _ in range(draw.randint(low, max(low, high)))]
        for _ in range(count)
    ]
    rows.insert(draw.randint(0, count), list(receipt.input))
    return rows


def level_of(identity: Identity) -> str:
    """What a recorder's `sums` was, as its places tell."""
    if not identity.places:
        return "none"
    return "operations" if any(p.endswith(GIVEN) for p in identity.places) else "layers"


def first_difference(a: Sequence[int] | None, b: Sequence[int] | None) -> int | None:
    """The first place at which two sequences differ; None if they are the same or one is None."""
    if a is None or b is None:
        return None
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def first_place(
    a: Sequence[int],
    b: Sequence[int],
    places: Sequence[str],
    order: Sequence[int],
    kinds: dict[str, str],
) -> Place | None:
    """The first place, in order of execution, at which checksums differ.

    Args:
        a, b: checksums by place; empty ones are not compared.
        places: their names.
        order: columns in the order in which they were computed.
        kinds: class of each module by name.
    """
    if not a or not b:
        return None
    previous = ""
    for column in (*order, len(places) - 1):
        name = places[column]
        if a[column] != b[column]:
            return _place(name, previous, places, kinds)
        previous = name
    return None


def _place(name: str, previous: str, places: Sequence[str], kinds: dict[str, str]) -> Place:
    if name == LOGITS:
        return Place(LOGITS, f"the output layer, behind {previous}" if previous else None)
    module = name.removesuffix(GIVEN)
    layers = [p for p in places if module.startswith(f"{p}.")]
    layer = layers[0] if layers else module
    if not any(place.endswith(GIVEN) for place in places):
        return Place(layer)
    if name.endswith(GIVEN):
        before = previous.removesuffix(GIVEN) or "the model's input"
        return Place(layer, f"what is computed between {before} and {module}")
    if module == layer:
        return Place(layer, f"what is computed behind {previous.removesuffix(GIVEN)}")
    return Place(layer, f"{module} ({kinds.get(module, 'module')})")
