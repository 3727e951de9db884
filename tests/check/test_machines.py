"""Records of machines, and what two of them say together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from typer.testing import CliRunner

from samebits.check import machines
from samebits.check.machines import Entry, Record
from samebits.check.machines.cases import Linear, cases, numbers
from samebits.check.machines.record import digest
from samebits.cli import app
from samebits.contract import hopper_mma
from samebits.errors import DeviceError, SettingError


@pytest.fixture(scope="module")
def own() -> Record:
    return machines.record("cpu")


@pytest.fixture(scope="module")
def portable() -> Record:
    return machines.record("cpu", "portable")


def changed(found: Record, name: str, **fields: object) -> Record:
    """A record in which one entry is another."""
    entries = tuple(replace(e, **fields) if e.name == name else e for e in found.entries)
    assert entries != found.entries
    return replace(found, entries=entries)


def entry(found: Record, name: str) -> Entry:
    return next(e for e in found.entries if e.name == name)


def verdict(a: Record, b: Record, name: str) -> tuple[str, str]:
    """What `compare` says of one case; another one keeps it company."""
    few = [replace(r, entries=[e for e in r.entries if e.name in (name, SMALL)]) for r in (a, b)]
    line = next(line for line in machines.compare(*few).lines if line.name == name)
    return line.verdict, line.why


LINEAR, SMALL = "linear fp32 130x264x1100", "linear bf16 7x96x320"


def test_a_record_comes_back_from_its_file(own: Record, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(own.to_json())
    assert machines.load(path) == own
    assert len(own.entries) == len(cases("device"))
    assert not [e.name for e in own.entries if e.refused]


def test_one_machine_twice_is_equal(own: Record) -> None:
    found = machines.compare(own, own)
    assert found.count("equal") == len(own.entries) and found.exit_status == 0


def test_other_contracts_explain_other_bits(own: Record, portable: Record) -> None:
    found = machines.compare(own, portable)
    assert found.count("defect") == 0 and found.count("explained") > 10
    assert found.exit_status == 0
    lines = {line.name: line for line in found.lines}
    line = lines[LINEAR]
    assert line.verdict == "explained" and "lanes(16) against chain" in line.why
    assert line.apart is not None and line.allowed is not None
    assert 0 <= line.apart <= line.allowed
    assert lines["exp fp32"].verdict == "missing"


def test_a_wrong_bit_is_a_defect_of_the_machine_that_has_it(own: Record) -> None:
    right = entry(own, LINEAR)
    broken = changed(
        own, LINEAR, digest="0" * 64, sample=(right.sample[0] ^ 1, *right.sample[1:])
    )  # fmt: skip
    kind, why = verdict(own, broken, LINEAR)
    assert kind == "defect" and why.startswith("the second machine does not have its contract's")
    kind, why = verdict(broken, own, LINEAR)
    assert kind == "defect" and why.startswith("the first machine")
    assert machines.compare(own, broken).exit_status == 1


def test_a_wrong_number_is_outside_of_every_order(own: Record, portable: Record) -> None:
    right = entry(portable, LINEAR)
    far = changed(
        portable, LINEAR, digest="1" * 64, sample=(right.sample[0] ^ 1 << 20, *right.sample[1:])
    )  # fmt: skip
    kind, why = verdict(own, far, LINEAR)
    assert kind == "defect" and "outside what any order of additions gives (1 of" in why


def test_a_difference_that_the_sample_does_not_show(own: Record) -> None:
    kind, why = verdict(own, changed(own, LINEAR, digest="2" * 64), LINEAR)
    assert kind == "defect" and why.startswith("the second machine") and "no sampled" in why


@pytest.mark.parametrize("name", [LINEAR, "softmax fp32 1000", "attention bf16 5 of 700"])
def test_another_contract_explains_no_wrong_bit_elsewhere(
    own: Record, portable: Record, name: str
) -> None:
    """Both samples are right, and one result that nobody sampled is not."""
    assert verdict(own, portable, name)[0] == "explained"
    found, why = verdict(own, changed(portable, name, digest="5" * 64), name)
    assert found == "defect" and why.startswith("the second machine") and "no sampled" in why


def test_a_gpus_contract_is_evaluated_here(own: Record) -> None:
    """A record as an H200 would write it: by the evaluator, of its own contract."""
    case = Linear("bf16", 130, 264, 1100)
    contract = case.contract("sm_90")
    assert contract.arithmetic == hopper_mma("bf16")  # type: ignore[attr-defined]
    x, w = case._operands
    result = contract.evaluate(x, w, out_dtype=torch.bfloat16)
    assert isinstance(result, torch.Tensor)
    words = tuple(int(v) & 0xFFFF for v in case.sampled(result).view(torch.int16).flatten())
    there = changed(
        own, case.name, contract=contract.text, digest=digest(result), sample=words
    )  # fmt: skip
    kind, why = verdict(own, there, case.name)
    assert kind == "explained" and "hopper_mma" in why


def test_a_function_has_one_arithmetic(portable: Record) -> None:
    kind, why = verdict(portable, changed(portable, "exp fp32", digest="4" * 64), "exp fp32")
    assert (kind, why) == ("defect", "one arithmetic, different bits")


def test_refusals_and_cases_of_one_machine_are_missing(own: Record) -> None:
    refused = changed(own, LINEAR, refused="no kernel", digest="", sample=())
    kind, why = verdict(own, refused, LINEAR)
    assert kind == "missing" and "second machine: no kernel" in why
    shorter = replace(own, entries=own.entries[1:])
    assert verdict(own, shorter, own.entries[0].name)[0] == "missing"
    assert verdict(shorter, own, own.entries[0].name)[0] == "missing"


def test_bad_input(own: Record, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cpu or cuda"):
        machines.record("tpu")
    with pytest.raises(SettingError, match="contract='fast'"):
        machines.record("cpu", "fast")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="no NVIDIA GPU"):
            machines.record("cuda")
    path = tmp_path / "bad.json"
    for text in ("", "{", "[]", '{"format": 1}', own.to_json().replace('"family"', '"famlily"')):
        path.write_text(text)
        with pytest.raises(SettingError, match=r"bad\.json is no record"):
            machines.load(path)
    path.write_text(replace(own, format=2).to_json())
    with pytest.raises(SettingError, match="format 2"):
        machines.load(path)
    path.write_text(replace(own, entries=own.entries[:1] * 2).to_json())
    with pytest.raises(SettingError, match="twice"):
        machines.load(path)
    with pytest.raises(SettingError, match="no case in common"):
        machines.compare(own, replace(own, entries=()))
    other = changed(own, LINEAR, contract=entry(own, "sum fp32 1000").contract, digest="5" * 64)
    with pytest.raises(SettingError, match="another operation's"):
        machines.compare(own, other)
    right = entry(own, LINEAR)
    longer = changed(own, LINEAR, sample=right.sample * 2, digest="5" * 64)
    with pytest.raises(SettingError, match="sampled results"):
        machines.compare(longer, changed(longer, LINEAR, digest="6" * 64))
    path.write_text(own.to_json().replace(f"[{right.sample[0]},", "[-1,"))
    with pytest.raises(SettingError, match="is no record"):
        machines.load(path)
    senseless = changed(own, LINEAR, contract="samebits 1 linear\nnothing", digest="5" * 64)
    with pytest.raises(SettingError, match="linear fp32 130x264x1100"):
        machines.compare(own, senseless)


def test_operands_are_the_same_everywhere() -> None:
    x = numbers("x", 2, 3, dtype=torch.float32)
    assert [float(v).hex() for v in x.flatten()] == [
        "-0x1.35a6000000000p+0", "0x1.9eee000000000p+0", "-0x1.f714000000000p-4",
        "0x1.5242000000000p-1", "0x1.0724000000000p+1", "-0x1.3c9c000000000p+1",
    ]  # fmt: skip
    assert torch.equal(x, numbers("x", 6, dtype=torch.float32).view(2, 3))


def test_commands(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    run = CliRunner()
    made = run.invoke(app, ["record", "-o", str(a)])
    assert made.exit_code == 0 and "42 results, 0 refused" in made.output
    b.write_text(a.read_text())
    same = run.invoke(app, ["compare", str(a), str(b)])
    assert same.exit_code == 0 and "42 equal, 0 explained, 0 defect" in same.output
    first = machines.load(a)
    b.write_text(changed(first, LINEAR, digest="6" * 64).to_json())
    other = run.invoke(app, ["compare", str(a), str(b)])
    assert other.exit_code == 1 and "defect" in other.output
    assert '"verdict": "defect"' in run.invoke(app, ["compare", str(a), str(b), "--json"]).output
    nothing = run.invoke(app, ["compare", str(a), str(tmp_path / "none.json")])
    assert nothing.exit_code == 2


def test_exact_contracts_are_recorded_and_evaluated(own: Record) -> None:
    found = machines.record("cpu", "exact")
    assert all("exact" in e.contract and not e.refused for e in found.entries)
    against = machines.compare(found, own)
    assert against.count("defect") == 0 and against.count("explained") > 10
    kind, why = verdict(found, own, LINEAR)
    assert kind == "explained"
    assert why == "exact R(sum x * w + bias) against tree lanes(16); each has its own bits"
    assert all(line.allowed is None for line in against.lines)  # no interval of an exact sum
    assert "exact R(R32(sum e * v) / S(e)), e = exp(x - max x)" in "".join(
        line.why for line in against.lines if "against leaf 512" in line.why
    )
    right = entry(found, LINEAR)
    broken = changed(
        found, LINEAR, digest="7" * 64, sample=(right.sample[0] ^ 1, *right.sample[1:])
    )
    kind, why = verdict(found, broken, LINEAR)
    assert kind == "defect" and "outside what any order of additions gives (1 of" in why
