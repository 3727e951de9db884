"""Train the bundled tiny model from scratch: about half an hour on one CPU core.

    python scripts/train_tiny.py [--steps 1800] [--out src/samebits/models/tiny.safetensors]

One thread and one seed: two runs on the same machine write the same file.
Matrices are trained by Muon (Jordan 2024), everything else by AdamW (Loshchilov and Hutter 2019);
the learning rate rises for 40 steps and falls linearly to zero.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from samebits.models.tiny import WEIGHTS, TinyLM, generate, load, save

TEXT = Path(__file__).parent / "data" / "shakespeare.txt.gz"
CONTEXT = 256
HELD_OUT = 0.1  # the last tenth of the text


def text() -> tuple[Tensor, Tensor]:
    """Training and held-out bytes, int64."""
    data = torch.frombuffer(bytearray(gzip.decompress(TEXT.read_bytes())), dtype=torch.uint8).long()
    cut = int(len(data) * (1 - HELD_OUT))
    return data[:cut], data[cut:]


def initialise(model: TinyLM) -> None:
    """Normal weights of variance 1/fan_in; zeros where a layer adds to the stream or predicts."""
    for name, weight in model.named_parameters():
        if name.endswith(("attention.out.weight", "mlp.down.weight", "head.weight")):
            torch.nn.init.zeros_(weight)
        elif name == "embed.weight":
            torch.nn.init.normal_(weight, std=1.0)
        elif weight.dim() == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def optimizers(model: TinyLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding, head and norms."""
    matrices = [w for w in model.layers.parameters() if w.dim() == 2]
    known = {id(w) for w in matrices}
    rest = [w for w in model.parameters() if id(w) not in known]
    return [
        torch.optim.Muon(matrices, lr=0.04, weight_decay=0.05, momentum=0.95),
        torch.optim.AdamW(rest, lr=0.03, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def loss_of(model: TinyLM, window: Tensor) -> Tensor:
    """Mean cross-entropy in nats a byte of `window` [B, CONTEXT + 1]."""
    logits = model(window[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: TinyLM, data: Tensor, windows: int | None = None) -> float:
    """Mean loss over `data` cut into windows of CONTEXT + 1 bytes, the first `windows` of them."""
    count = len(data) // (CONTEXT + 1)
    cut = data[: count * (CONTEXT + 1)].view(count, CONTEXT + 1)[:windows]
    losses = [loss_of(model, part) * len(part) for part in cut.split(32)]
    return float(torch.stack(losses).sum()) / len(cut)


def train(
    data: Tensor, steps: int, batch: int, seed: int, after: Callable[[int, float, TinyLM], None]
) -> TinyLM:
    """A model trained on random windows of `data`; `after(step, loss, model)` follows each step."""
    torch.manual_seed(seed)
    model = TinyLM()
    initialise(model)
    optims = optimizers(model)
    schedules = [
        LambdaLR(optim, lambda step: min(1.0, (step + 1) / 40) * (1 - step / steps))
        for optim in optims
    ]
    window = torch.arange(CONTEXT + 1)
    for step in range(1, steps + 1):
        starts = torch.randint(len(data) - CONTEXT, (batch, 1))
        loss = loss_of(model, data[starts + window])
        loss.backward()
        for optim, schedule in zip(optims, schedules, strict=True):
            optim.step()
            optim.zero_grad()
            schedule.step()
        after(step, loss.item(), model)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args()

    torch.set_num_threads(1)
    data, held_out = text()
    columns = (
        TextColumn("loss {task.fields[loss]:.3f}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=args.steps, loss=float("nan"))

        def after(step: int, loss: float, model: TinyLM) -> None:
            progress.update(task, advance=1, loss=loss)
            if step % 100 == 0:
                save(model, args.out)  # a run that is stopped leaves a usable model
                unseen = held_out_loss(model, held_out, windows=64)
                progress.print(f"step {step:5d}  loss {loss:.3f}  held out {unseen:.3f}")

        save(train(data, args.steps, args.batch, args.seed, after), args.out)

    model = load(args.out)
    parameters = sum(w.numel() for w in model.parameters())
    print(f"{parameters:,} parameters, {args.out.stat().st_size:,} bytes in {args.out}")
    print(f"held out: {held_out_loss(model, held_out):.4f} nats a byte")
    print(generate(model, b"ROMEO:\n", 240).decode(errors="replace"))


if __name__ == "__main__":
    main()
