"""The front door: these names, and nothing heavy behind them."""

from __future__ import annotations

import subprocess
import sys

import samebits


def test_the_exports_are_pinned() -> None:
    assert sorted(samebits.__all__) == [
        "augmented_addition",
        "augmented_multiplication",
        "augmented_subtraction",
        "binned_sum",
        "certified_argmax",
        "check",
        "contract_of",
        "deterministic",
        "disable",
        "enable",
        "explain",
        "guard",
        "ops",
        "plan",
        "receipts",
        "reveal",
        "status",
    ]
    assert callable(samebits.check) and samebits.check.__name__ == "check"


def test_check_stays_a_function_when_its_package_is_imported() -> None:
    from samebits.check import Report

    assert Report.__module__ == "samebits.check.result"
    assert callable(samebits.check)


def test_reveal_stays_a_function_when_its_package_is_imported() -> None:
    from samebits.reveal import RevealedTree

    assert RevealedTree.__module__ == "samebits.reveal.tree"
    assert callable(samebits.reveal)


def test_importing_brings_in_nothing_but_torch_and_numpy() -> None:
    code = (
        "import torch, numpy, sys; before = set(sys.modules); import samebits; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "heavy = {'rich', 'typer', 'click', 'transformers', 'tensorflow', 'matplotlib'}; "
        "print(*sorted(new & heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
