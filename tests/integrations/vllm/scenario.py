"""Runs one vLLM engine and prints what it generated, as JSON: a process of its own, so that the
switch and the plugin are as a user would have them.

    python scenario.py < request.json

The request has `engine` (arguments of ``vllm.LLM``) and `batches`, a list of lists of requests:
`prompt` (token ids), `options` (of ``SamplingParams``), `adapter` (a folder). The answer has, for
each request, `tokens`, `logprobs` as hexadecimal bytes of fp32 and the `likeliest` ids of each
step; and, where the engine keeps statistics, how many `preemptions` there were.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"), HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_DO_NOT_TRACK="1",
)  # fmt: skip
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def hexadecimal(x: float) -> str:
    return struct.pack("<f", x).hex()


def main() -> None:
    request = json.load(sys.stdin)
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(**request["engine"])
    adapters: dict[str, Any] = {}

    def adapter(folder: str | None) -> Any:
        if folder is None:
            return None
        if folder not in adapters:
            adapters[folder] = LoRARequest(Path(folder).name, len(adapters) + 1, folder)
        return adapters[folder]

    answers = []
    for batch in request["batches"]:
        outputs = llm.generate(
            [{"prompt_token_ids": r["prompt"]} for r in batch],
            [SamplingParams(**r["options"]) for r in batch],
            lora_request=[adapter(r.get("adapter")) for r in batch],
            use_tqdm=False,
        )
        answers.append([answer(output) for output in outputs])
    stats = getattr(sys.modules.get("samebits"), "status", None)
    hits = stats().hits if stats is not None else {}
    found = {"answers": answers, "hits": hits, "facts": facts()}
    if not request["engine"].get("disable_log_stats"):
        counts = [m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions"]
        found["preemptions"] = sum(counts)
    print("\nANSWER " + json.dumps(found))


def facts() -> dict[str, Any]:
    """What is replaced in this process."""
    linear = sys.modules.get("vllm.model_executor.layers.linear")
    found = {"samebits": "samebits" in sys.modules}
    if linear is not None:
        found["linear"] = linear.UnquantizedLinearMethod.apply.__module__
    return found


def answer(output: Any) -> dict[str, Any]:
    done = output.outputs[0]
    steps = zip(done.token_ids, done.logprobs or [], strict=False)
    found = {
        "tokens": list(done.token_ids),
        "logprobs": [hexadecimal(of_step[token].logprob) for token, of_step in steps],
        "likeliest": [sorted(of_step) for of_step in done.logprobs or []],
        "cached": output.num_cached_tokens,
    }
    if output.prompt_logprobs is not None:
        ids = output.prompt_token_ids
        found["prompt"] = [
            hexadecimal(of_step[token].logprob)
            for token, of_step in zip(ids, output.prompt_logprobs, strict=True)
            if of_step is not None
        ]
    return found


if __name__ == "__main__":
    main()
