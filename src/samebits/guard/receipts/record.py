"""What a receipt holds, its canonical bytes, and the hash that chains it to the one before.

    h[0] = SHA-256("samebits receipts 1\\n" + header)
    h[n] = SHA-256(h[n-1] + n as 8 bytes, big-endian + body of record n)

Bodies are canonical JSON: keys sorted, no white space. What many records share (identities, lists
of weights, operands for an audit) is an *object*: stored once, and named in a body by the SHA-256
of its bytes, so that the chain covers it too.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

#: Raised when the meaning of a field or of the chain changes.
SCHEMA = 1
_START = f"samebits receipts {SCHEMA}\n".encode()
#: What decoding raises of bytes that are none of ours; the last: brackets, thousands deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first link of a chain.

    Attributes:
        schema: of the chain and its records.
        ledger: 32 random hexadecimal digits.
        created: Unix time in nanoseconds.
        key: which key signs the heads (`Key.name`); empty: none does.
    """

    schema: int
    ledger: str
    created: int
    key: str = ""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a chain: how many records there are and the hash of the last, hexadecimal."""

    sequence: int
    hash: str
    signature: str = ""

    def __str__(self) -> str:
        return f"{self.sequence}:{self.hash}"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What computed a request. Requests of one process and model share it (an object).

    Attributes:
        model: its class, the SHA-256 of its configuration, and options of the engine that decide
            bits where they are not the usual ones.
        source: where the model was loaded from, as its library says; a hint for `samebits replay`.
        weights: root of the Merkle tree over all tensors (`merkle.Manifest`).
        manifest: the object with the tree's leaves.
        plan: id of the plan in force.
        contracts: id of each operation's contract, by a name such as "linear 64x48 bf16".
        texts: canonical text of each contract, by id.
        device: class, name, serial (a GPU's UUID, a hash of a machine's id), driver, isa.
        libraries: versions by name.
        engine: which integration served the request, e.g. "transformers".
        places: where the receipts' `sums` were taken, in order of execution.
    """

    model: dict[str, str]
    source: str
    weights: str
    manifest: str
    plan: str
    contracts: dict[str, str]
    texts: dict[str, str]
    device: dict[str, str]
    libraries: dict[str, str]
    engine: str
    places: tuple[str, ...] = ()


class Receipt(msgspec.Struct, frozen=True, kw_only=True, tag="request", tag_field="kind"):
    """One finished request.

    Attributes:
        schema: version of these fields.
        request: the engine's name of the request.
        time: when it was finished, Unix time in nanoseconds, as the machine's clock says.
        identity: object with what computed it.
        input: token ids of the prompt.
        sampling: options that decide tokens (temperature, top_p, ...), as the engine names them.
        seed: of the draws; None for greedy decoding.
        output: token ids of the answer.
        logprobs: bits of fp32 log-probabilities of `output` under the raw logits; None if the
            engine did not compute them.
        sums: for each of the identity's places the sum, modulo 2^64 and as int64, of the results'
            integer views over all `covered` positions.
        covered: half-open ranges of positions (prompt and answer) that `sums` counts. Missing are
            those whose keys and values came from a prefix cache.
        finish: why it ended, in the engine's words.
        text: the prompt as text; only if the recorder was given a function that makes it.
        audit: objects with operands and results for `samebits audit`.
    """

    request: str
    time: int
    identity: str
    input: list[int]
    output: list[int]
    sampling: dict[str, Any] = {}
    seed: int | None = None
    logprobs: list[int] | None = None
    sums: list[int] = []
    covered: list[tuple[int, int]] = []
    finish: str = ""
    text: str | None = None
    audit: list[str] = []
    schema: int = SCHEMA


class Gap(msgspec.Struct, frozen=True, kw_only=True, tag="gap", tag_field="kind"):
    """Receipts that could not be written (``on_error="continue"``).

    Attributes:
        lost: how many.
        first, time: when the first and the last of them were due.
        reason: the first error.
    """

    lost: int
    first: int
    time: int
    reason: str
    schema: int = SCHEMA


class Incident(msgspec.Struct, frozen=True, kw_only=True, tag="incident", tag_field="kind"):
    """An event of the guard: a path or bits that were not the contract's, a replay, an alarm."""

    time: int
    event: dict[str, Any]
    schema: int = SCHEMA


Record = Receipt | Gap | Incident
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder(order="sorted")


def encode(value: Any) -> bytes:
    """Canonical JSON."""
    return _encoder.encode(value)


def decode(body: bytes) -> Record:
    """The record of a body.

    Raises:
        msgspec.DecodeError, msgspec.ValidationError: it is none of this schema.
    """
    return _decoder.decode(body)


def address(data: bytes) -> str:
    """The name of an object."""
    return hashlib.sha256(data).hexdigest()


def first_link(header: bytes) -> bytes:
    """h[0]."""
    return hashlib.sha256(_START + header).digest()


def link(previous: bytes, sequence: int, body: bytes) -> bytes:
    """h[sequence]."""
    return hashlib.sha256(previous + sequence.to_bytes(8, "big") + body).digest()
