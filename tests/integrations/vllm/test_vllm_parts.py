"""The plugin's own decisions, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from samebits import ops
from samebits.errors import SettingError, ShapeError, SwitchError, UncoveredError
from samebits.integrations.vllm import (
    config,
    hooks,
    layers,
    model,
    moe,
    options,
    requests,
    runner2,
    sampler,
    verify,
)
from samebits.integrations.vllm.options import Options, requested
from samebits.integrations.vllm.patches import Patches
from samebits.integrations.vllm.workers import decides_bits
from samebits.ops.parallel.ranks import disagreement


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SAMEBITS", "VLLM_BATCH_INVARIANT"):
        monkeypatch.delenv(name, raising=False)


def test_importing_samebits_does_not_import_vllm() -> None:
    code = "import samebits, samebits.integrations.vllm, sys; print('vllm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# ---- what is asked for ---------------------------------------------------------------------------


def test_it_is_asked_for_by_the_configuration_or_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert requested({}) is requested(None) is requested({"samebits": False}) is None
    assert requested({"samebits": True}) == Options()
    wanted = {"policy": "warn", "plan": "p.json", "tp_invariant": True}
    assert requested({"samebits": wanted}) == Options("warn", "p.json", True)
    monkeypatch.setenv("SAMEBITS", "1")
    assert requested({}) == Options()
    assert requested({"samebits": {"policy": "warn"}}) == Options("warn")
    with pytest.raises(SettingError, match="turns it off"):
        requested({"samebits": False})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("yes", "true, false or a table"),
        ({"polcy": "warn"}, "no option 'polcy'"),
        ({"policy": "allow"}, "policy='allow'"),
        ({"tp_invariant": "maybe"}, "tp_invariant='maybe'"),
        ({"plan": 3}, "plan=3"),
    ],
)
def test_options_that_are_not_understood(value: Any, text: str) -> None:
    with pytest.raises(SettingError, match=text):
        requested({"samebits": value})


def test_several_ranks_share_a_tree_unless_told_otherwise() -> None:
    assert not Options().shared_tree(1) and Options().shared_tree(2)
    assert Options(tp_invariant=True).shared_tree(1)
    assert not Options(tp_invariant=False).shared_tree(4)


# ---- what is refused -----------------------------------------------------------------------------


def vllm_config(**changes: Any) -> SimpleNamespace:
    """A configuration that is covered, with changes like ``model__quantization="fp8"``."""
    parts: dict[str, dict[str, Any]] = {
        "model": {
            "quantization": None, "use_mla": False, "is_hybrid": False, "is_attention_free": False,
            "is_multimodal_model": False, "dtype": torch.bfloat16, "logprobs_mode": "raw_logprobs",
            "is_moe": False,
        },
        "parallel": {
            "tensor_parallel_size": 1, "data_parallel_size": 1, "enable_expert_parallel": False,
            "decode_context_parallel_size": 1, "enable_dbo": False,
        },
        "cache": {"cache_dtype": "auto", "calculate_kv_scales": False},
        "compilation": {"mode": 0, "backend": "inductor", "pass_config": SimpleNamespace()},
        "attention": {"backend": SimpleNamespace(name="CUSTOM")},
    }  # fmt: skip
    whole: dict[str, Any] = {"speculative": None, "lora": None}
    for name, value in changes.items():
        part, _, field = name.partition("__")
        if field:
            parts[part][field] = value
        else:
            whole[part] = value
    whole |= {name: SimpleNamespace(**fields) for name, fields in parts.items()}
    return SimpleNamespace(**{f"{name}_config": value for name, value in whole.items()})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model__quantization": "fp8"}, "quantization='fp8'"),
        ({"model__use_mla": True}, "latent attention"),
        ({"model__is_hybrid": True}, "state-space"),
        ({"model__is_multimodal_model": True}, "multi-modal"),
        ({"model__dtype": torch.float32}, "float32 on a GPU"),
        ({"model__logprobs_mode": "processed_logits"}, "logprobs_mode"),
        ({"cache__cache_dtype": "int8_per_token_head"}, "kv_cache_dtype"),
        ({"cache__calculate_kv_scales": True}, "calculate_kv_scales"),
        ({"parallel__tensor_parallel_size": 3}, "tensor_parallel_size=3"),
        ({"parallel__decode_context_parallel_size": 2}, "decode_context_parallel_size"),
        ({"parallel__enable_dbo": True}, "enable_dbo"),
        ({"model__is_moe": True, "parallel__tensor_parallel_size": 2}, "enable-expert-parallel"),
        ({"model__is_moe": True, "parallel__data_parallel_size": 2}, "data parallelism"),
        ({"lora": SimpleNamespace(), "parallel__tensor_parallel_size": 2}, "LoRA"),
        ({"lora": SimpleNamespace(), "model__is_moe": True}, "LoRA"),
        ({"speculative": SimpleNamespace(rejection_sample_method="synthetic")}, "synthetic"),
        ({"compilation__mode": 3}, "'inductor'"),
        (
            {
                "compilation__mode": 3, "compilation__backend": "eager",
                "compilation__pass_config": SimpleNamespace(fuse_allreduce_rms=True),
            },
            "fuse_allreduce_rms",
        ),
        ({"attention__backend": SimpleNamespace(name="FLASH_ATTN")}, "FLASH_ATTN"),
    ],
)  # fmt: skip
def test_a_configuration_is_refused_with_its_reason(changes: dict[str, Any], text: str) -> None:
    found = config.reasons(vllm_config(**changes), gpu=True)
    assert len(found) == 1 and text in found[0]


def test_a_covered_configuration_has_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.reasons(vllm_config(), gpu=True) == []
    assert config.reasons(vllm_config(cache__cache_dtype="fp8_e4m3"), gpu=True) == []
    assert config.reasons(vllm_config(model__dtype=torch.float32), gpu=False) == []
    assert len(config.reasons(vllm_config(cache__cache_dtype="fp8_e4m3"), gpu=False)) == 1
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert "VLLM_BATCH_INVARIANT" in config.reasons(vllm_config(), gpu=True)[0]


def test_all_reasons_are_given_at_once_or_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(UncoveredError, match=r"(?s)one.*two.*policy"):
        options.settle(Options(), ["one", "two"], "this model")
    with caplog.at_level("WARNING", logger="vllm.samebits"):
        options.settle(Options(policy="warn"), ["one", "two"], "this model")
    assert "one" in caplog.text and "two" in caplog.text
    options.settle(Options(), [], "this model")


class CustomOp(torch.nn.Module):
    """Stands for vLLM's class of that name."""


class RMSNorm(CustomOp):
    name = "rms_norm"


class MambaMixer(CustomOp):
    name = "mamba_mixer"


def test_a_model_is_refused_for_kernels_that_the_switch_cannot_see() -> None:
    covered = torch.nn.ModuleDict({"norm": RMSNorm(), "linear": torch.nn.Linear(4, 4)})
    assert model.reasons(covered) == []
    covered["mixer"], covered["mixer2"] = MambaMixer(), MambaMixer()
    covered["linear"].quant_method = SimpleNamespace()
    assert model.reasons(covered) == [
        "SimpleNamespace: quantised weights (linear)",
        "MambaMixer: no contract covers vLLM's kernels for it (mixer and 1 more)",
    ]


# ---- ids of requests -----------------------------------------------------------------------------


class Params(SimpleNamespace):
    """Stands for vLLM's ``SamplingParams``."""

    all_stop_token_ids = property(lambda self: self._all_stop_token_ids)
    bad_words_token_ids = property(lambda self: self._bad_words_token_ids)


def asked(**changes: Any) -> SimpleNamespace:
    """A request; changes of its parameters, or of its prompt."""
    prompt = changes.pop("prompt", [5, 6])
    fields: dict[str, Any] = {
        "_all_stop_token_ids": {2}, "_bad_words_token_ids": None, "logit_bias": None,
        "allowed_token_ids": None,
    }  # fmt: skip
    return SimpleNamespace(
        prompt_token_ids=prompt, mm_features=None, sampling_params=Params(**fields | changes)
    )


def test_ids_that_no_row_of_logits_has_are_dropped() -> None:
    request = asked(
        _all_stop_token_ids={2, 99, 100, -1}, logit_bias={0: 1.0, 100: 2.0},
        _bad_words_token_ids=[[1, 2], [1, 100], [-7]],
    )  # fmt: skip
    given = request.sampling_params
    requests.admit(request, 100)
    taken = request.sampling_params
    assert taken._all_stop_token_ids == {2, 99} and taken.logit_bias == {0: 1.0}
    assert taken._bad_words_token_ids == [[1, 2]]
    assert given._all_stop_token_ids == {2, 99, 100, -1}  # the caller's own are left as they are
    only = asked(logit_bias={100: 1.0}, _bad_words_token_ids=[[100]])
    requests.admit(only, 100)
    assert only.sampling_params.logit_bias is only.sampling_params._bad_words_token_ids is None


def test_a_request_whose_ids_are_inside_is_left_alone() -> None:
    request = asked(_bad_words_token_ids=[[0, 99]], allowed_token_ids=[0, 99], prompt=[0, 99])
    given = request.sampling_params
    requests.admit(request, 100)
    assert request.sampling_params is given


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"prompt": [5, 100]}, "the prompt has the token id 100.* to 99"),
        ({"prompt": [-1, 5]}, "the prompt has the token id -1"),
        ({"allowed_token_ids": [3, 100]}, "allowed_token_ids has the token id 100"),
    ],
)
def test_a_request_that_cannot_do_without_an_id_outside_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(SettingError, match=text):
        requests.admit(asked(**changes), 100)


def test_only_an_engine_that_asks_for_samebits_looks_at_ids() -> None:
    taker = SimpleNamespace(
        vllm_config=SimpleNamespace(additional_config={}),
        model_config=SimpleNamespace(get_vocab_size=lambda: 100),
    )
    request = asked(_all_stop_token_ids={100})
    assert hooks.request_taken(lambda self: request, taker) is request
    assert request.sampling_params._all_stop_token_ids == {100}
    taker.vllm_config.additional_config = {"samebits": True}
    hooks.request_taken(lambda self: request, taker)
    assert request.sampling_params._all_stop_token_ids == set()


# ---- shared experts ------------------------------------------------------------------------------


def test_where_experts_lie_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the device, and a step in a CUDA graph cannot wait for that."""
    layer = SimpleNamespace(
        activation="silu", apply_router_weight_on_input=False, w13_weight=torch.ones(2, 8, 4),
        w2_weight=torch.ones(2, 4, 4), expert_map=torch.tensor([-1, -1, 0, 1]),
        moe_config=SimpleNamespace(skip_final_all_reduce=False),
    )  # fmt: skip
    moe._weights_ready(None, layer)
    seen: list[Any] = []
    monkeypatch.setattr(moe, "unsupported", lambda _: pytest.fail("asked in a step"))
    monkeypatch.setattr(moe.opaque, "moe", lambda *operands: seen.append(operands))
    moe._experts(None, layer, torch.ones(3, 4), torch.ones(3, 1), torch.ones(3, 1))
    assert seen[0][-2:] == ("silu", True)
    monkeypatch.undo()
    layer.expert_map = torch.tensor([0, -1, 1, -1])
    moe._weights_ready(None, layer)
    with pytest.raises(UncoveredError, match="in order"):
        moe._experts(None, layer, torch.ones(3, 4), torch.ones(3, 1), torch.ones(3, 1))


def test_shared_experts_return_whole_results() -> None:
    mlp, other = torch.nn.Module(), torch.nn.Module()
    mlp.down, mlp.up = torch.nn.Module(), torch.nn.Linear(2, 2)
    mlp.down.reduce_results = other.reduce_results = False
    runner, plain = torch.nn.Module(), torch.nn.Module()
    runner._shared_experts, plain._shared_experts = SimpleNamespace(_layer=mlp), None
    moe.whole(torch.nn.ModuleList((runner, plain, other)))
    assert mlp.down.reduce_results and not other.reduce_results


# ---- what ranks agree on -------------------------------------------------------------------------


def test_a_rank_with_another_plan_is_found() -> None:
    mine = decides_bits(Options())
    assert disagreement([mine, dict(mine)]) == ""
    other = mine | {"contracts and schedules": "another"}
    assert "rank 1" in disagreement([mine, other, mine])
    assert "policy" in disagreement([mine, decides_bits(Options(policy="warn"))])


@pytest.mark.parametrize(("k", "parts"), [(4096, 8), (1536, 4), (768, 2)])
def test_leaves_of_a_row_parallel_product_follow_k(k: int, parts: int) -> None:
    assert layers.shared_parts(k) == parts


@pytest.mark.parametrize(("k", "ranks", "edge"), [(576, 1, 256), (768, 4, 512), (1536, 8, 1024)])
def test_a_k_without_common_leaves_is_refused_when_weights_are_loaded(
    k: int, ranks: int, edge: int
) -> None:
    class Row:
        forward, input_size, tp_size = layers._row_parallel, k, ranks

    with pytest.raises(ShapeError, match=f"K = {k} .* no multiple of {edge}: {ranks} ranks"):
        layers._weights_ready(None, Row())


def test_features_of_all_ranks_count_shared_heads_once() -> None:
    qkv = SimpleNamespace(total_num_heads=32, total_num_kv_heads=8, head_size=128, output_size=9999)
    assert layers.global_features(qkv) == (32 + 8 + 8) * 128
    assert layers.global_features(SimpleNamespace(output_size=4096)) == 4096
    assert layers.global_features(SimpleNamespace(num_embeddings_padded=512)) == 512


def test_patches_are_undone_exactly() -> None:
    class Base:
        def method(self) -> int:
            return 1

        @staticmethod
        def static() -> int:
            return 1

    class Derived(Base):
        pass

    before = dict(vars(Base)), dict(vars(Derived))
    patches = Patches()
    patches.set(Base, "static", staticmethod(lambda: 2))
    patches.set(Derived, "method", lambda self: 2)
    patches.set(Derived, "method", lambda self: 3)
    assert (Base.static(), Base().method(), Derived().method()) == (2, 1, 3)
    with pytest.raises(SwitchError, match=r"has no .*Base\.other"):
        patches.set(Base, "other", None)
    patches.undo()
    assert (dict(vars(Base)), dict(vars(Derived))) == before


# ---- draws and drafts ----------------------------------------------------------------------------


def test_requests_without_a_seed_draw_differently_and_alike_on_every_rank() -> None:
    seeds = {sampler.seed_of(str(i), 0) for i in range(1000)}
    assert len(seeds) == 1000 and all(0 <= seed < 2**63 for seed in seeds)
    assert sampler.seed_of("a", 1) == sampler.seed_of("a", 1) != sampler.seed_of("a", 2)


#: Three requests with 2, 0 and 3 drafts; the first misses its second one, the last hits all.
COUNTS = [2, 0, 3]
DRAFTS = torch.tensor([11, 99, 31, 32, 33])
DRAWN = torch.tensor([11, 12, 31, 32, 33, 13, 21, 34])  # five drafted rows, then one for each
KEPT = [[11, 12, -1, -1], [21, -1, -1, -1], [31, 32, 33, 34]]


def test_a_draft_is_kept_up_to_the_first_token_that_was_not_drawn() -> None:
    request, step = verify.rows_of(COUNTS, torch.device("cpu"))
    assert request.tolist() == [0, 0, 2, 2, 2, 0, 1, 2] and step.tolist() == [
        0,
        1,
        0,
        1,
        2,
        2,
        0,
        3,
    ]
    kept = verify.accepted(DRAWN, DRAFTS, request, step, (3, 4))
    assert kept.tolist() == KEPT


def test_both_runners_keep_the_same() -> None:
    offsets = torch.tensor([0, 3, 4, 8], dtype=torch.int32)
    step = torch.tensor([0, 1, 2, 0, 0, 1, 2, 3])
    drawn = torch.tensor([11, 12, 13, 21, 31, 32, 33, 34])
    inputs = torch.tensor([10, 11, 99, 20, 30, 31, 32, 33])  # what the model was given
    tokens, count = runner2.keep(drawn, inputs, offsets, step, 3)
    assert count.tolist() == [2, 1, 4]
    for row, kept, n in zip(tokens.tolist(), KEPT, count.tolist(), strict=True):
        assert row[:n] == kept[:n]


def test_columns_of_logprobs_have_the_bits_of_log_softmax() -> None:
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(0))
    ids = torch.randint(700, (5, 3), generator=torch.Generator().manual_seed(1))
    expected = ops.log_softmax(logits, -1).gather(1, ids)
    assert torch.equal(runner2.token_logprobs(logits, ids.int()), expected)


class SamebitsImpl:
    """What the plugin's attention derives from, by name."""


def test_attention_of_the_plugin_is_known_by_what_it_derives_from() -> None:
    class OnSomeDevice(SamebitsImpl):
        pass

    class FlashAttentionImpl:
        pass

    class Attention(torch.nn.Module):
        attn_backend = object()

        def __init__(self, impl: object) -> None:
            super().__init__()
            self.impl = impl

    assert model.reasons(Attention(OnSomeDevice())) == []
    (why,) = model.reasons(Attention(FlashAttentionImpl()))
    assert "Attention on FlashAttentionImpl: not the backend of samebits" in why
