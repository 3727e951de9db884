"""Small random models in plain torch: a decoder with a cache, an encoder, a vision transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from faults.properties import values

Cache = list[tuple[torch.Tensor, torch.Tensor]]


def built(make: type[nn.Module], dtype: torch.dtype, **sizes: int) -> nn.Module:
    """A model with fixed random weights, without gradients; the same on every machine."""
    model = make(**sizes).requires_grad_(False)
    for seed, (name, p) in enumerate(model.named_parameters()):
        wide = p.dim() > 1 and not name.startswith(("tokens", "places", "first"))
        p.copy_(values(*p.shape, seed=seed) * (p.shape[-1] ** -0.5 if wide else 0.5))
        if "norm" in name and name.endswith("weight"):
            p.add_(1)
    return model.to(dtype).eval()


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None = None,
        past: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """x [B, T, width]; mask [B or 1, 1, T, S], true where visible."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)))), (k, v)


class Decoder(nn.Module):
    """A GPT: token and position embeddings, blocks, output logits."""

    def __init__(
        self, vocabulary: int = 211, width: int = 64, heads: int = 4, depth: int = 4
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Cache | None = None,
        valid: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Cache]:
        """Logits of tokens [B, T] after a cache of S - T positions.

        valid [B, S] is false at padding; places [B, T] are the positions (default: as they come).
        """
        start = cache[0][0].shape[2] if cache else 0
        total = start + tokens.shape[1]
        here = torch.arange(start, total)
        mask = here[None, None, :, None] >= torch.arange(total)
        if valid is not None:
            mask = mask & valid[:, None, None, :]
        x = self.tokens(tokens) + self.places(here if places is None else places)
        new: Cache = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, mask, cache[i] if cache else None)
            new.append(kv)
        return self.head(self.norm(x)), new

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        return self(tokens)[0]


class Encoder(nn.Module):
    """Bidirectional blocks, mean pooling over the valid positions, a unit vector as the result."""

    def __init__(
        self, vocabulary: int = 211, width: int = 96, heads: int = 4, depth: int = 3
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, heads, 2 * width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        """Unit vectors [B, width] of tokens [B, T]; valid [B, T] is false at padding."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x, _ = block(x, valid[:, None, None, :])
        return F.normalize(pooled(self.norm(x), valid), dim=-1)


def pooled(x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Mean over the valid positions, as embedding libraries write it."""
    keep = valid[..., None].to(x.dtype)
    return (x * keep).sum(1) / keep.sum(1).clamp(min=1e-9)


class Vision(nn.Module):
    """A vision transformer: patches by convolution, class token, blocks, projection."""

    def __init__(self, width: int = 96, heads: int = 4, depth: int = 3, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch, bias=False)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 65, width))
        self.blocks = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(depth))
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, 48, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features [B, 48] of images [B, 3, H, W] of at most 64 patches."""
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        x = x + self.places[:, : x.shape[1]]
        for block in self.blocks:
            x, _ = block(x)
        return F.normalize(self.project(self.norm(x[:, 0])), dim=-1)
