"""A scenario in which a product goes wrong once, and says so, as a GPU's kernel would."""

from __future__ import annotations

import os
from typing import Any

import scenario
import torch

AT = int(os.environ["FAULT_AT"])


def plant(model: Any) -> None:
    from samebits import bits
    from samebits.engines import tickets

    row = tickets.ticket(torch.device("cpu"), tickets.Subject("linear", "0123", "split 4"), 1)
    calls = 0

    def hook(_module: Any, _args: Any, output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == AT:
            row[1] += 1
            bits.view(output[0]).view(-1)[-1:].bitwise_xor_(1 << 10)

    model.model.layers[0].mlp.down_proj.register_forward_hook(hook)


def main() -> None:
    from samebits import guard
    from samebits.integrations.vllm import layers

    fuse = layers.fuse

    def fused(patches: Any, model: Any) -> None:
        fuse(patches, model)
        plant(model)

    layers.fuse = fused
    heard: list[str] = []
    guard.subscribe(lambda event: heard.append(f"{event.op} {event.verdict} {event.replaced}"))
    facts = scenario.facts
    scenario.facts = lambda: facts() | {"events": heard}
    scenario.main()


if __name__ == "__main__":
    main()
