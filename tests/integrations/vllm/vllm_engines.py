"""Runs vLLM engines for tests, each in a process of its own, and makes requests for them."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from checkpoints import VOCABULARY

HAS_VLLM = importlib.util.find_spec("vllm") is not None
Request = dict[str, Any]
LENGTH = 20


class Engine:
    """Runs scenarios: `run` with the plugin asked for, `stock` with it installed and not asked."""

    def __init__(self, site: Path) -> None:
        self.site = site

    def run(
        self, model: Path, batches: list[list[Request]], *, asked: bool = True,
        environment: dict[str, str] | None = None, script: str = "scenario.py", **engine: Any,
    ) -> dict[str, Any]:  # fmt: skip
        finished = self.process(
            model, batches, asked=asked, environment=environment or {}, script=script, **engine
        )
        assert finished.returncode == 0, finished.stderr[-4000:]
        line = next(x for x in finished.stdout.splitlines() if x.startswith("ANSWER "))
        answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
        return answer

    def process(
        self, model: Path, batches: list[list[Request]], *, asked: bool,
        environment: dict[str, str], script: str = "scenario.py", **engine: Any,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        paths = [str(self.site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        env = {k: v for k, v in os.environ.items() if k != "SAMEBITS"}
        env |= {"PYTHONPATH": os.pathsep.join(paths)} | environment
        if asked:
            env["SAMEBITS"] = "1"
        arguments = {
            "model": str(model), "skip_tokenizer_init": True, "dtype": "bfloat16", "seed": 0,
            "max_model_len": 1024, "max_num_seqs": 64, "max_num_batched_tokens": 256,
            "enforce_eager": True, "disable_log_stats": True,
        } | engine  # fmt: skip
        return subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script))],
            input=json.dumps({"engine": arguments, "batches": batches}),
            capture_output=True, text=True, env=env, check=False, timeout=540,
        )  # fmt: skip


GREEDY: Request = {"temperature": 0.0}
SEEDED: Request = {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 50}
PENALISED: Request = {
    "temperature": 0.7, "seed": 9, "min_p": 0.02, "presence_penalty": 0.5,
    "repetition_penalty": 1.1, "frequency_penalty": 0.2,
}  # fmt: skip
COMPANY = (
    GREEDY,
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.5, "seed": 4},
    {"temperature": 0.9, "min_p": 0.1, "frequency_penalty": 0.3},
)


def prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(length)]


def request(ids: list[int], options: Request, **more: Any) -> Request:
    full = {"max_tokens": LENGTH, "min_tokens": LENGTH, "ignore_eos": True, "detokenize": False}
    return {"prompt": ids, "options": full | {"logprobs": 1} | options, **more}


def company(
    rng: random.Random, needle: Request, count: int, options: tuple[Request, ...] = COMPANY
) -> list[Request]:
    """The needle in the middle of `count` others of all kinds."""
    others = [
        request(prompt(rng, rng.randrange(3, 150)), rng.choice(options)) for _ in range(count)
    ]
    return [*others[: count // 2], needle, *others[count // 2 :]]


def bits(answer: Request) -> list[tuple[int, str]]:
    return list(zip(answer["tokens"], answer["logprobs"], strict=True))
