"""What the plugin sets in a configuration, and the reasons for which it refuses one.

Everything is read from attributes of a ``VllmConfig``, so that the rules can be read, and tested,
without vLLM.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

log = logging.getLogger("vllm.samebits")
_BACKEND = "samebits.integrations.vllm.backend.SamebitsBackend"

#: Tensor-parallel sizes that share one tree: the leaves of `balanced(8)` go to ranks evenly.
TP_SIZES = (1, 2, 4, 8)
#: Cache types of vLLM, by what the attention contract takes; fp8 only with scales that are given.
CACHE_TYPES = ("auto", "bfloat16", "float16", "float32")
FP8_CACHE_TYPES = ("fp8", "fp8_e4m3")


def prepare(config: Any) -> None:
    """Sets what the promise needs, before vLLM fills in its defaults.

    - Attention is ours (on a CPU vLLM ignores the choice, and its own backend is replaced).
    - Without a word of the user's, no torch.compile: the fused loops of Inductor have other
      roundings than the operations, and ours are fused already; decoding is captured in full CUDA
      graphs. Where the user asks for vLLM's compilation, its pieces run operation by operation.
    - Cascade attention, custom all-reduce: off, they follow the batch.
    - Speculative decoding: no asynchronous scheduling, so that a draw's position is known.
    """
    from vllm.config.compilation import CompilationMode, CUDAGraphMode

    compilation = config.compilation_config
    if compilation.mode is None:
        compilation.mode = CompilationMode.NONE
        if compilation.cudagraph_mode is None:
            compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    elif compilation.mode and compilation.backend in ("", "inductor"):
        log.info("samebits: compiled pieces run operation by operation (backend 'eager')")
        compilation.backend = "eager"
    config.model_config.disable_cascade_attn = True
    config.parallel_config.disable_custom_all_reduce = True
    if config.speculative_config is not None:
        config.scheduler_config.async_scheduling = False
    if _on_gpu():
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        if config.attention_config.backend is None:
            config.attention_config.backend = AttentionBackendEnum.CUSTOM
    offer_attention()


def offer_attention() -> None:
    """Registers the attention backend with vLLM in this process. Idempotent.

    On a GPU it is chosen by the configuration; on a CPU, where vLLM has no choice, it stands in for
    the only one.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    name = "CUSTOM" if _on_gpu() else "CPU_ATTN"
    register_backend(AttentionBackendEnum[name], _BACKEND)


def finish(config: Any, backend: str) -> None:
    """Puts back the compiler that `prepare` chose, for which vLLM's CPU platform puts Inductor."""
    if backend == "eager":
        config.compilation_config.backend = backend


def _on_gpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def reasons(config: Any, gpu: bool | None = None) -> list[str]:
    """Why this configuration cannot be promised anything; empty if it can.

    Args:
        config: a finished ``VllmConfig``.
        gpu: whether it is for a GPU; None: ask vLLM's platform.
    """
    gpu = _on_gpu() if gpu is None else gpu
    model, parallel = config.model_config, config.parallel_config
    tp = parallel.tensor_parallel_size
    found = [*_model(model, gpu), *_cache(config.cache_config, gpu), *_compilation(config, gpu)]
    if tp not in TP_SIZES:
        sizes = ", ".join(map(str, TP_SIZES))
        found.append(f"tensor_parallel_size={tp}: the sizes that share one tree are {sizes}")
    found += [
        f"{size} above 1: attention would be cut by the number of ranks"
        for size in ("decode_context_parallel_size", "prefill_context_parallel_size")
        if getattr(parallel, size, 1) > 1
    ]
    if getattr(parallel, "enable_dbo", False):
        found.append("enable_dbo: micro-batches are made from the batch's size")
    if model.is_moe and parallel.data_parallel_size > 1:
        found.append("a mixture of experts with data parallelism: ranks would share each step")
    if model.is_moe and tp > 1 and not parallel.enable_expert_parallel:
        found.append(
            "a mixture of experts whose experts are cut by the number of ranks: give "
            "--enable-expert-parallel, so that each rank has whole experts"
        )
    if _offloaded(config):
        found.append("weights offloaded to the host: they move while layers hold on to them")
    lora = config.lora_config
    if lora is not None:
        if tp > 1:
            found.append("LoRA on several tensor-parallel ranks")
        if model.is_moe:
            found.append("LoRA on a mixture of experts")
    if getattr(config.speculative_config, "rejection_sample_method", None) == "synthetic":
        found.append("rejection_sample_method='synthetic': accepted by chance, not by tokens")
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") == "1":
        found.append("VLLM_BATCH_INVARIANT=1: vLLM's own mode replaces the same kernels; unset it")
    return found


def receipts_reasons(config: Any, wanted: str | dict[str, Any] | None) -> list[str]:
    """Why receipts cannot be kept with a configuration; empty if they can, or nobody wants them."""
    if wanted is None:
        return []
    found = []
    parallel = config.parallel_config
    if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
        found.append("receipts on several ranks: what they compute is not brought together yet")
    if getattr(config, "use_v2_model_runner", False):
        found.append("receipts with the second model runner: set VLLM_USE_V2_MODEL_RUNNER=0")
    graphs = getattr(config.compilation_config.cudagraph_mode, "name", "NONE") != "NONE"
    sums = wanted.get("sums", "layers") if isinstance(wanted, dict) else "layers"
    if graphs and _on_gpu() and sums != "none":
        found.append(
            "receipts with checksums in CUDA graphs, which call no hooks: use sums='none' or "
            "enforce_eager"
        )
    if isinstance(wanted, dict) and wanted.get("audit"):
        found.append("receipts with operands for an audit: only transformers keeps them")
    return found


def _offloaded(config: Any) -> bool:
    offload = getattr(config, "offload_config", None)
    uva, prefetch = getattr(offload, "uva", None), getattr(offload, "prefetch", None)
    return bool(getattr(uva, "cpu_offload_gb", 0) or getattr(prefetch, "offload_group_size", 0))


def _model(model: Any, gpu: bool) -> list[str]:
    found = []
    if model.quantization is not None:
        found.append(f"quantization={model.quantization!r}: only bf16, fp16 and fp32 weights")
    if getattr(model, "use_mla", False):
        found.append("multi-head latent attention")
    if getattr(model, "is_hybrid", False) or getattr(model, "is_attention_free", False):
        found.append("state-space layers: their scans have no contract")
    if getattr(model, "is_multimodal_model", False):
        found.append("multi-modal input: encoder attention is not ours")
    if gpu and model.dtype is torch.float32:
        found.append("dtype float32 on a GPU: attention takes bfloat16 and float16")
    if str(getattr(model, "logprobs_mode", "raw_logprobs")).startswith("processed"):
        found.append(f"logprobs_mode={model.logprobs_mode!r}: use raw_logprobs or raw_logits")
    return found


def _cache(cache: Any, gpu: bool) -> list[str]:
    kind = str(cache.cache_dtype)
    known = (*CACHE_TYPES, *FP8_CACHE_TYPES) if gpu else CACHE_TYPES
    found = []
    if kind not in known:
        found.append(f"kv_cache_dtype={kind!r}: the cache can be {', '.join(known)}")
    if getattr(cache, "calculate_kv_scales", False):
        found.append("calculate_kv_scales: scales would come from the batch")
    return found


def _compilation(config: Any, gpu: bool) -> list[str]:
    compilation, found = config.compilation_config, []
    if compilation.mode and compilation.backend not in ("", "eager"):
        found.append(
            f"compilation backend {compilation.backend!r}: its fused loops round elsewhere; "
            "leave mode and backend out, or use backend 'eager'"
        )
    passes = getattr(compilation, "pass_config", None)
    found += [
        f"pass_config.{name}: a fused collective adds in an order of its own"
        for name in ("fuse_allreduce_rms", "enable_sp", "fuse_gemm_comms")
        if getattr(passes, name, False) and compilation.mode
    ]
    backend = getattr(config.attention_config, "backend", None)
    if gpu and getattr(backend, "name", None) != "CUSTOM":
        found.append(f"attention backend {getattr(backend, 'name', backend)}: leave the choice out")
    return found
