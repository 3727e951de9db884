"""Receipts of a real vLLM engine on a CPU: alone, in company, from the cache, with drafts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm_engines import (
    COMPANY,
    GREEDY,
    HAS_VLLM,
    LENGTH,
    SEEDED,
    Engine,
    company,
    prompt,
    request,
)

from samebits.errors import SettingError
from samebits.guard.receipts import Receipt, verify
from samebits.guard.receipts.reading import identity_of, open_ledger
from samebits.guard.receipts.record import decode
from samebits.integrations.vllm.options import requested

CLI = "from samebits.cli import main; main()"
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")


def kept(engine: Engine, model: Path, batches: list[Any], path: Path, **options: Any) -> Any:
    """The answers, and the receipts in order of writing."""
    config = {"samebits": {"receipts": {"path": str(path), **options.pop("receipts", {})}}}
    answers = engine.run(
        model, batches, asked=False, additional_config=config, num_gpu_blocks_override=200,
        block_size=32, **options,
    )["answers"]  # fmt: skip
    source = open_ledger(path)
    found = [decode(body) for _, _, body in source.rows()]
    identity = identity_of(source, found[-1])  # type: ignore[arg-type]
    source.close()
    assert verify(path).whole
    return answers, found, identity


def own(receipt: Receipt) -> tuple[Any, ...]:
    return receipt.input, receipt.output, receipt.logprobs, receipt.sums, receipt.covered


def word(hexadecimal: str) -> int:
    return int.from_bytes(bytes.fromhex(hexadecimal), "little")


@needs_vllm
def test_receipts_are_the_requests_own(engine: Engine, models: Any, tmp_path: Path) -> None:
    rng = random.Random(5)
    needles = [request(prompt(rng, 137), options) for options in (GREEDY, SEEDED)]
    batches = [b for needle in needles for b in ([needle], company(rng, needle, 15, COMPANY))]
    answers, found, identity = kept(
        engine, models("qwen3"), batches, tmp_path / "r", enable_prefix_caching=False
    )
    assert len(found) == sum(map(len, batches))
    for needle, alone, options in zip(needles, answers[::2], (GREEDY, SEEDED), strict=True):
        mine = [r for r in found if r.input == needle["prompt"]]
        assert len(mine) == 2 and own(mine[0]) == own(mine[1])
        assert mine[0].output == alone[0]["tokens"]
        assert mine[0].logprobs == [word(x) for x in alone[0]["logprobs"]]
        assert mine[0].seed == options.get("seed")
        assert mine[0].covered == [(0, 137 + LENGTH - 1)] and all(mine[0].sums)
    assert identity.engine == "vllm" and len(identity.places) == 3
    assert any(name.startswith("linear") for name in identity.contracts)


@needs_vllm
def test_cached_prompts_and_drafts(engine: Engine, models: Any, tmp_path: Path) -> None:
    rng = random.Random(6)
    row = prompt(rng, 40) * 3
    one = [request(row, GREEDY)]
    _, found, _ = kept(
        engine, models("qwen3"), [one, one], tmp_path / "r", enable_prefix_caching=True
    )
    first, second = found
    assert first.covered == [(0, 139)] and second.covered == [(96, 139)]
    assert own(first)[:3] == own(second)[:3] and first.sums[-1] == second.sums[-1]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    _, drafted, _ = kept(
        engine, models("qwen3"), [one], tmp_path / "d", enable_prefix_caching=False,
        speculative_config=drafts, receipts={"sums": "layers"},
    )  # fmt: skip
    assert own(drafted[0]) == own(first)


@pytest.mark.parametrize("value", [3, {"sums": "layers"}, {"path": "r", "colour": 1}])
def test_receipts_that_are_not_understood(value: Any) -> None:
    with pytest.raises(SettingError, match="neither a path nor a table"):
        requested({"samebits": {"receipts": value}})


@needs_vllm
def test_replay(engine: Engine, models: Any, tmp_path: Path) -> None:
    """A receipt is served again by an engine of its own; where a run went wrong is named."""
    rng, path = random.Random(9), tmp_path / "r"
    one, two = (request(prompt(rng, n), o) for n, o in ((41, SEEDED), (17, GREEDY)))
    kept(
        engine, models("qwen3"), [[one], [two]], path, enable_prefix_caching=False,
        receipts={"sums": "operations"}, script="faulty_scenario.py",
        environment={"FAULT_AT": "32", "SAMEBITS_GUARD": "off"},
    )  # fmt: skip
    right, wrong = (replayed(path, which) for which in ("1", "2"))
    assert right == (0, {"company": 7, "compared": ["tokens", "logprobs", "sums"], "here": None})
    status, found = wrong
    assert status == 1 and found["here"] is None
    assert found["place"]["layer"] == "model.layers.0"
    assert found["place"]["operation"].startswith("model.layers.0.mlp.down_proj")


def replayed(path: Path, which: str) -> tuple[int, dict[str, Any]]:
    """Status and result of ``samebits replay``; without entries that are empty."""
    done = subprocess.run(
        [sys.executable, "-c", CLI, "replay", str(path), which, "--json"],
        capture_output=True, text=True, timeout=540, check=False,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    line = next((x for x in done.stdout.splitlines() if x.startswith("{")), None)
    assert line is not None, done.stderr[-4000:]
    found = json.loads(line)
    return done.returncode, {k: v for k, v in found.items() if v or k == "here"}
