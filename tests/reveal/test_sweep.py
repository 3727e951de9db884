"""Numbers of rows are grouped by their trees, by the function and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import samebits
from samebits import ops
from samebits.cli import app
from samebits.cli.reveal import rows_of
from samebits.errors import RevealError
from samebits.report.trees import spans
from samebits.reveal import Request
from samebits.reveal.sweep import sweep


def faulty(x: Tensor, w: Tensor) -> Tensor:
    """Split in two below 4 rows; from 6 rows on, the last row is."""
    half = w.shape[1] // 2

    def two(x: Tensor) -> Tensor:
        return ops.linear(x[:, :half], w[:, :half]) + ops.linear(x[:, half:], w[:, half:])

    if len(x) < 4:
        return two(x)
    whole = ops.linear(x, w)
    return whole if len(x) < 6 else torch.cat([whole[:-1], two(x[-1:])])


def test_every_class_is_found_and_named() -> None:
    kinds = sweep(Request("linear", 512, n=32, fn=faulty), range(1, 9))
    assert [kind.whole for kind in kinds] == [[1, 2, 3], [4, 5]]
    assert [kind.partly for kind in kinds] == [
        {6: (5,), 7: (6,), 8: (7,)}, {m: tuple(range(m - 1)) for m in (6, 7, 8)}
    ]  # fmt: skip
    assert [str(kind.found.tree.contracts[0]) for kind in kinds] == [
        "split(2) of lanes(16)", "lanes(16)"
    ]  # fmt: skip


def test_ours_has_one_class_and_stock_has_more() -> None:
    ours = sweep(Request("linear", 512, n=64, fn=ops.linear), range(1, 10))
    stock = sweep(Request("linear", 512, n=64), range(1, 10))
    assert len(ours) == 1 < len(stock)


def test_rows_of_reductions_are_grouped_too() -> None:
    (kind,) = sweep(Request("sum", 300, fn=lambda x: ops.sum(x, -1)), [1, 2, 7])
    assert kind.whole == [1, 2, 7]
    with pytest.raises(RevealError, match="one number of rows"):
        sweep(Request("softmax", 300), [1, 2])


def test_numbers_of_rows_are_read() -> None:
    assert rows_of("8") == [8]
    assert rows_of("1,2,8") == [1, 2, 8]
    assert rows_of("1:4") == [1, 2, 3, 4]
    assert rows_of("16:64:16") == [16, 32, 48, 64]
    for wrong in ("", "x", "0:3", "3:1", "1,1", "1:2:0", "1:2:3:4"):
        with pytest.raises(RevealError, match="--m"):
            rows_of(wrong)
    assert spans([1, 2, 3, 8, 16, 17]) == "1-3, 8, 16-17"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["reveal", *arguments])
    return result.exit_code, result.output


def test_the_command(tmp_path: Path) -> None:
    code, output = run("linear", "--k", "512", "--n", "64", "--m", "1:5")
    assert code == 1 and "tree 1 of" in output and "one tree" not in output
    alike = samebits.reveal("linear", m=5, n=64, k=512).rows == tuple(range(5))  # not on all hosts
    assert ("row 4 of m = 5" in output) is not alike
    code, output = run("linear", "--k", "512", "--n", "64", "--m", "1:5", "--samebits")
    assert code == 0 and "one tree: m = 1-5" in output and "contract lanes(16)" in output
    picture = tmp_path / "tree.svg"
    code, output = run("torch:sum", "--k", "64", "--json", "--svg", str(picture))
    assert code == 0 and picture.read_text().startswith("<svg")
    assert json.loads(output)[0]["found"]["tree"]["leaves"] == 64


def test_the_command_says_what_is_wrong() -> None:
    for arguments, reason in (
        (("nothing", "--k", "8"), "is not known"),
        (("torch:nothing", "--k", "8"), "has no"),
        (("sum", "--k", "8", "--op", "mean"), "has a name"),
        (("linear", "--k", "8", "--m", "0"), "from 1 on"),
        (("torch:max", "--k", "8"), "not a sum"),
        (("sum", "--k", "8", "--m", "2", "--row", "-1"), "row = -1"),
        (("sum", "--k", "8", "--svg", "no/such/tree.svg"), "no folder no/such"),
        (("sum", "--k", "8", "--svg", "/"), "cannot be written"),
    ):
        code, output = run(*arguments)
        assert code == 2 and reason in " ".join(output.split()), output
