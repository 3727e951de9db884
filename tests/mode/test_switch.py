"""The switch: nesting, exceptions, threads, restoration, settings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import samebits as sb
from samebits.errors import LateSwitchWarning, SettingError, SwitchError, UncoveredError
from samebits.mode import install, selftest
from samebits.mode.flags import ENVIRONMENT


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    sb.disable()
    yield
    sb.disable()


def tie() -> list[int]:
    """Stock top-k gives other indices for equal values; under the contract the lowest win."""
    return torch.zeros(16).topk(8).indices.tolist()


def test_on_off_and_idempotent() -> None:
    stock = tie()
    assert stock != list(range(8))
    for _ in range(2):
        sb.enable()
        sb.enable()
        assert tie() == list(range(8))
        sb.disable()
        sb.disable()
        assert tie() == stock


def test_blocks_nest_and_survive_exceptions() -> None:
    stock = tie()
    with sb.deterministic():
        with pytest.raises(ZeroDivisionError), sb.deterministic(policy="allow"):
            assert sb.status().policy == "allow"
            raise ZeroDivisionError
        assert sb.status().policy == "refuse"
        assert tie() == list(range(8))
        sb.disable()
        assert tie() == stock
        sb.enable()
        assert tie() == list(range(8))
    assert tie() == stock
    sb.enable(policy="warn")
    with sb.deterministic():
        sb.disable()
        assert not sb.status().on
    assert sb.status().policy == "warn"


def test_blocks_that_overlap_in_two_threads() -> None:
    entered, leave = threading.Event(), threading.Event()
    seen: list[list[int]] = []

    def other() -> None:
        with sb.deterministic():
            entered.set()
            leave.wait()
            seen.append(tie())

    thread = threading.Thread(target=other)
    with sb.deterministic(policy="warn"):
        thread.start()
        entered.wait()
    # The first block has ended while the second, entered later, still runs.
    assert tie() == list(range(8))
    leave.set()
    thread.join()
    assert seen == [list(range(8))]
    assert not sb.status().on


def test_threads_started_before_are_covered() -> None:
    go, done = threading.Event(), []

    def work() -> None:
        go.wait()
        done.append(tie())

    thread = threading.Thread(target=work)
    thread.start()
    sb.enable()
    go.set()
    thread.join()
    assert done == [list(range(8))]


def snapshot() -> dict[str, object]:
    c, b = torch._C, torch.backends
    keys = [(x, y) for x in ("generic", "cuda", "mkldnn") for y in ("all", "matmul", "conv", "rnn")]
    return {
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "precision": [
            c._get_fp32_precision_getter(*k) for k in keys if k[0] != "generic" or k[1] == "all"
        ],
        "matmul precision": torch.get_float32_matmul_precision(),
        "cudnn": (b.cudnn.deterministic, b.cudnn.benchmark, b.cudnn.allow_tf32),
        "reduced": (
            c._get_cublas_allow_fp16_reduced_precision_reduction(),
            c._get_cublas_allow_bf16_reduced_precision_reduction(),
            c._get_cublas_allow_fp16_accumulation(),
        ),
        "mkldnn": (c._get_mkldnn_enabled(), c._get_mkldnn_deterministic(), c._get_nnpack_enabled()),
        "mha": b.mha.get_fastpath_enabled(),
        "einsum": b.opt_einsum.enabled,
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "functions": (torch.set_flush_denormal, torch.use_deterministic_algorithms),
        "inductor": torch._TorchCompileInductorWrapper.__call__,
    }


def test_flags_are_set_and_restored() -> None:
    before = snapshot()
    with sb.deterministic():
        inside = snapshot()
        assert inside["deterministic"] == (True, False)
        assert set(inside["precision"]) == {"ieee"}  # type: ignore[call-overload]
        assert inside["cudnn"] == (True, False, False)
        assert inside["reduced"] == ((False, False), (False, False), False)
        assert inside["mkldnn"] == (False, True, False)
        assert inside["mha"] is False
        assert inside["environment"] == ENVIRONMENT
    assert snapshot() == before


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_callers_flags_are_restored(precision: str) -> None:
    b = torch.backends
    old = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(True, warn_only=True)
    b.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, True)
    b.cudnn.benchmark = True
    try:
        before = snapshot()
        with sb.deterministic():
            assert snapshot() != before
        assert snapshot() == before
    finally:
        torch.set_float32_matmul_precision(old)
        torch.use_deterministic_algorithms(False)
        b.cuda.matmul.allow_bf16_reduced_precision_reduction = (True, True)
        b.cudnn.benchmark = False


def test_environment_of_the_caller_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with sb.deterministic():
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_what_came_too_late_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.warns(LateSwitchWarning, match="CUBLAS_WORKSPACE_CONFIG"):
        sb.enable(policy="warn")
    assert any("CUBLAS" in line for line in sb.status().late)
    sb.disable()
    assert sb.status().late == ()


def test_tensorflow_is_made_deterministic_when_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    class Fake:
        class config:
            class experimental:
                @staticmethod
                def enable_op_determinism() -> None:
                    calls.append(1)

    monkeypatch.setitem(sys.modules, "tensorflow", Fake)
    with sb.deterministic():
        assert calls == [1]
        assert any("run-to-run only" in note for note in sb.status().notes)


FLUSH = """
import torch
torch.set_num_threads(4)
x = torch.tensor([1], dtype=torch.int32).view(torch.float32).expand(1 << 18)
kept = lambda: int((x * 1).view(torch.int32).count_nonzero())
assert torch.set_flush_denormal(True)
assert kept() == 0  # the workers started now inherit it
torch.set_flush_denormal(False)
assert 0 < kept() < x.numel()  # so bits depend on the thread
torch.set_flush_denormal(True)
import samebits
with samebits.deterministic():
    assert kept() == x.numel()
    try:
        torch.set_flush_denormal(True)
    except samebits.errors.SwitchError:
        print("refused", end=" ")
assert kept() == 0
print("restored")
"""


def test_flush_to_zero_is_normalised_in_all_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FLUSH], capture_output=True, text=True, check=False
    )
    assert done.stdout == "refused restored\n", done.stderr


def test_deterministic_algorithms_stay_on() -> None:
    with sb.deterministic():
        with pytest.warns(LateSwitchWarning):
            torch.use_deterministic_algorithms(False)
        assert torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    "settings", [{"policy": "maybe"}, {"allow": "mm"}, {"allow": ["no_such_operation"]}]
)
def test_bad_settings_change_nothing(settings: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        sb.enable(**settings)  # type: ignore[arg-type]
    with pytest.raises(SettingError), sb.deterministic(**settings):  # type: ignore[arg-type]
        pass
    assert not sb.status().on


def test_refusal_and_allow_list() -> None:
    x = torch.randn(4, 8)
    expected = torch.cdist(x, x)
    with sb.deterministic(), pytest.raises(UncoveredError, match="cdist"):
        torch.cdist(x, x)
    with sb.deterministic(allow=["_cdist_forward"]):
        assert torch.equal(torch.cdist(x, x), expected)
    with sb.deterministic(policy="allow"):
        assert torch.equal(torch.cdist(x, x), expected)
    assert torch.equal(torch.cdist(x, x), expected)


def test_self_test_fails_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, stock = snapshot(), tie()
    probe = selftest.Probe("a route that torch moved", torch.neg, ("topk",))
    monkeypatch.setattr(selftest, "PROBES", (probe,))
    with pytest.raises(SwitchError, match="a route that torch moved"):
        sb.enable()
    assert not sb.status().on
    assert snapshot() == before
    assert tie() == stock


def test_a_replaced_override_is_noticed() -> None:
    sb.enable()
    other = torch.library.Library("aten", "IMPL")
    try:
        other.impl("topk", lambda *a, **k: None, "CPU", allow_override=True)
        with pytest.raises(SwitchError, match="topk"):
            install.verify()
    finally:
        other._destroy()
    install.verify()


def test_foreign_overrides_are_listed() -> None:
    with sb.deterministic():
        before = sb.status().foreign  # torch itself may bring some, on a GPU
    other = torch.library.Library("aten", "IMPL")
    try:
        other.impl("erfinv", lambda x: x, "CPU", allow_override=True)
        with sb.deterministic():
            assert "aten/erfinv/CPU" in sb.status().foreign
    finally:
        other._destroy()
    with sb.deterministic():
        assert sb.status().foreign == before


def test_the_self_test_is_not_counted_as_use() -> None:
    before = sb.status().hits
    with sb.deterministic():
        assert sb.status().hits == before


def test_status_counts_hits_and_reads_well() -> None:
    with sb.deterministic():
        before = sb.status().hits["aten::topk"]
        tie()
        after = sb.status()
        assert after.hits["aten::topk"] == before + 1
        text = str(after)
        assert "samebits is on (policy=refuse)" in text
        assert "were used" in text and " x aten::" in text
    assert "samebits is off" in str(sb.status())


@pytest.mark.parametrize("value, on", [("1", True), ("on", True), ("0", False), ("", False)])
def test_environment_variable(value: str, on: bool) -> None:
    code = "import samebits; print(samebits.status().on)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SAMEBITS": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(on)


def test_child_of_a_fork_computes_the_same_bits() -> None:
    sb.enable()
    x = torch.randn(64, 4096)
    expected = x.topk(7).values
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        same = torch.equal(x.topk(7).values, expected) and tie() == list(range(8))
        os.write(write, b"1" if same else b"0")
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)


def test_turning_off_while_other_threads_compute() -> None:
    """A thread that is about to call an override, waiting for the interpreter, must still find it;
    and it never meets torch's kernels under flags that are not its own.
    """
    x, w = torch.randn(3, 48), torch.randn(64, 48)
    calls = [lambda: torch.nn.functional.linear(x, w), lambda: torch.nn.functional.gelu(x)]
    stock_bits = [f() for f in calls]
    with sb.deterministic():
        own_bits = [f() for f in calls]
    stop, wrong = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                for f, *known in zip(calls, stock_bits, own_bits, strict=True):
                    got = f()
                    if not any(torch.equal(got, y) for y in known):
                        wrong.append(f"bits of neither: {calls.index(f)}")
        except RuntimeError as error:
            wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        with sb.deterministic():
            x.sum()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
