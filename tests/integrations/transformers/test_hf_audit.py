"""Audit: recorded elements are the contract's, and one flipped bit is found."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import small_models as models
import torch
from test_hf_receipts import served
from typer.testing import CliRunner

import samebits
import samebits.integrations.transformers as sbt
from samebits import cli
from samebits.errors import ReceiptError
from samebits.guard.receipts import audit, verify
from samebits.guard.receipts.operands import (
    Attended,
    Gated,
    Product,
    Rotated,
    gate_of,
    rotates,
    unpack,
)
from samebits.guard.receipts.reading import find, identity_of, open_ledger, receipt_of

EVERYTHING = 10**9


def recorded(
    model: Any, path: Path, share: float = 1.0, side: str = "left", longest: int = 700
) -> Path:
    with samebits.receipts(path, audit=share):
        model.generate(
            **models.pad(models.prompts((9, longest)), side), max_new_tokens=4,
            eos_token_id=-1, pad_token_id=models.PAD,
        )  # fmt: skip
    assert verify(path).whole
    return path


def of_model(model: Any) -> audit.Tensors:
    return lambda leaf: dict(model.named_parameters(remove_duplicate=False))[leaf.name].detach()


def audited(model: Any, path: Path, which: str, **options: Any) -> audit.Audit:
    source = open_ledger(path)
    receipt = receipt_of(find(source, which))
    found = audit.audit(source, receipt, identity_of(source, receipt), of_model(model), **options)
    source.close()
    return found


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_all_recorded_elements_are_the_contracts(kind: str, tmp_path: Path, switch: None) -> None:
    model = models.decoder(kind)
    model.config.max_position_embeddings = 1024
    path = recorded(sbt.enable(model), tmp_path / "r")
    for which in ("1", "2"):
        found = audited(model, path, which, elements=EVERYTHING)
        assert found.good, str(found)
        assert sum(found.elements.values()) == found.recorded
        assert found.elements["attention"] == 2 * 12 and found.links == 2
        assert found.elements["linear"] >= 288
        known = kind != "gpt_oss"  # its gates and its rotation are others
        assert found.elements.get("gate", 0) == known * 2 * 80
        assert found.elements.get("rotary", 0) == known * 2 * 12
    some = audited(model, path, "1", elements=50)
    assert sum(some.elements.values()) == 50 and "6 %" in str(some)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_continuous_batching(kind: str, tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder(kind))
    rows = models.prompts((5, 23, 14, 40))
    found = served(model, rows, tmp_path / "r", tokens=24, audit=1.0)
    assert verify(tmp_path / "r").whole and all(len(r.audit) == 1 for r in found)
    for number in range(1, len(rows) + 1):
        one = audited(model, tmp_path / "r", str(number), elements=EVERYTHING)
        assert one.elements["rotary"] == 24
        assert one.good and one.links == 2 and one.elements["attention"] == 24, str(one)


def test_a_flipped_bit_is_found(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    victim = model.model.layers[1].mlp.up_proj

    def flip(_module: Any, _args: Any, output: torch.Tensor) -> None:
        output.view(torch.int16)[..., 3] ^= 1

    handle = victim.register_forward_hook(flip)
    path = recorded(model, tmp_path / "r")
    handle.remove()
    found = audited(model, path, "1", elements=EVERYTHING)
    (wrong,) = found.wrong
    assert (wrong.place, wrong.element) == ("model.layers.1.mlp.up_proj", 3)
    assert wrong.recorded ^ wrong.computed == 1
    assert not found.good and "WRONG: linear model.layers.1.mlp.up_proj" in str(found)


def test_a_result_of_attention_that_was_changed_on_its_way_is_found(
    tmp_path: Path, switch: None
) -> None:
    model = sbt.enable(models.decoder("llama"))

    def flip(_module: Any, args: Any) -> None:
        args[0].view(torch.int16).bitwise_xor_(1)

    handle = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(flip)
    path = recorded(model, tmp_path / "r")
    handle.remove()
    found = audited(model, path, "1", elements=EVERYTHING)
    assert not found.wrong and (found.links, found.broken) == (1, 1) and not found.good


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_gate_that_went_wrong_is_found(kind: str, tmp_path: Path, switch: None) -> None:
    """Products on both sides of it are right; all dtypes round between function and product."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        model = sbt.enable(models.decoder(kind, dtype))

        def flip(_module: Any, args: Any) -> None:
            args[0].view(torch.int32 if args[0].element_size() == 4 else torch.int16)[..., 5] ^= 1

        handle = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(flip)
        path = recorded(model, tmp_path / f"{dtype}", longest=5)
        handle.remove()
        found = audited(model, path, "1", elements=EVERYTHING)
        (wrong,) = found.wrong
        assert (wrong.op, wrong.place, wrong.element) == ("gate", "model.layers.1.mlp", 5)
        assert wrong.recorded ^ wrong.computed == 1 and found.elements["gate"] == 2 * 80


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_rotation_that_went_wrong_is_found(
    kind: str, tmp_path: Path, switch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product before it and the attention behind it are right."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        model = sbt.enable(models.decoder(kind, dtype))
        home: Any = sys.modules[type(model.model.layers[0].self_attn).__module__]
        right, calls = home.apply_rotary_pos_emb, []

        @functools.wraps(right)
        def wrong(q: Any, k: Any, *tables: Any, right: Any = right, calls: Any = calls) -> Any:
            q, k = right(q, k, *tables)
            calls.append(q)
            if len(calls) % 2 == 0:  # the second layer
                q.view(torch.int32 if q.element_size() == 4 else torch.int16)[..., 7] ^= 1
            return q, k

        with monkeypatch.context() as patch:
            patch.setattr(home, "apply_rotary_pos_emb", wrong)
            path = recorded(model, tmp_path / f"{dtype}", longest=5)
        found = audited(model, path, "1", elements=EVERYTHING)
        assert [(w.op, w.place, w.element) for w in found.wrong] == [
            ("rotary", "model.layers.1.self_attn", 7)
        ]
        assert found.wrong[0].recorded ^ found.wrong[0].computed == 1


def test_rotations_of_another_formula_are_left_alone(switch: None) -> None:
    known = {
        kind: rotates(models.decoder(kind).model.layers[0].self_attn) for kind in models.DECODERS
    }
    assert known == {
        "llama": True, "gemma2": True, "mistral": True, "mixtral": True,
        "qwen3": False, "gpt_oss": False, "deepseek_v3": False,
    }  # fmt: skip


def test_gates_of_another_formula_are_left_alone(switch: None) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    class Scaled(LlamaMLP):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x) * 2) * self.up_proj(x))
            return y

    mlp = models.decoder("llama").model.layers[0].mlp
    assert gate_of(mlp) == "silu" and gate_of(Scaled(models.config("llama"))) is None
    mlp.up_proj = torch.nn.Sequential(mlp.up_proj)
    assert gate_of(mlp) is None


def test_stock_products_are_not_the_contracts(tmp_path: Path) -> None:
    model = models.decoder("llama", torch.float32)
    found = audited(model, recorded(model, tmp_path / "r"), "1", elements=EVERYTHING)
    assert found.wrong


def test_positions_are_chosen_evenly(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    positions = set()
    for i in range(24):
        source = open_ledger(recorded(model, tmp_path / f"{i}", longest=5))
        receipt = receipt_of(find(source, "2"))
        (raw,) = (source.object(name) for name in receipt.audit)
        samples = unpack(raw or b"")
        source.close()
        assert len({s.position for s in samples}) == 1
        positions.add(samples[0].position)
        assert {type(s) for s in samples} == {Product, Attended, Gated, Rotated}
        keys = [s.keys for s in samples if isinstance(s, Attended)]
        assert keys == [samples[0].position + 1] * 2
    assert len(positions) > 4 and positions <= set(range(8))


def test_what_cannot_be_audited(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    with pytest.raises(ReceiptError, match="holds no operands"):
        audited(model, recorded(model, tmp_path / "none", 0.0), "1")
    path = recorded(model, tmp_path / "r")
    with pytest.raises(ReceiptError, match="elements: 0"):
        audited(model, path, "1", elements=0)
    source = open_ledger(path)
    receipt = receipt_of(find(source, "1"))
    identity = identity_of(source, receipt)
    tensors = of_model(model)
    for field, value, message in (
        ("weights", "0" * 64, "recorded root"), ("manifest", "0" * 64, "missing or altered"),
        ("contracts", {}, "contracts: the receipt names none for"),
    ):  # fmt: skip
        with pytest.raises(ReceiptError, match=message):
            audit.audit(
                source, receipt, msgspec.structs.replace(identity, **{field: value}), tensors
            )
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] += 1
    with pytest.raises(ReceiptError, match=r"mlp\.up_proj\.weight is not the tensor that"):
        audit.audit(source, receipt, identity, tensors, elements=EVERYTHING)
    source.close()


def test_the_command(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    models.decoder("llama").save_pretrained(tmp_path / "model")
    with samebits.deterministic():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
        path = recorded(sbt.enable(model.eval()), tmp_path / "r")
    good = subprocess.run(  # a process in which nothing else has been imported
        [sys.executable, "-m", "samebits", "audit", str(path), "2", "--elements", "300"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert good.returncode == 0, good.stderr
    assert "300 of" in good.stdout and "all bits are the contract's" in good.stdout
    weights = ["--weights", str(tmp_path / "model"), "--json"]
    found = CliRunner().invoke(cli.app, ["audit", str(path), *weights])
    values = json.loads(found.stdout)
    assert sum(values["elements"].values()) == min(1000, values["recorded"]) > 600
    missing = CliRunner().invoke(cli.app, ["audit", str(path), "--weights", str(tmp_path / "no")])
    lines = tmp_path / "r.jsonl"
    assert (
        CliRunner().invoke(cli.app, ["receipts", "export", str(path), "-o", str(lines)]).exit_code
        == 0
    )
    assert CliRunner().invoke(cli.app, ["receipts", "verify", str(lines)]).exit_code == 0
    carried = CliRunner().invoke(cli.app, ["audit", str(lines), "2", *weights])
    assert carried.exit_code == 0, carried.output
    assert missing.exit_code == 2 and "no safetensors files" in missing.stderr
