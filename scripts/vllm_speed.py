"""Throughput of vLLM on a CPU with the plugin against stock, in processor time.

    python scripts/vllm_speed.py [--model FOLDER] [--dtype bfloat16] [--turns 2]

Stock and plugin run in turns, each engine in a process of its own with one thread; of each shape
the best of several runs counts. Processor time, because other processes do not slow it down as they
do the clock. Without a model: SmolLM2-135M (`samebits.models.hub`). Prints a digest of all tokens
and logprobs of a run too: it must not change between two versions of samebits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

#: Requests, tokens of a prompt, tokens of an answer.
SHAPES = ((1, 32, 24), (8, 32, 16), (32, 32, 8), (4, 256, 2))
RUNS = 4
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}  # fmt: skip


def name(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} x {shape[1]} + {shape[2]}"


def measure(model: str, dtype: str) -> dict[str, Any]:
    """Seconds of processor time by shape, and the digest, in this process."""
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model, dtype=dtype, seed=0, max_model_len=1024, max_num_seqs=64,
        max_num_batched_tokens=2048, enforce_eager=True, disable_log_stats=True,
        enable_prefix_caching=False, skip_tokenizer_init=True,
    )  # fmt: skip
    torch.set_num_threads(1)
    rng, digest, seconds = random.Random(1), hashlib.sha256(), {}
    for shape in SHAPES:
        requests, prompt, answer = shape
        prompts = [
            {"prompt_token_ids": [rng.randrange(3, 49000) for _ in range(prompt)]}
            for _ in range(requests)
        ]
        options = SamplingParams(
            temperature=0.0, max_tokens=answer, ignore_eos=True, detokenize=False, logprobs=1
        )
        taken = []
        for _ in range(RUNS):
            start = time.process_time()
            outputs = llm.generate(prompts, options, use_tqdm=False)
            taken.append(time.process_time() - start)
        seconds[name(shape)] = min(taken[1:])
        for output in outputs:
            done = output.outputs[0]
            for token, scores in zip(done.token_ids, done.logprobs, strict=True):
                digest.update(f"{token} {scores[token].logprob.hex()} ".encode())
    return {"seconds": seconds, "digest": digest.hexdigest()[:16]}


def run(model: str, dtype: str, plugin: bool) -> dict[str, Any]:
    """`measure` in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "SAMEBITS"} | _QUIET
    if plugin:
        environment["SAMEBITS"] = "1"
    command = [sys.executable, __file__, "--model", model, "--dtype", dtype, "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder in the hub's format")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.model, given.dtype)))
        return
    if given.model is None:
        from samebits.models import hub

        given.model = str(hub.smollm2_folder())
    turns = [
        [run(given.model, given.dtype, plugin) for plugin in (False, True)]
        for _ in range(given.turns)
    ]
    for shape in map(name, SHAPES):
        stock, ours = (min(turn[i]["seconds"][shape] for turn in turns) for i in (0, 1))
        print(f"{shape:>12}: stock {stock:.3f} s, samebits {ours:.3f} s, {stock / ours:.2f}x")
    print("digest of samebits:", ", ".join(sorted({turn[1]["digest"] for turn in turns})))


if __name__ == "__main__":
    main()
