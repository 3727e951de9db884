"""The bundled model: a byte-level Llama of 1.9 M parameters that has read Shakespeare.

Plain PyTorch throughout, so that it runs on whatever kernels PyTorch calls for ``linear``,
``rms_norm``, ``silu`` and ``scaled_dot_product_attention``: stock ones, or while the switch is on
those of samebits.

    model = load()
    print(generate(model, b"ROMEO:\n", 200).decode())

Letters in shapes: B batch, T tokens of this call, K key columns (those in the cache, then these T),
H query heads, G key/value heads, D head size, C model width, V = 256 byte values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from samebits.errors import ShapeError

WEIGHTS = Path(__file__).with_suffix(".safetensors")
PAD = 0  # any byte would do: what sits under a padding column is never read


@dataclass(frozen=True, slots=True)
class TinyConfig:
    """Sizes of the model; saved as JSON in the metadata of the weights file."""

    vocab: int = 256
    width: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    head_size: int = 32
    hidden: int = 448
    max_positions: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5


class KVCache:
    """Preallocated keys and values of every layer; `length` columns are filled.

    `keys`, `values`: [layers, B, G, capacity, D]. `mask`: bool [B, capacity], False on padding.
    """

    def __init__(
        self,
        config: TinyConfig,
        batch: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_size)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.mask = torch.ones(batch, capacity, dtype=torch.bool, device=device)
        self.padded = False
        self.length = 0

    @property
    def capacity(self) -> int:
        """Columns that fit."""
        return self.keys.shape[3]

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put `key` and `value` [B, G, T, D] behind the filled columns; return all K columns."""
        end = self.length + key.shape[2]
        self.keys[layer, :, :, self.length : end] = key
        self.values[layer, :, :, self.length : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


@dataclass(frozen=True, slots=True)
class Step:
    """What every layer of one forward call shares."""

    cos: Tensor  # [B or 1, 1, T, D/2]
    sin: Tensor
    mask: Tensor | None  # bool [B or 1, 1, T, K], True = visible; None = all visible, or causal
    causal: bool  # query t sees the columns 0..t
    cache: KVCache | None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021), pairs (i, i + D/2), of `x` [B, heads, T, D]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    """Causal attention with grouped key/value heads (Ainslie et al. 2023)."""

    def __init__(self, config: TinyConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.head_size = layer, config.head_size
        self.q = nn.Linear(config.width, config.heads * config.head_size, bias=False)
        self.k = nn.Linear(config.width, config.kv_heads * config.head_size, bias=False)
        self.v = nn.Linear(config.width, config.kv_heads * config.head_size, bias=False)
        self.out = nn.Linear(config.heads * config.head_size, config.width, bias=False)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        q, k = rotate(q, step.cos, step.sin), rotate(k, step.cos, step.sin)
        if step.cache is not None:
            k, v = step.cache.write(self.layer, k, v)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=step.mask, is_causal=step.causal, enable_gqa=True
        )
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate x) * up x)."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class RMSNorm(nn.Module):
    """x / rms(x) * weight (Zhang and Sennrich 2019)."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        self.eps = config.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: TinyConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.attention(self.attention_norm(x), step)
        y: Tensor = x + self.mlp(self.mlp_norm(x))
        return y


class TinyLM(nn.Module):
    """Decoder-only transformer over bytes."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or TinyConfig()
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = RMSNorm(config)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        cos, sin = _rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(
        self,
        ids: Tensor,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of the next byte after each of `ids`.

        One call on a whole prompt is prefill, several with a cache are chunked prefill, and T = 1
        with a cache is decode.

        Args:
            ids: int64 [B, T], bytes.
            cache: the columns of earlier calls; this call appends its T columns.
            positions: int64 [B, T] or [1, T], for the rotary embedding. Default: the real tokens of
                each row counted from 0, so that padding on the left does not shift a row.
            attention_mask: bool [B, T], False where `ids` is padding. A padding column is invisible
                to every other one, and its own logits mean nothing. The cache remembers the mask.

        Raises:
            ShapeError: shapes that do not fit, a full cache, or more columns than positions.
        """
        if ids.dim() != 2 or not ids.shape[1]:
            raise ShapeError(f"ids must be [batch, tokens >= 1], got shape {tuple(ids.shape)}")
        if attention_mask is not None and attention_mask.shape != ids.shape:
            raise ShapeError(
                f"attention_mask must have the shape of ids, {tuple(ids.shape)}, "
                f"got {tuple(attention_mask.shape)}"
            )
        if cache is not None and (
            ids.shape[0] != cache.keys.shape[1] or cache.length + ids.shape[1] > cache.capacity
        ):
            raise ShapeError(
                f"ids {tuple(ids.shape)} do not fit a cache for batch {cache.keys.shape[1]} with "
                f"{cache.length} of {cache.capacity} columns filled"
            )
        step = self._step(ids, cache, positions, attention_mask)
        x: Tensor = self.embed(ids)
        for block in self.layers:
            x = block(x, step)
        if cache is not None:
            cache.length += ids.shape[1]
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _step(
        self,
        ids: Tensor,
        cache: KVCache | None,
        positions: Tensor | None,
        attention_mask: Tensor | None,
    ) -> Step:
        tokens = ids.shape[1]
        start = 0 if cache is None else cache.length
        stop = start + tokens
        if stop > self.config.max_positions:
            raise ShapeError(
                f"{stop} columns exceed the model's {self.config.max_positions} positions"
            )
        real = attention_mask
        if cache is not None and (attention_mask is not None or cache.padded):
            if attention_mask is not None:
                cache.mask[:, start:stop] = attention_mask
                cache.padded = True
            real = cache.mask[:, :stop]
        columns = torch.arange(stop, device=ids.device)
        if positions is None:
            counted = columns[None] if real is None else (real.cumsum(1) - 1).clamp_min(0)
            positions = counted[:, start:]
        mask = None
        if real is not None or (start and tokens > 1):
            queries = columns[start:, None]
            mask = (columns <= queries)[None]
            if (
                real is not None
            ):  # a padding query sees itself: a row with no key at all could give NaN
                mask = mask & real[:, None] | (columns == queries)
            mask = mask[:, None]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        # Also of one token, which sees itself alone: a number of tokens that is a symbol of a
        # compiled graph makes no bool, and attention takes nothing else.
        return Step(cos, sin, mask, mask is None and not start, cache)


def _rope_tables(config: TinyConfig) -> tuple[Tensor, Tensor]:
    """Float32 cos and sin [max_positions, D/2], rounded once from float64: the same anywhere."""
    half = config.head_size // 2
    frequency = config.rope_base ** (-np.arange(half) / half)
    angle = np.arange(config.max_positions)[:, None] * frequency
    return (
        torch.from_numpy(np.cos(angle).astype(np.float32)),
        torch.from_numpy(np.sin(angle).astype(np.float32)),
    )


def save(model: TinyLM, path: Path = WEIGHTS) -> None:
    """Write the weights, rounded to bfloat16, and the sizes to a safetensors file."""
    weights = {name: w.detach().to(torch.bfloat16) for name, w in model.state_dict().items()}
    save_file(weights, path, metadata={"config": json.dumps(asdict(model.config))})


def load(
    path: Path = WEIGHTS, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> TinyLM:
    """The trained model, in evaluation mode. Weights are stored as bfloat16 and widened exactly."""
    with safe_open(path, framework="pt") as file:
        config = TinyConfig(**json.loads(file.metadata()["config"]))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    model = TinyLM(config)
    model.load_state_dict(weights)
    return model.to(device=device, dtype=dtype).eval().requires_grad_(False)


def encode(prompts: Sequence[bytes], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Ids int64 [B, T] and attention mask bool [B, T] of `prompts`, padded on the left.

    Raises:
        ShapeError: no prompt, or an empty one.
    """
    if not prompts or not all(prompts):
        raise ShapeError("every prompt needs at least one byte")
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[False] * (longest - len(p)) + [True] * len(p) for p in prompts])
    return ids.to(device), mask.to(device)


def generate(model: TinyLM, prompt: bytes, max_new_tokens: int) -> bytes:
    """The most likely continuation of `prompt`, byte by byte (greedy)."""
    return generate_batch(model, [prompt], max_new_tokens)[0]


@torch.inference_mode()
def generate_batch(model: TinyLM, prompts: Sequence[bytes], max_new_tokens: int) -> list[bytes]:
    """Greedy continuations of several prompts in one batch: prefill, then decode from a cache."""
    weight = model.embed.weight
    ids, real = encode(prompts, weight.device)
    batch, longest = ids.shape
    cache = KVCache(model.config, batch, longest + max_new_tokens, weight.dtype, weight.device)
    # The mask only goes along when something is padded: then decode needs none, as for one prompt.
    logits = model(ids, cache, attention_mask=None if bool(real.all()) else real)
    tokens = torch.empty(batch, max_new_tokens, dtype=torch.long, device=weight.device)
    for t in range(max_new_tokens):
        if t:
            logits = model(tokens[:, t - 1 : t], cache)
        tokens[:, t] = logits[:, -1].argmax(-1)
    return [bytes(row) for row in tokens.tolist()]
