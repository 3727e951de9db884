"""Every fault is caught in the mode that claims it, and the result is put right in place."""

from __future__ import annotations

import functools
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from faulty import broken, engine_fault, events, flip, zero_tile

import samebits
from samebits import bits, guard
from samebits.engines import cpu, watch
from samebits.engines.cpu import _cpu
from samebits.errors import GuardError, SettingError

#: Faults that act on leaves of decoding; ``lost_tile`` and ``dropped`` act on products too.
IN_ATTENTION = ("partial_bit", "partial_zero", "stale", "misplaced", "early", "dropped", "swapped",
                "lost_tile")  # fmt: skip


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> None:
    torch.set_num_threads(request.param)


def decode() -> torch.Tensor:
    torch.manual_seed(3)
    q, k, v = torch.randn(1, 8, 1, 64), torch.randn(1, 2, 3000, 64), torch.randn(1, 2, 3000, 64)
    y = samebits.ops.attention(q, k, v)
    assert isinstance(y, torch.Tensor)
    return y


def product() -> torch.Tensor:
    torch.manual_seed(4)
    return F.linear(torch.randn(5, 3000), torch.randn(70, 3000), torch.randn(70))


@pytest.mark.parametrize("fault", IN_ATTENTION)
def test_path_mode_catches_faults_of_leaves(fault: str, threads: None) -> None:
    if fault == "early" and torch.get_num_threads() == 1:
        pytest.skip("one thread folds after its own leaves")
    right = decode()
    with samebits.deterministic(guard="path"), events() as heard, engine_fault(fault):
        y = decode()
    assert [e.kind for e in heard] == ["path"]
    assert heard[0].verdict in ("transient", "path")
    assert bits.equal(y, right)


@pytest.mark.parametrize("fault", ["dropped", "lost_tile"])
def test_path_mode_catches_faults_of_products(fault: str) -> None:
    with samebits.deterministic():
        right = product()
    with samebits.deterministic(guard="path"), events() as heard, engine_fault(fault):
        y = product()
    assert [(e.kind, e.verdict, e.replaced) for e in heard] == [("path", "transient", True)]
    assert bits.equal(y, right)


def test_without_the_guard_the_same_faults_do_not_even_happen() -> None:
    with samebits.deterministic(), engine_fault("dropped"):
        a = product()
    with samebits.deterministic():
        assert bits.equal(a, product())


def test_leaves_of_another_length_are_another_path() -> None:
    """What a schedule table of another contract would do: the engine's leaves hold 512 keys."""
    with samebits.deterministic(guard="path"), events() as heard:
        _cpu.check_paths(True, 1, 2, 256)
        with pytest.raises(GuardError):
            for _ in range(3):
                decode()
        guard.control.apply("off")
    assert {e.verdict for e in heard} == {"path"}


@contextmanager
def sampling() -> Iterator[list[guard.Event]]:
    """Every call is sampled; the events."""
    with samebits.deterministic(guard="sample:1"), events() as heard:
        yield heard


def packed_product() -> torch.Tensor:
    torch.manual_seed(5)
    return samebits.ops.linear(torch.randn(5, 300), samebits.ops.pack_weight(torch.randn(70, 300)))


WORK = {
    "linear": (product, "gemm", "linear"),
    "packed linear": (packed_product, "packed", "linear"),
    "attention": (decode, "attention", "dense"),
}


@pytest.mark.parametrize("harm", [flip, zero_tile], ids=["flipped bit", "zeroed tile"])
@pytest.mark.parametrize("op", WORK)
def test_samples_catch_a_harmed_output(op: str, harm: Callable[[torch.Tensor], None]) -> None:
    work, module, name = WORK[op]
    with samebits.deterministic():
        right = work()
    with broken(module, name, harm), sampling() as heard:
        y = work()
    assert [(e.kind, e.op, e.verdict, e.replaced) for e in heard] == [
        ("bytes", op.removeprefix("packed "), "transient", True)
    ]
    assert "elements, the first at" in heard[0].detail
    assert bits.equal(y, right)


def test_a_schedule_that_is_always_wrong_is_outvoted() -> None:
    """A bad compiler, or a library of another version: its own second run agrees with it."""
    if len(cpu.isas()) < 3:
        pytest.skip("there is no third instruction set")
    with samebits.deterministic():
        right = product()
    with broken("gemm", "linear", flip, times=99, isa=cpu.isa()), sampling() as heard:
        y = product()
    assert [(e.verdict, e.replaced) for e in heard] == [("schedule", True)]
    assert bits.equal(y, right)


def test_a_wrong_reference_does_not_harm_the_result() -> None:
    if len(cpu.isas()) < 3:
        pytest.skip("there is no third instruction set")
    with samebits.deterministic():
        right = product()
    other = cpu.isas()[1]
    with broken("gemm", "linear", flip, times=99, isa=other), sampling() as heard:
        y = product()
    assert [(e.verdict, e.replaced) for e in heard] == [("reference", False)]
    assert bits.equal(y, right)


def test_replacing_reaches_every_view_of_the_result() -> None:
    x, w = torch.randn(20, 64), torch.randn(64, 48)
    out = torch.empty(20, 48)
    view = out.t()
    with samebits.deterministic():
        right = torch.mm(x, w)
    with broken("gemm", "bmm", flip), sampling() as heard:
        torch.mm(x, w, out=out)
    assert len(heard) == 1 and bits.equal(view.t(), right)


def test_an_addend_that_was_overwritten_is_still_known() -> None:
    x, w, c = torch.randn(20, 64), torch.randn(64, 48), torch.randn(20, 48)
    with samebits.deterministic():
        right = torch.addmm(c, x, w)
    with broken("gemm", "bmm", flip), sampling() as heard:
        c.addmm_(x, w)
    assert [e.verdict for e in heard] == ["transient"] and bits.equal(c, right)


def test_one_call_in_a_hundred_is_sampled_and_always_the_same_ones() -> None:
    from samebits.guard.setting import chosen

    numbers = chosen(7, range(100_000), 0.01)
    assert numbers == chosen(7, range(50_000), 0.01) + chosen(7, range(50_000, 100_000), 0.01)
    assert 900 < len(numbers) < 1100 and numbers != chosen(8, range(100_000), 0.01)
    x = torch.randn(4, 4)
    before = guard.counts.samples
    with samebits.deterministic(guard="sample:0.01"):
        for _ in range(1000):
            torch.mm(x, x)
    assert guard.counts.samples - before == len(chosen(0, range(1000), 0.01))


def test_three_events_on_a_device_are_too_many() -> None:
    x = torch.randn(9, 9)  # sides are not exchanged
    with broken("gemm", "bmm", flip, times=9, isa=cpu.isa()), sampling() as heard:
        torch.mm(x, x)
        x.t() @ x
        with pytest.raises(GuardError, match="3 events") as error:
            torch.mm(x, x.t())
    assert error.value.event is heard[-1]


def test_a_hook_takes_the_place_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[guard.Device, int]] = []
    monkeypatch.setattr(guard.settle.rules, "most", 2)
    monkeypatch.setattr(
        guard.settle.rules, "alarm", lambda device, had: called.append((device, len(had)))
    )
    x = torch.randn(9, 9)  # sides are not exchanged
    with broken("gemm", "bmm", flip, times=9, isa=cpu.isa()), sampling():
        for _ in range(3):
            torch.mm(x, x)
    assert [n for _, n in called] == [2, 3] and called[0][0].kind == "cpu"


def test_a_dump_reproduces_the_event(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guard.settle.rules, "dumps", str(tmp_path))
    with broken("gemm", "linear", flip), sampling() as heard:
        y = product()
    assert heard[0].dump is not None
    dump = torch.load(heard[0].dump)
    x, w, b = (dump["operands"][name] for name in ("x", "weight", "bias"))
    assert bits.equal(samebits.ops.linear(x, w, b), y)
    assert not bits.equal(dump["result"][0], y) and bits.equal(dump["votes"][0][0], y)
    assert [o.name for o in heard[0].operands] == ["x", "weight", "bias"]
    assert heard[0].site is not None and "test_faults.py" in heard[0].site


def test_a_dump_that_cannot_be_written_keeps_neither_event_nor_result(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setattr(guard.settle.rules, "dumps", str(tmp_path / "file" / "dumps"))
    with samebits.deterministic():
        honest = product()
    with broken("gemm", "linear", flip), sampling() as heard:
        assert bits.equal(product(), honest)
    assert len(heard) == 1 and heard[0].replaced and heard[0].dump is None
    assert "what failed a check cannot be written to" in caplog.text


@pytest.mark.parametrize(
    "text",
    ["paths", "sample:0", "sample:2", "sample:x", "path,off", "path,path", "sample:0.1,sample:0.2",
     True, 0.01, b"path"],
)  # fmt: skip
def test_unknown_settings_are_refused_and_change_nothing(text: Any) -> None:
    with pytest.raises(SettingError, match="guard="):
        samebits.enable(guard=text)
    assert not samebits.status().on and str(guard.setting()) == "off"


def test_settings_nest_and_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBITS_GUARD", "path")
    with samebits.deterministic():
        assert str(guard.setting()) == "path" == samebits.status().guard
        with samebits.deterministic(guard="sample:0.5,path"):
            assert str(guard.setting()) == "path,sample:0.5"
        with samebits.deterministic(guard="off"):
            assert str(guard.setting()) == "off" and not watch.watched()
        assert str(guard.setting()) == "path"
    assert str(guard.setting()) == "off"


def test_modules_that_offer_functions_while_others_are_taken() -> None:
    """The kernels of a GPU, which the guard imports to know them, offer themselves."""
    code = (
        "import samebits, samebits.ops.linear.cuda, torch\n"
        "with samebits.deterministic(guard='path'):\n"
        "    torch.nn.functional.linear(torch.ones(2, 64), torch.ones(3, 64))\n"
        "from samebits.engines import watch\n"
        "assert ('samebits.ops.attention.cuda', 'dense') in watch._offered"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_engine_functions_are_reached_through_their_modules() -> None:
    """A name of its own for an offered function would pass by the guard."""
    import ast

    root = Path(samebits.__file__).parent
    offered = {(module, name) for module, name in watch._offered}
    for path in (*(root / "ops").rglob("*.py"), *(root / "mode").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    assert (node.module, alias.name) not in offered, (path, alias.name)


def test_a_call_runs_again_with_the_arguments_that_it_had() -> None:
    from samebits.guard.gpu_points import POINTS

    for (module, name), point_of in POINTS.items():
        fn = watch._offered[module, name]
        signature, calls = inspect.signature(fn), []

        @functools.wraps(fn)
        def kept(*args: Any, signature=signature, calls=calls, **options: Any) -> None:  # type: ignore[no-untyped-def]
            calls.append(signature.bind(*args, **options).arguments)

        point = point_of(kept)
        kinds = {p.name: p.kind for p in signature.parameters.values()}
        args = [torch.ones(2) for kind in kinds.values() if kind is kind.POSITIONAL_OR_KEYWORD]
        if "out" in kinds:
            args = args[: list(kinds).index("out")]
        # dense takes these by name, packed as free options.
        options = {"scale": 0.5, "causal": True} if "attention" in module else {}
        kept(*args, **options)
        point.call(tuple(args), options).run()
        assert str(calls[0]) == str(calls[1]), name


def test_every_offered_function_is_known() -> None:
    from samebits.guard import cpu_points, gpu_points

    known = set(cpu_points.POINTS) | set(gpu_points.POINTS)
    assert set(watch._offered) <= known
    assert {key for key in known if key[0].startswith("samebits.engines.cpu")} <= set(
        watch._offered
    )


def test_attention_that_is_watched_starts_again_below_the_watcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = importlib.import_module("samebits.ops.attention.cuda")
    monkeypatch.setattr(cuda, "_replayed", lambda *_: "replayed")
    monkeypatch.setattr(cuda, "_dense", lambda *_: "computed")
    x = torch.ones(1, 1, 1, 16)
    assert cuda.dense(x, x, x, scale=1.0) == "computed"
    monkeypatch.setattr(watch, "watched", lambda: True)
    assert cuda.dense(x, x, x, scale=1.0) == "replayed"
    with cuda.scheduled(lambda schedule: schedule):  # which no recipe knows
        assert cuda.dense(x, x, x, scale=1.0) == "computed"
