"""Serving a request that vLLM has recorded again, by an engine of its own, among random ones.

The engine keeps receipts itself, so that what is compared was made in the same way.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from samebits.errors import ReceiptError
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
from samebits.guard.receipts.sums import Running

#: What the engine's process is told before vLLM is imported, unless it is told otherwise.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine computes in this process
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
#: Entries of a receipt's `sampling` that are no arguments, or that end a text by its letters.
_LEFT_OUT = ("lora", "stop", "structured_outputs")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def replay(
    source: Source,
    receipt: Receipt,
    identity: Identity,
    path: str | Path | None = None,
    *,
    company: int = 7,
    seed: int = 0,
    allow: Sequence[str] = (),
) -> Replay:
    """Serves a request again among `company` random ones, and alone, and compares.

    The answer is generated token by token; then one pass over prompt and recorded answer says
    where bits part. Call it in a process that has no engine yet.

    Args:
        source: the ledger.
        path: folder or name of the model; where the receipt says if None.
        seed: of the company.
        allow: fields of the identity that may differ.

    Raises:
        ReceiptError: vLLM or the model is not there; another model, plan, release or machine made
            the receipt; it holds too little to run the request again.
    """
    where = str(path or identity.source)
    if not where:
        raise ReceiptError("the receipt does not say where its model is: give --model PATH")
    for name in ("lora", "structured_outputs"):
        if receipt.sampling.get(name):
            raise ReceiptError(f"{name}: the receipt names it, and does not hold it")
    with _engine(where, source, receipt, identity, company) as (llm, steps):
        mine, _ = steps.identity()
        manifest = manifest_of(steps.model)
        notes = require_same_identity(source, identity, mine, manifest, allow=allow)
        notes = [f"allowed: {text}" for text in notes]
        if mine.places != identity.places:
            raise ReceiptError("places: checksums were taken in other places than this vLLM has")
        vocabulary = llm.llm_engine.model_config.get_vocab_size()
        rows = neighbours(receipt, company, vocabulary, random.Random(seed))
        at = rows.index(receipt.input)
        again, ran = _served(llm, steps, rows, at, receipt)
        outcome: dict[str, Any] = {"token": first_difference(receipt.output, again.output)}
        compared = ["tokens"]
        if receipt.logprobs is not None:
            compared.append("logprobs")
            outcome["logprob"] = first_difference(receipt.logprobs, again.logprobs)
        if receipt.sums:
            compared.append("sums")
            outcome |= _places(llm, steps, rows, at, receipt, _sums(ran, receipt)[-1])
    if level_of(identity) == "layers" and outcome.get("place") is not None:
        notes.append('receipts with sums="operations" name the operation, too')
    return Replay(company=company, compared=tuple(compared), notes=tuple(notes), **outcome)


@contextmanager
def _engine(
    where: str, source: Source, receipt: Receipt, identity: Identity, company: int
) -> Iterator[tuple[Any, Any]]:
    """An engine with samebits, and what it computes."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM

        import samebits.integrations.vllm as plugin
        from samebits.integrations.vllm import receipts, workers
    except ImportError as error:
        raise ReceiptError(f"engine: the receipt is of vLLM, which is not here: {error}") from None
    if workers.equipped():
        raise ReceiptError("this process has an engine already: replay in one of its own")
    plugin.register()
    longest = 2 * len(receipt.input) + len(receipt.output) + 1
    folder = Path(where)
    with tempfile.TemporaryDirectory() as scratch:
        options = {
            "receipts": {"path": str(Path(scratch, "receipts")), "sums": level_of(identity)},
            "tp_invariant": "tp_invariant" in identity.model or None,
        }
        words = not folder.is_dir() or any((folder / name).exists() for name in _TOKENIZERS)
        try:
            llm = LLM(
                model=where, skip_tokenizer_init=not words, dtype=stored_dtype(source, identity),
                max_model_len=max(64, longest), max_num_seqs=company + 1, enforce_eager=True,
                enable_prefix_caching=False, disable_log_stats=True,
                kv_cache_dtype=identity.model.get("kv_cache", "auto"),
                additional_config={"samebits": options},
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ReceiptError(f"model {where}: {error}") from None
        steps = receipts.current()
        steps.attach(_model(llm))
        try:
            yield llm, steps
        finally:
            steps.recorder.close()


def _model(llm: Any) -> Any:
    (model,) = llm.apply_model(lambda model: model)
    return model


def _served(
    llm: Any, steps: Any, rows: list[list[int]], at: int, receipt: Receipt, *, tokens: int = 0
) -> tuple[Receipt, Running]:
    """Row `at` of a batch: its receipt, and all that is known of it.

    Args:
        tokens: length of the answers; 0: the recorded answer's.
    """
    from vllm import SamplingParams

    length = tokens or len(receipt.output)
    given = {k: v for k, v in receipt.sampling.items() if k not in _LEFT_OUT}
    given["min_tokens"] = min(given.get("min_tokens", 0), length)
    bias = given.get("logit_bias")
    if bias:
        given["logit_bias"] = {int(k): v for k, v in bias.items()}
    mine = SamplingParams(**(given | {"max_tokens": length, "seed": receipt.seed}))
    other = SamplingParams(max_tokens=length, ignore_eos=True, temperature=0.9, detokenize=False)
    mine.detokenize = False
    steps.kept = []
    llm.generate(
        [{"prompt_token_ids": row} for row in rows],
        [mine if i == at else other for i in range(len(rows))],
        use_tqdm=False,
    )
    found: tuple[Receipt, Running] = next(x for x in steps.kept if x[0].input == rows[at])
    steps.kept = None
    return found


def _sums(running: Running, receipt: Receipt) -> list[int]:
    """Checksums over the positions that the receipt covers."""
    assert running.rows is not None
    first = len(receipt.input) - 1
    table, _ = running.rows.table(first, first + len(receipt.output))
    covered = np.zeros(len(table), bool)
    for a, b in receipt.covered:
        covered[a:b] = True
    sums = table[covered].sum(0, dtype=np.int64)
    return [*(int(x) for x in sums[:-1]), int(table[:, -1].sum(dtype=np.int64))]


def _places(
    llm: Any, steps: Any, rows: list[list[int]], at: int, receipt: Receipt, heads: int
) -> dict[str, Place | None]:
    """Where the recorded run, and where this machine's runs, part first.

    Args:
        heads: checksum of the logits that were generated in company.
    """
    row = [*receipt.input, *receipt.output[:-1]]
    together = [*rows[:at], row, *rows[at + 1 :]]
    company = _sums(_served(llm, steps, together, at, receipt, tokens=1)[1], receipt)
    alone = _sums(_served(llm, steps, [row], 0, receipt, tokens=1)[1], receipt)
    kinds = {name: type(module).__name__ for name, module in steps.model.named_modules()}
    places, order = steps.listener.places, steps.listener.order
    one = _served(llm, steps, [receipt.input], 0, receipt)[1]
    company[-1], alone[-1] = heads, _sums(one, receipt)[-1]
    return {
        "place": first_place(receipt.sums, company, places, order, kinds),
        "here": first_place(company, alone, places, order, kinds),
    }
