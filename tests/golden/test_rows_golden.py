"""The contracts of rows give an H200's bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from rows_cases import Case, cases

CASES = list(cases())


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("rows.npz")) as file:
        return dict(file)


def test_all_are_there(recorded: dict[str, np.ndarray]) -> None:
    assert set(recorded) == {case.name for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_bytes(case: Case, recorded: dict[str, np.ndarray]) -> None:
    want = case.exact(*case.inputs).contiguous()
    kind = {2: torch.int16, 4: torch.int32}[want.element_size()]
    assert (want.view(kind).numpy() == recorded[case.name]).all()
