"""Every aten schema of the installed torch is classified, and what is unknown is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import samebits as sb
from samebits.errors import UncoveredError
from samebits.mode import coverage, install
from samebits.mode.document import coverage_markdown
from samebits.mode.table import GROUPS, Kind


def test_no_name_is_listed_twice() -> None:
    names = [name for group in GROUPS for name in group.names.split()]
    assert len(names) == len(set(names))


def test_every_schema_is_classified() -> None:
    assert len(coverage.schemas("CPU")) > 2500
    assert coverage.unknown(install.covered()) == []


def test_unknown_operations_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # A newer torch is imitated by a release that has never heard of these.
    known = {k: v for k, v in coverage._BY_NAME.items() if k not in ("erfinv", "gather")}
    monkeypatch.setattr(coverage, "_BY_NAME", known)
    install.refusals.cache_clear()
    try:
        with sb.deterministic():
            for call in (lambda: torch.ones(2).erfinv_(), lambda: torch.ones(2).erfinv()):
                with pytest.raises(UncoveredError, match="does not know"):
                    call()
            with pytest.raises(UncoveredError, match="does not know"):
                torch.ones(2).gather(0, torch.zeros(1, dtype=torch.int64))
            assert "gather" in sb.status().unknown
    finally:
        install.refusals.cache_clear()


def test_an_override_beats_the_table() -> None:
    assert coverage.classify("topk", install.covered()).kind is Kind.COVERED
    assert coverage.classify("topk", frozenset()).kind is Kind.EXACT


REFUSED = {
    "cdist": lambda x: torch.cdist(x, x),
    "fft": lambda x: torch.fft.rfft(x),
    "svd": lambda x: torch.linalg.svd(x),
    "inverse": lambda x: torch.linalg.inv(x @ x.T),
    "solve": lambda x: torch.linalg.solve(x[:4, :4], x[:4]),
    "multinomial": lambda x: torch.multinomial(x.abs(), 1),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.T, x]),
    "grid_sample": lambda x: torch.nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2), align_corners=False
    ),
    "interpolate": lambda x: torch.nn.functional.interpolate(
        x[None, None, None], scale_factor=2, mode="trilinear"
    ),
    "sparse": lambda x: x.to_sparse() @ x.T,
    "quantize": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    "float64 sum": lambda x: x.double().sum(-1),
    "complex product": lambda x: torch.complex(x, x) @ torch.complex(x, x).T,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_contract_is_refused(name: str) -> None:
    x = torch.rand(4, 8)
    with sb.deterministic(), pytest.raises(UncoveredError) as caught:
        REFUSED[name](x)
    assert caught.value.site is not None and "test_coverage.py:" in caught.value.site
    with sb.deterministic(policy="allow"):
        REFUSED[name](x)


def test_modules_quantised_before_are_refused() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(256, 128)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    from torch.ao.quantization import quantize_dynamic

    model = quantize_dynamic(Model().eval(), {torch.nn.Linear}, dtype=torch.qint8)
    x = torch.randn(8, 256)
    loud = torch.cat([x, 50 * torch.randn(1, 256)])
    # Stock: a neighbour's magnitude changes this row's bits (N1).
    assert not torch.equal(model(x), model(loud)[:8])
    with sb.deterministic(), pytest.raises(UncoveredError, match="linear_dynamic"):
        model(x)


def test_warning_policy_names_the_operation_once_a_line() -> None:
    x = torch.rand(4, 8)
    with sb.deterministic(policy="warn"), pytest.warns(sb_warning(), match="_cdist_forward"):
        torch.cdist(x, x)


def sb_warning() -> type[Warning]:
    from samebits.errors import UncoveredWarning

    return UncoveredWarning


def test_the_document_is_in_step_with_the_table() -> None:
    path = Path(__file__).parents[2] / "docs" / "coverage.md"
    message = "run: python scripts/coverage_doc.py"
    assert path.read_text(encoding="utf-8") == coverage_markdown(), message
