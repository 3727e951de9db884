"""Runs vLLM engines for tests, each in a process of its own, and makes requests for them."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
        assert finished.returncode == 0, finished.stderr[-12000:]
        line = next(x for x in finished.stdout.splitlines() if x.startswith("ANSWER "))
        answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER "))
        return answer

    def process(
        self, model: Path, batches: list[list[Request]], *, asked: bool,
        environment: dict[str, str], script: str = "scenario.py", **engine: Any,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        command, given, env = self._start(model, batches, asked, environment, script, engine)
        return subprocess.run(
            command, input=given, capture_output=True, text=True, env=env, check=False, timeout=540,
        )  # fmt: skip

    def on_one_gpu(
        self, model: Path, batches: list[list[Request]], ranks: int, *, asked: bool = True,
        **engine: Any,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """What each of several ranks says that share a GPU and talk over NCCL.

        A launcher starts them, as torchrun would. NCCL refuses a GPU to two ranks of one host, so
        each has a host of its own; they talk by way of the network, and wait for each other's turns
        on the GPU.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        meet = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
        }  # fmt: skip
        engine = {
            "distributed_executor_backend": "external_launcher", "disable_custom_all_reduce": True,
            "tensor_parallel_size": ranks, "gpu_memory_utilization": 0.15,
            "kv_cache_memory_bytes": 1 << 30,
        } | engine  # fmt: skip
        with ThreadPoolExecutor(ranks) as pool:

            def run(rank: int) -> dict[str, Any]:
                own = {"RANK": str(rank), "NCCL_HOSTID": f"rank {rank}"}
                return self.run(model, batches, asked=asked, environment=meet | own, **engine)

            return list(pool.map(run, range(ranks)))

    def _start(
        self, model: Path, batches: list[list[Request]], asked: bool,
        environment: dict[str, str], script: str, engine: dict[str, Any],
    ) -> tuple[list[str], str, dict[str, str]]:  # fmt: skip
        """Command, input and environment of a process."""
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
        command = [sys.executable, str(Path(__file__).with_name(script))]
        return command, json.dumps({"engine": arguments, "batches": batches}), env


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
