"""Steps of vLLM whose kernels object run again: both runners with fakes, and an engine on a CPU."""

from __future__ import annotations

import enum
import random
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm_engines import GREEDY, HAS_VLLM, Engine, bits, prompt, request

import samebits
from samebits import guard
from samebits.engines import tickets
from samebits.errors import GuardError
from samebits.guard import observe
from samebits.integrations.vllm import steps


class Mode(enum.Enum):
    NONE, FULL = 0, 2


class Kernel:
    """Computes ones; its first `wrong` runs give twos and say so.

    Attributes:
        modes: that the context asked for, run by run.
        always: believed schedules are wrong, too.
    """

    def __init__(self, context: Any, wrong: int, always: bool = False) -> None:
        self.context, self.wrong, self.always = context, wrong, always
        self.modes: list[Mode] = []
        self.row = tickets.ticket(torch.device("cpu"), tickets.Subject("linear", "0123", "s"), 1)

    def run(self, *_: Any, **__: Any) -> torch.Tensor:
        self.modes.append(self.context.cudagraph_runtime_mode)
        believing = observe.believes() and not self.always
        wrong = len(self.modes) <= self.wrong and not believing
        self.row[1] += wrong
        return torch.full((3,), 1.0 + wrong)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM's forward context, and one rank; paths are checked, and alarms are far."""
    found = SimpleNamespace(cudagraph_runtime_mode=Mode.FULL)
    group = SimpleNamespace(world_size=1)
    for name, entry in (
        ("vllm.forward_context", {"get_forward_context": lambda: found}),
        ("vllm.distributed.parallel_state", {"get_tp_group": lambda: group}),
    ):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**entry))
    guard.settle.forget()
    with samebits.deterministic(guard="path"):
        yield found
    guard.settle.forget()
    tickets.take(torch.device("cpu"))


def test_the_first_runner_runs_again_without_its_graph(context: Any) -> None:
    kernel = Kernel(context, 1)
    assert steps._first_runner(kernel.run)(object(), input_ids=None).tolist() == [1, 1, 1]
    assert kernel.modes == [Mode.FULL, Mode.NONE, Mode.NONE]
    assert context.cudagraph_runtime_mode is Mode.FULL


def test_rows_that_a_graph_has_too_many_do_not_count(context: Any) -> None:
    """What lies behind a batch's rows is another thing in every run."""
    kernel = Kernel(context, 1)

    def run(*_: Any) -> torch.Tensor:
        result = kernel.run()
        return torch.cat((result, torch.full((2,), 10.0 + len(kernel.modes))))

    context.attn_metadata = {"layer": SimpleNamespace(real=3)}
    assert steps._first_runner(run)(object()).tolist() == [1, 1, 1, 13, 13]
    kernel = Kernel(context, 1)
    context.attn_metadata = {"layer": SimpleNamespace()}
    with pytest.raises(GuardError, match="not known"):
        steps._first_runner(run)(object())


@pytest.mark.parametrize("wrap", [steps._first_runner, steps._replayed, steps._stepped])
def test_nothing_runs_twice_where_nothing_is_wrong(context: Any, wrap: Any) -> None:
    kernel = Kernel(context, 0)
    assert wrap(kernel.run)(object()).tolist() == [1, 1, 1] and len(kernel.modes) == 1


def test_the_second_runner_replays_its_graph(context: Any) -> None:
    kernel = Kernel(context, 1, always=True)
    assert steps._replayed(kernel.run)().tolist() == [1, 1, 1] and len(kernel.modes) == 3
    with pytest.raises(GuardError, match="not known"):
        steps._replayed(Kernel(context, 3, always=True).run)()


def test_what_a_model_is_called_for(context: Any) -> None:
    """Logits, and in the second runner the forward pass; parts of a pipeline have names."""
    model = SimpleNamespace(compute_logits=Kernel(context, 2).run, forward=len)
    steps.attach(model, second_runner=False)
    assert model.compute_logits().tolist() == [1, 1, 1] and model.forward is len
    parts = Kernel(context, 1)
    model.forward = lambda: SimpleNamespace(tensors={"hidden": parts.run()})
    steps.attach(model, second_runner=True)
    assert model.forward().tensors["hidden"].tolist() == [1, 1, 1]


def test_off_by_default(context: Any) -> None:
    samebits.disable()
    kernel = Kernel(context, 1)
    assert steps._first_runner(kernel.run)(object()).tolist() == [2, 2, 2]
    samebits.enable(guard="path")


needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")


@needs_vllm
def test_an_engine_puts_a_step_right(engine: Engine, models: Callable[[str], Any]) -> None:
    rng = random.Random(8)
    batch = [request(prompt(rng, n), GREEDY) for n in (70, 9)]
    options = {"num_gpu_blocks_override": 200, "block_size": 32}
    plain = engine.run(models("qwen3"), [batch], **options)["answers"][0]
    found = engine.run(
        models("qwen3"), [batch], script="faulty_scenario.py",
        environment={"SAMEBITS_GUARD": "path", "FAULT_AT": "5"}, **options,
    )  # fmt: skip
    assert found["facts"]["events"] == ["step transient True"]  # there were other bits before
    assert [bits(a) for a in found["answers"][0]] == [bits(a) for a in plain]
