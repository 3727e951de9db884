"""A forward pass whose kernels object runs again before its tokens leave: same answer, no crash.

Kernels of a GPU report to tickets; here a module of the model does, on the CPU's table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import small_models as models
import torch
from test_hf_batching import serve

import samebits
import samebits.integrations.transformers as sbt
from samebits import bits, guard
from samebits.engines import tickets
from samebits.errors import GuardError
from samebits.guard import observe
from samebits.guard.receipts import Receipt
from samebits.guard.receipts.operands import unpack
from samebits.guard.receipts.reading import open_ledger
from samebits.guard.receipts.record import decode
from samebits.integrations.transformers import receipts, steps
from samebits.integrations.transformers.cache import KVCache

SUBJECT = tickets.Subject("linear", "0123456789ab", "split 4")
NEW = 12  # behind 14 tokens: windows of 8 roll


@contextmanager
def faulty(model: Any, at: int, times: int = 1, harm: bool = True) -> Iterator[list[guard.Event]]:
    """The `at`-th call of a product and those behind it flip a bit, and its path is wrong.

    Args:
        times: so many calls; those by believed schedules are right.
        harm: the bit flips. Else only the path is wrong.
    """
    row = tickets.ticket(torch.device("cpu"), SUBJECT, 1)
    left = [at, times]

    def hook(_module: Any, _args: Any, output: torch.Tensor) -> None:
        left[0] -= 1
        if left[0] < 0 and left[1] > 0 and not observe.believes():
            left[1] -= 1
            row[1] += 1
            if harm:
                bits.view(output).view(-1)[-1:].bitwise_xor_(1 << 20)

    handle = model.model.layers[0].mlp.down_proj.register_forward_hook(hook)
    heard: list[guard.Event] = []
    leave = guard.subscribe(heard.append)
    guard.settle.forget()
    try:
        yield heard
    finally:
        leave()
        handle.remove()
        guard.settle.forget()
        tickets.take(torch.device("cpu"))


def generate(model: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out = model.generate(
        **models.pad(models.prompts((14, 5)), "left"), max_new_tokens=NEW, eos_token_id=-1,
        pad_token_id=models.PAD, return_dict_in_generate=True, output_logits=True, **options,
    )  # fmt: skip
    return out.sequences, torch.stack(out.logits)


def options_of(cache: str, model: Any) -> dict[str, Any]:
    if cache == "planned":
        return {"past_key_values": KVCache.for_model(model, batch=2, length=64)}
    return {"cache_implementation": cache} if cache == "static" else {"use_cache": cache != "none"}


@pytest.mark.parametrize("at", [0, 7], ids=["prefill", "decode"])
@pytest.mark.parametrize(
    ("kind", "cache"),
    [("llama", "dynamic"), ("llama", "planned"), ("llama", "none"), ("gemma2", "dynamic"),
     ("gemma2", "static"), ("mistral", "static"), ("llama", "static")],
)  # fmt: skip
def test_a_generation_is_put_right(kind: str, cache: str, at: int) -> None:
    with samebits.deterministic(guard="path"):
        model = sbt.enable(models.decoder(kind, torch.float32))
        tokens, logits = generate(model, **options_of(cache, model))
        again = options_of(cache, model)
        with faulty(model, at) as heard:
            mended, mended_logits = generate(model, **again)
        assert [(e.op, e.verdict, e.replaced) for e in heard] == [("step", "transient", True)]
        assert heard[0].contract == SUBJECT.contract and "1 tiles of linear" in heard[0].detail
        assert torch.equal(mended, tokens) and bits.equal(mended_logits, logits)
        assert "forward" not in vars(model)


def test_it_matters() -> None:
    """The same fault where paths are not checked."""
    with samebits.deterministic():
        model = sbt.enable(models.decoder("llama", torch.float32))
        _, logits = generate(model)
        with faulty(model, 7) as heard:
            _, harmed = generate(model)
        assert not heard and not bits.equal(harmed, logits)


@pytest.mark.parametrize(("times", "harm", "verdict"), [(2, True, "schedule"), (1, False, "path")])
def test_verdicts(times: int, harm: bool, verdict: str) -> None:
    with samebits.deterministic(guard="path"):
        model = sbt.enable(models.decoder("llama", torch.float32))
        _, logits = generate(model)
        with faulty(model, 7, times, harm) as heard:
            _, mended = generate(model)
        assert [(e.verdict, e.replaced) for e in heard] == [(verdict, harm)]
        assert bits.equal(mended, logits)


def test_drafts_are_put_right() -> None:
    row = models.prompts((5,))[0] * 4
    options = {"max_new_tokens": NEW, "eos_token_id": -1, "pad_token_id": models.PAD}
    with samebits.deterministic(guard="path"):
        model = sbt.enable(models.decoder("llama", torch.float32))
        ids = torch.tensor([row])
        tokens = model.generate(ids, prompt_lookup_num_tokens=3, **options)
        for at in (1, 3):
            with faulty(model, at) as heard:
                assert torch.equal(
                    model.generate(ids, prompt_lookup_num_tokens=3, **options), tokens
                )
            assert len(heard) == 1


def test_receipts_hold_what_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(path: Path) -> Any:
        first = SimpleNamespace(random=lambda: 0.0, randrange=lambda n: n - 1)
        monkeypatch.setattr(receipts, "draw", first)  # keeps the prompt's last position
        with samebits.receipts(path, sums="operations", audit=1.0):
            generate(model)
        source = open_ledger(path)
        found = [r for r in (decode(body) for *_, body in source.rows()) if isinstance(r, Receipt)]
        kept = [unpack(source.object(r.audit[0]) or b"") for r in found]
        source.close()
        assert all(
            samples[0].position < len(r.input) for r, samples in zip(found, kept, strict=True)
        )
        return [(r.output, r.logprobs, r.sums) for r in found], kept

    with samebits.deterministic(guard="path"):
        model = sbt.enable(models.decoder("llama", torch.float32))
        clean = record(tmp_path / "clean")
        with faulty(model, 0) as heard:
            assert record(tmp_path / "mended") == clean
        assert len(heard) == 1


def test_a_batch_is_put_right() -> None:
    rows = models.prompts((5, 23, 14))
    with samebits.deterministic(guard="path"):
        model = sbt.enable(models.decoder("llama", torch.float32))
        plain = serve(model, rows)
        with faulty(model, 3) as heard:
            mended = serve(model, rows)
        assert [e.verdict for e in heard] == ["transient"]
        for prompt, output in plain.items():
            assert mended[prompt].generated_tokens == output.generated_tokens
            assert mended[prompt].logprobs == output.logprobs


@pytest.mark.parametrize("stays", [False, True])
def test_a_captured_step_runs_again_without_its_graph(stays: bool) -> None:
    """Of continuous batching, of which a CPU has no graphs."""
    row = tickets.ticket(torch.device("cpu"), SUBJECT, 1)
    ids, ran = torch.zeros(2, 4, dtype=torch.int32), []

    def compute(runner: Any, model: Any) -> None:
        ran.append(runner.use_cuda_graph_decode)
        wrong = ran[-1] or (stays and not observe.believes())
        row[1] += wrong
        ids.fill_(7 if wrong else 5)

    runner = SimpleNamespace(
        use_cuda_graph_varlen=False, use_cuda_graph_decode=True,
        inputs_and_outputs=SimpleNamespace(get_cb_kwargs=lambda: (None, None, ids)),
    )  # fmt: skip
    guard.settle.forget()
    with samebits.deterministic(guard="path"):
        steps.batch(compute, runner, SimpleNamespace(device=torch.device("cpu")))
    assert ran == [True, False, False] and runner.use_cuda_graph_decode
    assert ids.unique().tolist() == [5]
    guard.settle.forget()


def test_a_graph_that_stays_wrong_is_not_believed() -> None:
    row = tickets.ticket(torch.device("cpu"), SUBJECT, 1)

    def replay() -> torch.Tensor:
        row[1] += 1
        return torch.zeros(3)

    guard.settle.forget()
    with pytest.raises(GuardError, match="not known"):
        guard.step(replay, device="cpu", fixed=True)
    guard.settle.forget()


@pytest.mark.parametrize("mine", [False, True])
def test_ranks_run_again_together(mine: bool) -> None:
    """Whoever found nothing runs again with the others, and is not blamed."""
    row = tickets.ticket(torch.device("cpu"), SUBJECT, 1)
    ran: list[int] = []

    def run() -> torch.Tensor:
        row[1] += mine and not ran
        ran.append(1)
        return torch.ones(3)

    heard: list[guard.Event] = []
    leave = guard.subscribe(heard.append)
    guard.settle.forget()
    guard.step(run, device="cpu", agree=lambda found: found is mine or not found)
    leave()
    guard.settle.forget()
    assert len(ran) == 3 and len(heard) == mine
