"""The GPU benchmarks without a GPU: what a line says, how it is shown, and that forms agree."""

from __future__ import annotations

import importlib.util
import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import samebits as sb
from samebits import bits
from samebits.bench import gpu, gpu_layer, gpu_moe
from samebits.bench.gpu import OURS, Line
from samebits.bench.gpu_timing import ROTATION, Ceilings, Race, sets_for
from samebits.cli import app
from samebits.errors import SettingError
from samebits.report import gpu_costs, gpu_picture

CEILINGS = Ceilings(bandwidth=4e12, flops=8e14)


def a_line(area: str = "linear", m: int = 64, ours: float = 2e-5, **seconds: float) -> Line:
    found = {OURS: ours, "cuBLAS": 1.8e-5, **seconds}
    return Line(area, "64x64", f"M={m}", found, ("cuBLAS",), 8e9, 4e7, 0.9, {"other": "why"}, m)


def test_a_rotation_exceeds_the_cache_and_ends() -> None:
    assert sets_for(ROTATION) == 1
    assert sets_for(ROTATION // 3) * (ROTATION // 3) >= ROTATION
    assert 1 <= sets_for(0) <= 256


def test_a_race_knows_who_is_missing() -> None:
    race = Race({OURS: 2.0, "them": 1.0}, {"broken": "why"})
    assert race.ratio(OURS, "them") == 0.5
    assert race.ratio(OURS, "broken") is None


def test_a_line_is_held_against_the_best_that_counts() -> None:
    line = a_line(slow=1.0)
    assert line.ratio == pytest.approx(0.9)
    assert line.floor(CEILINGS) == pytest.approx(1e-5)
    assert line.rate(CEILINGS) == "2000 GB/s"
    both = Line("rows", "", "", {OURS: 2.0, "a": 3.0, "b": 4.0}, ("a", "b"), 1e15, 0)
    assert both.ratio == 1.5
    assert both.rate(CEILINGS) == "500 TFLOP/s"
    assert Line("rows", "", "", {"a": 3.0}, ("a",), 0, 0).ratio is None


def test_areas_are_selected_in_order() -> None:
    assert gpu.select(["moe", "linear"]) == ("linear", "moe")
    with pytest.raises(SettingError, match="no area 'tea'"):
        gpu.select(["tea"])


@pytest.mark.parametrize("area", gpu.AREAS)
def test_every_area_has_lines(area: str) -> None:
    lines = import_module(f"samebits.bench.gpu_{area}").lines
    assert list(inspect.signature(lines).parameters) == ["quick"]


def test_figures_are_saved(tmp_path: Path) -> None:
    gpu.save(tmp_path / "f.json", [a_line()], CEILINGS, {"device": "none"})
    saved = json.loads((tmp_path / "f.json").read_text())
    assert saved["lines"][0]["ratio"] == pytest.approx(0.9)
    assert saved["lines"][0]["share_of_ceiling"] == pytest.approx(0.5)
    assert saved["ceilings"]["flops"] == 8e14


def test_the_table_shows_ratios_failures_and_a_summary() -> None:
    console = Console(record=True, width=160)
    failed = Line(
        "moe", "model", "model T=1", {"cuBLAS": 1.0}, ("cuBLAS",), 1, 1, errors={OURS: "x"}
    )
    gpu_costs.show([a_line(), a_line(m=128, ours=1e-5), failed], CEILINGS, console)
    text = console.export_text()
    assert "50% of ceiling" in text and "0.90x cuBLAS" in text and "failed: x" in text
    assert "1.273x" in text and "64x64 M=64" in text  # geometric mean and where the worst is


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_drawn(tmp_path: Path, suffix: str) -> None:
    lines = [a_line(m=m, slow=3e-5) for m in (1, 16, 64)] + [a_line("attention")]
    path = tmp_path / f"p.{suffix}"
    gpu_picture.draw(lines, CEILINGS, {"device": "a GPU, 3 multiprocessors"}, path)
    assert path.stat().st_size > 1000


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so() -> None:
    result = CliRunner().invoke(app, ["bench", "gpu"])
    assert result.exit_code == 2
    assert "no NVIDIA GPU" in result.output


def test_both_forms_of_the_layer_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"WIDTH": 64, "HEADS": 4, "KV_HEADS": 2, "D": 16, "HIDDEN": 96, "QUERY": 64, "KEY": 32}
    for name, size in sizes.items():
        monkeypatch.setattr(gpu_layer, name, size)
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape).to(torch.bfloat16)

    layer = gpu_layer.Layer(
        random(64), random(128, 64), random(16), random(16), random(64, 64), random(64),
        random(192, 64), random(64, 96),
    )  # fmt: skip
    for tokens, start in ((1, 11), (5, 0)):
        keys, values, x = random(2, 2, start + tokens, 16), random(2, 2, start + tokens, 16), None
        x, cos, sin = random(2, tokens, 64), random(tokens, 16), random(tokens, 16)
        results = []
        for form in (gpu_layer.with_torch, gpu_layer.with_ops):
            step = gpu_layer.Step(x, cos, sin, keys.clone(), values.clone(), start, tokens > 1)
            with sb.deterministic(), torch.inference_mode():
                results.append(form(layer, step))
        assert bits.equal(*results), tokens


def test_both_forms_of_the_experts_agree() -> None:
    torch.manual_seed(0)
    w = gpu_moe.Experts(torch.randn(4, 32), torch.randn(4, 48, 32) / 5, torch.randn(4, 32, 24) / 5)
    w = gpu_moe.Experts(*(t.to(torch.bfloat16) for t in (w.router, w.gate_up, w.down)))
    x = torch.randn(7, 32).to(torch.bfloat16)
    torch.testing.assert_close(
        gpu_moe.with_ops(x, w, 2), gpu_moe.with_torch(x, w, 2), atol=0.05, rtol=0.05
    )
