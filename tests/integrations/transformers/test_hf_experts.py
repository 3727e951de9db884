"""Experts: the interface's own forms, and the same forward bits with gradients."""

from __future__ import annotations

import pytest
import small_models as models
import torch

import samebits.integrations.transformers as sbt
from samebits.bits import equal as same_bits
from samebits.integrations.transformers.experts import experts_forward


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
def test_gradients_are_those_of_the_loop_and_forward_bits_do_not_change(
    kind: str, switch: None
) -> None:
    model = sbt.enable(models.decoder(kind, torch.float32))
    experts = next(m for m in model.modules() if hasattr(m, "down_proj") and hasattr(m, "has_gate"))
    torch.manual_seed(1)
    x = torch.randn(9, 48)
    index = torch.stack([torch.randperm(4)[:2] for _ in range(9)])
    weights = torch.rand(9, 2)
    plain = experts_forward(experts, x, index, weights)
    row = experts_forward(experts, x[4:5], index[4:5], weights[4:5])
    assert same_bits(row[0], plain[4])

    experts.requires_grad_(True)
    leaves = [x.clone().requires_grad_(), weights.clone().requires_grad_()]
    found = experts_forward(experts, leaves[0], index, leaves[1])
    assert same_bits(found, plain)
    gradients = torch.autograd.grad(found.square().sum(), [*leaves, *experts.parameters()])
    loop = type(experts).forward.__wrapped__(experts, leaves[0], index, leaves[1])
    expected = torch.autograd.grad(loop.square().sum(), [*leaves, *experts.parameters()])
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
