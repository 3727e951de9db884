"""``samebits replay`` and ``samebits audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits.cli.receipts import File, Which, errors

if TYPE_CHECKING:
    from samebits.guard.receipts.reading import Database, Lines
    from samebits.guard.receipts.record import Identity, Receipt

Broken = Annotated[
    bool, typer.Option("--broken-chain", help="go on, with a warning, if the chain is not whole")
]


def replay(
    file: File,
    which: Which = "last",
    model: Annotated[
        str | None, typer.Option(help="folder or name of the model; default: the receipt's")
    ] = None,
    company: Annotated[int, typer.Option(min=0, help="random requests to be served with")] = 7,
    seed: Annotated[int, typer.Option(help="of the random requests")] = 0,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="a field that may differ: device, libraries.torch, ...; repeatable"),
    ] = None,
    broken_chain: Broken = False,
    json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Serve a recorded request again, in other company, and compare bit for bit.

    Exit status: 0 the same bits, 1 not, 2 could not be compared.
    """
    import msgspec

    from samebits.guard.receipts.reading import identity_of, open_ledger

    with errors("replay"):
        source = open_ledger(file)
        receipt = _receipt(source, which, broken_chain)
        identity = identity_of(source, receipt)
        _need(identity)
        chosen: dict[str, Any] = {"company": company, "seed": seed, "allow": allow or ()}
        if identity.engine == "vllm":
            from samebits.integrations.vllm import replaying as engine

            found = engine.replay(source, receipt, identity, model, **chosen)
        else:
            import samebits.integrations.transformers as sbt
            from samebits.integrations.transformers import replaying

            loaded = sbt.enable(replaying.load(source, identity, model))
            found = replaying.replay(loaded, source, receipt, identity, **chosen)
        source.close()
    typer.echo(msgspec.json.encode(found).decode() if json else f"{receipt.request}: {found}")
    raise typer.Exit(0 if found.same else 1)


def audit(
    file: File,
    which: Which = "last",
    elements: Annotated[int, typer.Option(min=1, help="random elements to compute again")] = 1000,
    weights: Annotated[
        Path | None,
        typer.Option(help="folder of the model's safetensors files; default: the receipt's"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of the random choice")] = 0,
    broken_chain: Broken = False,
    json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Compute random elements of a recorded request again on this CPU, and compare bit for bit.

    Whatever device computed them: the contract says what it does, so no GPU is needed.

    Exit status: 0 all bits are the contract's, 1 not, 2 could not be computed.
    """
    import msgspec

    from samebits.guard.receipts.audit import audit as run
    from samebits.guard.receipts.audit import checkpoint
    from samebits.guard.receipts.reading import identity_of, open_ledger

    with errors("audit"):
        source = open_ledger(file)
        receipt = _receipt(source, which, broken_chain)
        identity = identity_of(source, receipt)
        tensors = checkpoint(weights or identity.source or ".")
        found = run(source, receipt, identity, tensors, elements=elements, seed=seed)
        source.close()
    typer.echo(msgspec.json.encode(found).decode() if json else f"{receipt.request}: {found}")
    raise typer.Exit(0 if found.good else 1)


def _need(identity: Identity) -> None:
    """Raises where the engine that has to serve the request again is not installed."""
    import importlib.util

    from samebits.errors import ReceiptError

    engine = "vllm" if identity.engine == "vllm" else "transformers"
    if importlib.util.find_spec(engine) is None:
        version = identity.libraries.get(engine, "")
        raise ReceiptError(
            f"{' '.join(filter(None, (engine, version)))} is not installed here, and has to serve "
            "the request again; `samebits audit` needs no engine"
        )


def _receipt(source: Database | Lines, which: str, broken_chain: bool) -> Receipt:
    """A request's receipt, of a chain that is whole unless the user wants it in spite of that.

    Raises:
        ReceiptError: there is no such receipt, or the chain is not whole.
    """
    from samebits.errors import ReceiptError
    from samebits.guard.receipts.reading import find, receipt_of
    from samebits.guard.receipts.verify import links

    receipt = receipt_of(find(source, which))
    faults = links(source).faults
    if faults:
        rest = f" ({len(faults)} faults)" if len(faults) > 1 else ""
        text = f"{source.path}: the chain is not whole: {faults[0].text}{rest}"
        if not broken_chain:
            raise ReceiptError(
                f"{text}. What is recorded may not be what was served: see `samebits receipts "
                "verify`; --broken-chain goes on in spite of it"
            )
        typer.echo(f"warning: {text}", err=True)
    return receipt
