"""Replay: a request served again has the recorded bits, and what differs is named."""

from __future__ import annotations

import json
import sqlite3
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
from samebits.guard.receipts.reading import find, identity_of, open_ledger, receipt_of
from samebits.guard.receipts.record import Identity, Receipt
from samebits.integrations.transformers import replaying

NEW = 6


def recorded(model: Any, path: Path, sums: str = "operations", **options: Any) -> Path:
    with samebits.receipts(path, sums=sums):
        model.generate(
            **models.pad(models.prompts((9, 17)), "left"), max_new_tokens=NEW, eos_token_id=-1,
            pad_token_id=models.PAD, **options,
        )  # fmt: skip
    return path


def again(model: Any, path: Path, which: str = "1", **options: Any) -> Any:
    source = open_ledger(path)
    receipt = receipt_of(find(source, which))
    changes = options.pop("changes", {})
    identity = identity_of(source, receipt)
    receipt = msgspec.structs.replace(receipt, **changes)
    try:
        return replaying.replay(model, source, receipt, identity, **options)
    finally:
        source.close()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_the_same_bits_in_other_company(kind: str, tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder(kind))
    path = recorded(model, tmp_path / "r")
    for seed in (0, 1):
        found = again(model, path, "2", company=5, seed=seed)
        assert found.same and found.compared == ("tokens", "logprobs", "sums"), str(found)
    assert again(model, path, company=0).same


def test_requests_of_continuous_batching(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 20}
    served(model, models.prompts((9, 17)), tmp_path / "r", **options)
    for which in ("1", "2"):
        found = again(model, tmp_path / "r", which)
        assert found.same and "sums" in found.compared, str(found)


@pytest.mark.parametrize(
    "options",
    [{"do_sample": True, "temperature": 0.8, "top_p": 0.9, "seeds": [3, 4]}, {"num_beams": 2}],
)
def test_drawn_tokens_and_beams(options: dict[str, Any], tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    found = again(model, recorded(model, tmp_path / "r", **options), "2")
    assert found.same, str(found)


def test_a_flipped_bit_in_one_product_is_named(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama", torch.float32))
    victim = model.model.layers[1].mlp.up_proj

    def flip(_module: Any, _args: Any, output: torch.Tensor) -> None:
        if output.shape[1] == 1:  # in decoding
            output.view(torch.int32)[0, 0, 3] ^= 1

    for sums, wanted in (
        ("operations", "model.layers.1: model.layers.1.mlp.up_proj (Linear)"),
        ("layers", "model.layers.1"),
    ):
        handle = victim.register_forward_hook(flip)
        model.config  # noqa: B018
        path = recorded(model, tmp_path / sums, sums)
        handle.remove()
        found = again(model, path)
        assert not found.same and str(found.place) == wanted and found.here is None
        assert "alone and in company agree" in str(found)
        assert again(model, path, "2").same


def test_a_fault_in_attention_is_named(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama", torch.float32))
    victim = model.model.layers[0].self_attn.o_proj

    def flip(_module: Any, args: Any) -> None:
        args[0].view(torch.int32)[0, -1, 5] ^= 4

    handle = victim.register_forward_pre_hook(flip, prepend=True)
    path = recorded(model, tmp_path / "r")
    handle.remove()
    place = again(model, path).place
    assert place.layer == "model.layers.0"
    assert "between model.layers.0.self_attn.v_proj and model.layers.0.self_attn.o_proj" in str(
        place
    )


def test_what_follows_the_company_is_named(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama", torch.float32))
    path = recorded(model, tmp_path / "r", "layers")

    def follows(_module: Any, _args: Any, output: torch.Tensor) -> None:
        if len(output) > 2:
            output.view(torch.int32)[..., 3] ^= 1

    handle = model.model.layers[1].mlp.gate_proj.register_forward_hook(follows)
    found = again(model, path, company=9)
    handle.remove()
    assert str(found.here) == "model.layers.1: model.layers.1.mlp.gate_proj (Linear)"
    assert "alone and in company differ on this machine" in str(found)


def test_a_changed_receipt_is_told_by_what_differs(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    path = recorded(model, tmp_path / "r")
    receipt: Receipt = receipt_of(find(open_ledger(path), "1"))
    logprobs, output, sums = list(receipt.logprobs or ()), list(receipt.output), list(receipt.sums)
    logprobs[2] ^= 1
    output[4] ^= 1
    sums[-1] += 1
    found = again(model, path, changes={"logprobs": logprobs})
    assert found.logprob == 2 and found.token is None and found.place is None
    assert again(model, path, changes={"output": output}).token == 4
    assert again(model, path, changes={"sums": sums}).place.layer == "logits"
    assert again(model, path, changes={"logprobs": None}).compared == ("tokens", "sums")


def changed(identity: Identity, field: str, key: str = "") -> Identity:
    value = getattr(identity, field)
    new = value | {key: "another"} if key else "another"
    return msgspec.structs.replace(identity, **{field: new})


@pytest.mark.parametrize(
    ("field", "key"),
    [("model", "class"), ("model", "config"), ("plan", ""), ("device", "serial"),
     ("libraries", "torch"), ("contracts", "attention 12 bf16")],
)  # fmt: skip
def test_a_receipt_of_something_else(field: str, key: str, tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    source = open_ledger(recorded(model, tmp_path / "r"))
    receipt = receipt_of(find(source, "1"))
    identity = changed(identity_of(source, receipt), field, key)
    name = f"{field}.{key}" if key else field
    with pytest.raises(ReceiptError, match=f"{name}: the receipt has another, and here is"):
        replaying.replay(model, source, receipt, identity)
    for allow in (field, name):
        found = replaying.replay(model, source, receipt, identity, allow=[allow])
        assert found.same and f"allowed: {name}" in str(found)
    source.close()


def test_a_receipt_of_other_weights(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    path = recorded(model, tmp_path / "r")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 3] += 1
    with pytest.raises(ReceiptError, match="weights: the receipt has") as caught:
        again(model, path)
    assert "tensors that differ: model.layers.1.mlp.up_proj.weight\n" in str(caught.value)
    assert again(model, path, allow=["weights"]).place.layer == "model.layers.1"


def test_what_cannot_be_replayed(tmp_path: Path, switch: None) -> None:
    model = sbt.enable(models.decoder("llama"))
    path = recorded(model, tmp_path / "r")
    with pytest.raises(ReceiptError, match="seed: the receipt has none"):
        again(model, path, changes={"sampling": {"do_sample": True}})
    source = open_ledger(path)
    receipt = receipt_of(find(source, "1"))
    identity = msgspec.structs.replace(identity_of(source, receipt), engine="vllm")
    with pytest.raises(ReceiptError, match="engine: the receipt is of vllm"):
        replaying.replay(model, source, receipt, identity)
    with pytest.raises(ReceiptError, match="give --model"):
        replaying.load(source, msgspec.structs.replace(identity, source=""))
    with pytest.raises(ReceiptError, match="1 to 2: '77' is none of these"):
        find(source, "77")
    source.close()


def test_the_command(tmp_path: Path) -> None:
    models.decoder("llama").save_pretrained(tmp_path / "model")
    from transformers import AutoModelForCausalLM

    with samebits.deterministic():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
        path = recorded(sbt.enable(model.eval()), tmp_path / "r")
        good = CliRunner().invoke(cli.app, ["replay", str(path)])
        assert good.exit_code == 0, good.output
        assert "the same bits in the company of 7 other requests" in good.stdout
        found = CliRunner().invoke(cli.app, ["replay", str(path), "1", "--json", "--company", "2"])
        assert json.loads(found.stdout)["company"] == 2
        bad = CliRunner().invoke(cli.app, ["replay", str(path), "9"])
        assert bad.exit_code == 2 and "have the numbers 1 to 2: '9' is none" in bad.stderr
        with sqlite3.connect(path) as database:
            database.execute("UPDATE head SET sequence = 3")
        database.close()
        command = ["replay", str(path), "1", "--company", "2"]
        broken = CliRunner().invoke(cli.app, command)
        assert broken.exit_code == 2 and "the head says 3" in broken.stderr
        warned = CliRunner().invoke(cli.app, [*command, "--broken-chain"])
        assert warned.exit_code == 0 and "warning: " in warned.stderr, warned.output
        assert "the same bits in the company of 2" in warned.stdout
