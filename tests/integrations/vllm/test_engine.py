"""A real vLLM engine on a CPU: tokens and logprob bits, alone and in company."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_adapter
from vllm_engines import (
    COMPANY,
    GREEDY,
    HAS_VLLM,
    LENGTH,
    PENALISED,
    SEEDED,
    Engine,
    bits,
    company,
    prompt,
    request,
)

from samebits import plan

pytestmark = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")

#: Imported by every process that starts: the second rank finds another file under a name.
OTHER_FILE = """
import multiprocessing, pathlib

read = pathlib.Path.read_bytes

def read_bytes(self):
    second = multiprocessing.current_process().name.endswith("-1")
    return read(self.with_name("other.json") if second and self.name == "plan.json" else self)

pathlib.Path.read_bytes = read_bytes
"""


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "qwen3_moe"])
def test_a_request_has_the_same_bits_alone_and_among_63_others(
    engine: Engine, models: Any, kind: str
) -> None:
    rng = random.Random(1)
    needles = [request(prompt(rng, 137), options) for options in (GREEDY, SEEDED, PENALISED)]
    batches = [b for needle in needles for b in ([needle], company(rng, needle, 63))]
    # Prompts are chunked at 256 tokens a step; in a cache of 3,200 tokens requests wait and are
    # preempted.
    answers = engine.run(
        models(kind), batches, block_size=32, num_gpu_blocks_override=100,
        enable_prefix_caching=False,
    )["answers"]  # fmt: skip
    for alone, among in zip(answers[::2], answers[1::2], strict=True):
        assert len(bits(alone[0])) == LENGTH
        assert bits(alone[0]) == bits(among[31])


def test_stock_does_not_have_the_same_bits(engine: Engine, models: Any) -> None:
    """Else the test above proves nothing. (Stock cannot draw with seeds in chunks on a CPU.)"""
    rng = random.Random(1)
    needles = [request(prompt(rng, length), GREEDY) for length in (137, 60, 99)]
    batches = [b for n in needles for b in ([n], company(rng, n, 63, options=(GREEDY,)))]
    answers = engine.run(models("qwen3"), batches, asked=False)["answers"]
    pairs = zip(answers[::2], answers[1::2], strict=True)
    assert any(bits(alone[0]) != bits(among[31]) for alone, among in pairs)


def test_prefill_decode_and_prefix_hits_have_the_same_bits(engine: Engine, models: Any) -> None:
    rng = random.Random(2)
    ids = prompt(rng, 200)
    needle = request(ids, GREEDY)
    first = engine.run(
        models("qwen3"), [[needle], [needle], company(rng, needle, 20)], block_size=32,
        enable_prefix_caching=True,
    )["answers"]  # fmt: skip
    assert first[0][0]["cached"] == 0 and first[1][0]["cached"] >= 128
    assert bits(first[0][0]) == bits(first[1][0]) == bits(first[2][10])
    everything = request(ids + first[0][0]["tokens"], GREEDY | {"prompt_logprobs": 0})
    answers = [
        engine.run(
            models("qwen3"), [[everything]], enable_prefix_caching=False,
            max_num_batched_tokens=budget,
        )["answers"]
        for budget in (64, 1024)
    ]  # fmt: skip
    prefilled = [a[0][0]["prompt"] for a in answers]
    assert prefilled[0] == prefilled[1]
    assert prefilled[0][-LENGTH:] == first[0][0]["logprobs"]


def test_drafts_change_no_token_and_no_bit(engine: Engine, models: Any) -> None:
    rng = random.Random(3)
    half = prompt(rng, 40)
    penalised = {k: v for k, v in PENALISED.items() if k != "min_p"}  # vLLM takes none with drafts
    needles = [request(half * 3, options) for options in (GREEDY, SEEDED, penalised)]
    plain = engine.run(models("qwen3"), [[n] for n in needles])["answers"]
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    others = COMPANY[:4]
    batches = [b for n in needles for b in ([n], company(rng, n, 15, others))]
    drafted = engine.run(models("qwen3"), batches, speculative_config=speculative)["answers"]
    for index, alone in enumerate(plain):
        assert bits(alone[0]) == bits(drafted[2 * index][0]) == bits(drafted[2 * index + 1][7])


def test_adapters_of_neighbours_change_nothing(engine: Engine, models: Any, tmp_path: Path) -> None:
    adapters = [str(write_adapter(tmp_path / f"adapter{i}", i)) for i in range(3)]
    rng = random.Random(4)
    ids = prompt(rng, 90)
    needles = [request(ids, SEEDED), request(ids, SEEDED, adapter=adapters[0])]
    batches = []
    for needle in needles:
        crowd = company(rng, needle, 20)
        for i, other in enumerate(crowd):
            if i != 10 and i % 4:
                other["adapter"] = adapters[i % 3]
        batches += [[needle], crowd]
    answers = engine.run(
        models("qwen2"), batches, enable_lora=True, max_loras=3, max_lora_rank=8
    )["answers"]  # fmt: skip
    assert bits(answers[0][0]) == bits(answers[1][10])
    assert bits(answers[2][0]) == bits(answers[3][10])
    assert bits(answers[0][0]) != bits(answers[2][0])


def test_another_process_and_compilation_give_the_same_bits(engine: Engine, models: Any) -> None:
    rng = random.Random(5)
    needle = request(prompt(rng, 137), SEEDED)
    eager = engine.run(models("qwen3"), [[needle]])["answers"]
    process = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    spawned = engine.run(
        models("qwen3"), [[needle]], asked=False, environment=process,
        additional_config={"samebits": True},
    )["answers"]  # fmt: skip
    compiled = engine.run(
        models("qwen3"), [[needle], company(rng, needle, 5)], enforce_eager=False,
        compilation_config={"mode": 3},
    )["answers"]  # fmt: skip
    assert bits(eager[0][0]) == bits(spawned[0][0]) == bits(compiled[0][0])
    assert bits(compiled[1][2]) == bits(eager[0][0])


def test_installed_and_not_asked_for_it_has_no_effect(engine: Engine, models: Any) -> None:
    rng = random.Random(6)
    needle = request(prompt(rng, 60), GREEDY)
    installed = engine.run(models("qwen2"), [[needle]], asked=False)
    without = Engine(Path("/nonexistent")).run(models("qwen2"), [[needle]], asked=False)
    assert installed["answers"] == without["answers"]
    assert (
        installed["facts"]["linear"]
        == without["facts"]["linear"]
        == ("vllm.model_executor.layers.linear")
    )
    assert not any(installed["hits"].values())


def test_what_is_not_covered_is_refused_with_all_reasons(engine: Engine, models: Any) -> None:
    batches = [[request([5, 6, 7], GREEDY)]]
    options = {"logprobs_mode": "processed_logprobs", "kv_cache_dtype": "fp8"}
    refused = engine.process(models("qwen3"), batches, asked=True, environment={}, **options)
    assert refused.returncode != 0
    assert "logprobs_mode='processed_logprobs'" in refused.stderr
    assert "kv_cache_dtype='fp8'" in refused.stderr
    del options["kv_cache_dtype"]
    warned = engine.process(
        models("qwen3"), batches, asked=False, environment={"VLLM_LOGGING_LEVEL": "INFO"},
        additional_config={"samebits": {"policy": "warn"}}, **options,
    )  # fmt: skip
    assert warned.returncode == 0, warned.stderr[-3000:]
    assert "promises nothing" in warned.stdout + warned.stderr


@pytest.mark.parametrize(("kind", "kv_heads"), [("qwen3", 2), ("qwen3_moe", 4), ("qwen2_moe", 2)])
def test_two_and_four_ranks_give_the_bits_of_one(
    engine: Engine, models: Any, kind: str, kv_heads: int
) -> None:
    """Of two KV heads four ranks hold each twice; of four, each rank holds its own."""
    model = models(kind, hidden_size=512, num_attention_heads=8, num_key_value_heads=kv_heads)
    rng = random.Random(8)
    greedy, seeded = (request(prompt(rng, 100), options) for options in (GREEDY, SEEDED))
    crowd = [*company(rng, greedy, 6, (GREEDY, SEEDED, PENALISED)), seeded]
    found = []
    for ranks in (1, 2, 4):
        answers = engine.run(
            model, [[greedy], [seeded], crowd], tensor_parallel_size=ranks,
            enable_expert_parallel=kind.endswith("_moe"),
            environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1|0|1"[: 2 * ranks - 1]},
            additional_config={"samebits": {"tp_invariant": True}},
        )["answers"]  # fmt: skip
        found.append([[bits(answer) for answer in batch] for batch in answers])
    assert found[0][0][0] == found[0][2][3] and found[0][1][0] == found[0][2][-1]
    assert found[0] == found[1] == found[2]


def test_a_rank_with_another_plan_stops_the_engine(
    engine: Engine, models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, weight in (("plan.json", (64, 64)), ("other.json", (96, 64))):
        plan.build([weight], device="cpu").save(tmp_path / name)
    (tmp_path / "sitecustomize.py").write_text(OTHER_FILE)
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    stopped = engine.process(
        models("qwen2"), [[request([5, 6, 7], GREEDY)]], asked=False,
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, tensor_parallel_size=2,
        additional_config={"samebits": {"plan": str(tmp_path / "plan.json")}},
    )  # fmt: skip
    said = [x for x in (stopped.stdout + stopped.stderr).splitlines() if "PlanError: the" in x]
    assert stopped.returncode != 0
    assert all("different bits: contracts and schedules is" in line for line in said)
    assert {rank for rank in ("TP0", "TP1") if any(rank in line for line in said)} == {"TP0", "TP1"}
