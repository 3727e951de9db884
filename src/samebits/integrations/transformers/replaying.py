"""Serving a recorded request again, among requests that are drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from samebits.errors import ReceiptError
from samebits.guard.receipts.identity import identity_of
from samebits.guard.receipts.merkle import manifest_of
from samebits.guard.receipts.reading import Source
from samebits.guard.receipts.record import Identity, Receipt
from samebits.guard.receipts.replay import (
    Place,
    Replay,
    first_difference,
    first_place,
    level_of,
    neighbours,
    require_same_identity,
    stored_dtype,
)
from samebits.guard.receipts.sums import Listener, row_sums
from samebits.integrations.transformers.receipts import OPTIONS, Watch, listener_of


def load(source: Source, identity: Identity, path: str | Path | None = None) -> Any:
    """The model of a receipt, on the kind of device that it ran on.

    Args:
        path: a folder or name for ``from_pretrained``; where the receipt says if None.

    Raises:
        ReceiptError: nobody knows where the model is, or it cannot be loaded.
    """
    where = str(path or identity.source)
    if not where:
        raise ReceiptError("the receipt does not say where its model is: give --model PATH")
    dtype = getattr(torch, stored_dtype(source, identity))
    device = "cpu" if identity.device.get("class") == "cpu" else "cuda"
    try:
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ReceiptError(f"model {where}: {error}") from None
    return model.to(device).eval().requires_grad_(False)


def replay(
    model: Any,
    source: Source,
    receipt: Receipt,
    identity: Identity,
    *,
    company: int = 7,
    seed: int = 0,
    allow: Sequence[str] = (),
) -> Replay:
    """Serves a request again among `company` random ones and compares with its receipt.

    The request runs three times: generated token by token in company; in one pass over prompt and
    recorded answer in company; and the same alone. The last two say where bits part.

    Args:
        model: with samebits enabled, as when the receipt was made.
        source: the ledger.
        seed: of the company.
        allow: fields of the identity that may differ.

    Raises:
        ReceiptError: another model, plan, release or machine made the receipt, or it holds too
            little to run the request again.
    """
    if identity.engine != "transformers":
        raise ReceiptError(f"engine: the receipt is of {identity.engine}, this is transformers")
    if receipt.sampling.get("do_sample") and receipt.seed is None:
        raise ReceiptError("seed: the receipt has none, and its tokens were drawn")
    level = level_of(identity)
    listener = listener_of(model, level)
    places = listener.places if listener else ()
    mine, _ = identity_of(model, engine="transformers", places=places)
    notes = require_same_identity(source, identity, mine, manifest_of(model), allow=allow)
    notes = [f"allowed: {text}" for text in notes]
    if places != identity.places:
        raise ReceiptError("places: checksums were taken in other places than this release takes")
    vocabulary = model.config.get_text_config().vocab_size
    rows = neighbours(receipt, company, vocabulary, random.Random(seed))
    at = rows.index(receipt.input)
    again = _generated(model, receipt, rows, at, level)
    outcome: dict[str, Any] = {"token": first_difference(receipt.output, again["output"])}
    compared = ["tokens"]
    beams = int(receipt.sampling.get("num_beams") or 1) > 1
    if receipt.logprobs is not None and not beams:
        compared.append("logprobs")
        outcome["logprob"] = first_difference(receipt.logprobs, again["logprobs"])
    if receipt.sums and listener is not None and not beams:
        compared.append("sums")
        outcome |= _places(model, receipt, rows, at, listener, again["sums"])
    if level == "layers" and outcome.get("place") is not None:
        notes.append('receipts with sums="operations" name the operation, too')
    return Replay(company=company, compared=tuple(compared), notes=tuple(notes), **outcome)


def _padded(rows: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width)
    for i, row in enumerate(rows):
        at = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, at], mask[i, at] = torch.tensor(row), 1
    return ids, mask.long()


def _generated(
    model: Any, receipt: Receipt, rows: list[list[int]], at: int, level: str
) -> dict[str, Any]:
    """The request's answer, token by token, in company."""
    ids, mask = _padded(rows, "left")
    options = {k: v for k, v in receipt.sampling.items() if k in OPTIONS}
    options |= {"max_new_tokens": len(receipt.output), "num_return_sequences": 1}
    options.pop("max_length", None)
    ends = options.get("eos_token_id")
    config = GenerationConfig(**options, pad_token_id=0 if ends != 0 else 1)
    extra: dict[str, Any] = {}
    if options.get("do_sample"):
        extra["seeds"] = [receipt.seed if i == at else i for i in range(len(rows))]
    watch = Watch(model, mask.bool(), level)
    device = model.device
    beams = int(options.get("num_beams") or 1) > 1
    with torch.no_grad():
        if beams:
            out = model.generate(
                ids.to(device), attention_mask=mask.to(device), generation_config=config, **extra
            )
        else:
            with watch.watching():
                out = model.generate(
                    ids.to(device), attention_mask=mask.to(device), generation_config=config,
                    **extra,
                )  # fmt: skip
            watch.settle(out.shape[1] - 1, out[:, -1:])
    width, count = ids.shape[1], len(receipt.output)
    output = out[at, width : width + count].tolist()
    logprobs = [watch.logprobs[at].get(width + i, -1) for i in range(len(output))]
    first = len(receipt.input) - 1
    sums = watch.rows[at].total(first, first + count)[0] if watch.listener else []
    return {"output": output, "logprobs": logprobs, "sums": sums}


def _places(
    model: Any,
    receipt: Receipt,
    rows: list[list[int]],
    at: int,
    listener: Listener,
    generated: list[int],
) -> dict[str, Place | None]:
    """Where the recorded run, and where this machine's runs, part first."""
    row = [*receipt.input, *receipt.output[:-1]]
    together = [*rows[:at], row, *rows[at + 1 :]]
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    in_company = _forced(model, together, at, receipt, listener)
    found = {
        "place": first_place(
            receipt.sums, in_company, listener.places, listener.order, kinds
        )
    }  # fmt: skip
    fine = listener_of(model, "operations") or listener
    company = _forced(model, together, at, receipt, fine)
    alone = _forced(model, [row], 0, receipt, fine)
    found["here"] = first_place(company, alone, fine.places, fine.order, kinds)
    whole = not receipt.covered or receipt.covered == [(0, len(row))]
    if found["place"] is None and whole and generated != in_company:
        found["place"] = first_place(
            receipt.sums, generated, listener.places, listener.order, kinds
        )
    return found


@torch.no_grad()
def _forced(
    model: Any, rows: list[list[int]], at: int, receipt: Receipt, listener: Listener
) -> list[int]:
    """Checksums over the receipt's covered positions, from one pass over prompt and answer."""
    ids, mask = _padded(rows, "right")
    device = model.device
    listener.begin()
    with listener.listening():
        logits = model(
            input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False
        ).logits
    table = listener.take(ids.numel()).reshape(*ids.shape, -1)[at]
    first, stop = len(receipt.input) - 1, len(receipt.input) - 1 + len(receipt.output)
    covered = np.zeros(ids.shape[1], bool)
    for a, b in receipt.covered:
        covered[a:b] = True
    sums = table[covered].sum(0, dtype=np.int64)
    heads = row_sums(logits[at, first:stop]).sum().item()
    return [*(int(x) for x in sums), int(heads)]
