"""Two saved reports: what is not the same in their environments, and where bits part first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from planted import WIDTH, Product, Stack, values

from samebits.check import Report, check
from samebits.check.adapters import subject_of
from samebits.check.cause.versions import compare, digests
from samebits.errors import SettingError, UncoveredError
from samebits.mode import stock


def report(kernel: str = "split_k", **environment: str) -> Report:
    """A check of the planted model, as it would be with other versions."""
    made = check(
        Stack(Product(kernel, 9)), values(2, WIDTH), promises=["repeats"], costs=False,
        switch=stock, name="stack",
    )  # fmt: skip
    return replace(made, environment=made.environment | environment)


@pytest.fixture(scope="module")
def plain() -> Report:
    return report()


def test_digests_are_saved_for_both_sides(plain: Report) -> None:
    assert {d.side for d in plain.digests} == {"stock", "switched"}
    assert [d.name for d in plain.digests if d.side == "stock"] == [
        "layers.0", "layers.1", "layers.2", "layers.3", ""
    ]  # fmt: skip
    assert Report.from_json(plain.to_json()) == plain
    assert compare(plain, report()).verdict == "equal"


def test_another_version_is_named(plain: Report) -> None:
    other = report("partials", torch="2.99.0")
    found = compare(plain, other)
    assert (found.verdict, found.kind, found.detail) == ("differs", "version", "torch")
    assert found.place is not None and found.place.module == "layers.2"
    assert f"torch {torch.__version__} against 2.99.0" in found.cause
    assert "stock PyTorch: 3 of 5 module outputs differ." in found.evidence
    assert not found.allowed and "2.99.0" in found.environment["torch"]


def test_another_machine_is_a_configuration(plain: Report) -> None:
    found = compare(plain, report("partials", threads="64"))
    assert (found.kind, found.detail, found.trigger) == ("configuration", "threads", "machine")


def test_another_version_with_the_same_bits_is_equal(plain: Report) -> None:
    found = compare(plain, report(torch="2.99.0"))
    assert found.verdict == "equal" and any("2.99.0" in line for line in found.evidence)


def test_the_same_environment_with_other_bits_is_unknown(plain: Report) -> None:
    assert compare(plain, report("partials")).kind == "unknown"


def test_what_cannot_be_compared_is_refused(plain: Report) -> None:
    with pytest.raises(SettingError, match="inputs is"):
        compare(plain, report(inputs="(3, 7) float32"))
    with pytest.raises(SettingError, match="no digests"):
        compare(plain, replace(plain, digests=()))


def test_a_switch_that_refuses_leaves_no_digest() -> None:
    @contextmanager
    def refusing() -> Iterator[None]:
        raise UncoveredError("aten::mm", "no", remedy="")
        yield

    subject = subject_of(Stack(Product("split_k", 9)), values(2, WIDTH))
    assert {d.side for d in digests(subject, refusing)} == {"stock"}
