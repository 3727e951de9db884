"""``samebits run``: transformers with our attention before anything of the user's is imported."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import small_models as models
import torch
from transformers.utils.import_utils import is_serve_available

CODE = """
import sys, torch
sys.path.insert(0, {here!r})
from small_models import decoder, pad, positions, prompts
import samebits
model, rows = decoder("llama", torch.float32), prompts([4, 19])
batch = pad(rows, "left")
def same():
    alone = model(torch.tensor([rows[0]])).logits[0]
    together = model(**batch, position_ids=positions(batch["attention_mask"])).logits[0, -4:]
    return torch.equal(alone, together)
print(model.config._attn_implementation, samebits.status().on, same())
model.set_attn_implementation("eager")
try:
    same()
except samebits.errors.UncoveredError:
    print("eager is refused")
samebits.disable()
print(same())
"""
SERVING = pytest.mark.skipif(
    not is_serve_available(), reason="the packages of transformers[serving] are not installed"
)


def launch(*command: str) -> list[str]:
    return [sys.executable, "-m", "samebits", "run", "--", *command]


def test_every_model_of_a_process_has_our_attention() -> None:
    code = CODE.format(here=str(Path(__file__).parent))
    result = subprocess.run(
        launch(sys.executable, "-c", code), capture_output=True, text=True, timeout=300
    )
    assert result.stdout.splitlines() == ["sdpa True True", "eager is refused", "False"], (
        result.stderr[-2000:]
    )


def save_model(home: Path) -> None:
    """A small model with a tokenizer of words, ready to be served."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    model = models.decoder("llama", torch.float32)
    model.generation_config.do_sample = True
    model.generation_config.eos_token_id = models.VOCABULARY - 1
    model.save_pretrained(home)
    words = {f"w{i}": i for i in range(models.VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w96")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(home)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
    return port


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2)
    except OSError:
        return False
    return True


@pytest.fixture(params=[False, True], ids=["generate", "continuous batching"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The server's address and its model's name."""
    save_model(tmp_path)
    port = free_port()
    command = [
        "-c", "from transformers.cli.transformers import main; main()", "serve", str(tmp_path),
        "--port", str(port), "--device", "cpu", "--dtype", "float32",
    ]  # fmt: skip
    if request.param:
        command += ["--continuous-batching", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "64"]
    log = (tmp_path / "log").open("w")
    process = subprocess.Popen(launch(sys.executable, *command), stdout=log, stderr=log)
    url = f"http://localhost:{port}"
    end = time.monotonic() + 300
    try:
        while not answers(f"{url}/health"):
            assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < end, "the server does not come up"
            time.sleep(0.2)
        yield url, str(tmp_path)
    finally:
        process.kill()
        process.wait()
        log.close()


@SERVING
def test_a_served_request_has_one_answer(server: tuple[str, str]) -> None:
    url, name = server

    def ask(case: tuple[int, int]) -> str:
        length, seed = case
        words = " ".join(f"w{3 + (7 * i + length) % 90}" for i in range(length))
        body: dict[str, Any] = {
            "model": name, "messages": [{"role": "user", "content": words}], "seed": seed,
            "max_tokens": 12, "temperature": 1.0,
        }  # fmt: skip
        post = urllib.request.Request(
            f"{url}/v1/chat/completions", json.dumps(body).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        answer = json.load(urllib.request.urlopen(post, timeout=300))
        text: str = answer["choices"][0]["message"]["content"]
        return text

    cases = [(3, 1), (17, 2), (1, 1), (9, 4), (3, 5)]
    alone = [ask(case) for case in cases]
    assert all(alone) and alone[0] != alone[4]  # the same prompt by two seeds
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, cases)) == alone
