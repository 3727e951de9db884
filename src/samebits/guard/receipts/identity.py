"""What computed a request: model, weights, contracts, plan, device, libraries."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from weakref import WeakKeyDictionary

import torch

from samebits.contract import Contract
from samebits.contract.operands import dtype_name
from samebits.engines import cpu
from samebits.errors import ContractError, DTypeError
from samebits.guard.devices import identify
from samebits.guard.receipts.merkle import Manifest, manifest_of, tensors_of
from samebits.guard.receipts.record import Identity, address, encode
from samebits.plan import contract_of, planner
from samebits.plan.stack import here

#: Entries of a configuration that say how a model was loaded, not what it computes.
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
#: Libraries that compute, where they were imported.
_LIBRARIES = ("transformers", "vllm", "numpy", "triton")


Described = tuple[Identity, dict[str, bytes]]
"""An identity, and the objects by name that receipts with it need."""


def identity_of(
    model: torch.nn.Module,
    *,
    engine: str,
    places: tuple[str, ...] = (),
    options: tuple[tuple[str, str], ...] = (),
) -> Described:
    """The identity of what a model computes with here and now.

    Args:
        model: its weights are hashed the first time (`merkle.manifest_of`).
        engine: the integration that serves it.
        places: see `Identity`.
        options: of the engine that decide bits, by name; they stand with what the model is.

    Returns:
        The identity and its objects; they are made anew when weights or plan have changed.
    """
    device = _device_of(model)
    kind = device_class(device)
    manifest = manifest_of(model)
    plan = planner.in_force(kind).id
    key = (id(manifest), plan, engine, places, options)
    known = _known.get(model)
    if known is None or known[0] != key:
        known = _known[model] = (key, manifest, _made(model, device, manifest, plan, key[2:]))
    return known[2]


#: By model: what decided the last identity, the manifest (which keeps its id), and the identity.
_known: WeakKeyDictionary[torch.nn.Module, tuple[Any, Manifest, Described]] = WeakKeyDictionary()


def _made(
    model: torch.nn.Module,
    device: torch.device,
    manifest: Manifest,
    plan: str,
    served: tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]],
) -> Described:
    kind = device_class(device)
    contracts = contracts_of(model, kind)
    config = getattr(model, "config", None)
    stack = here(kind)
    body = manifest.body
    found = Identity(
        model={"class": type(model).__name__, "config": _config(config)} | dict(served[2]),
        source=str(getattr(config, "_name_or_path", "") or ""),
        weights=manifest.root,
        manifest=address(body),
        plan=plan,
        contracts={name: c.id for name, c in contracts.items()},
        texts={c.id: c.text for c in contracts.values()},
        device=_device(device, stack.driver),
        libraries=_libraries() | {k: v for k, v in (("cublaslt", stack.cublaslt),) if v},
        engine=served[0],
        places=served[1],
    )
    raw = encode(found)
    return found, {address(raw): raw, address(body): body}


def contracts_of(model: torch.nn.Module, kind: str) -> dict[str, Contract]:
    """The contracts of a model's products, norms and attention on a device class.

    Operations that a device class has no contract for are not in it: the switch refuses them when
    they run.
    """
    found: dict[str, Contract] = {}

    def add(op: str, label: str, **key: Any) -> None:
        with suppress(ContractError, DTypeError):
            found[f"{op} {label}"] = contract_of(op, device=kind, **key)

    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
            continue
        name, dtype = type(module).__name__, dtype_name(weight.dtype)
        if weight.dim() == 1 and "Norm" in name:
            op = "rms_norm" if "RMS" in name else "layer_norm"
            add(op, f"{len(weight)} {dtype}", n=len(weight), dtype=dtype)
        elif weight.dim() == 2 and ("Linear" in name or "LMHead" in name):
            n, k = weight.shape
            add("linear", f"{n}x{k} {dtype}", n=n, k=k, dtype=dtype)
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = head_size(config)
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if size is not None and first is not None:
        dtype = dtype_name(first.dtype)
        add("attention", f"{size} {dtype}", head_dim=size, dtype=dtype)
    add("log_softmax", "fp32", dtype="fp32")
    return dict(sorted(found.items()))


def head_size(config: Any) -> int | None:
    """D of a model's heads, as its configuration says."""
    given = getattr(config, "head_dim", None) or getattr(config, "head_size", None)
    if given:
        return int(given)
    width = getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    return width // heads if width and heads else None


def device_class(device: torch.device) -> str:
    """The class of a device, as contracts name it."""
    if device.type != "cuda":
        return "cpu"
    from samebits.engines.triton import device_class as of_gpu

    return of_gpu(device.index or 0)


def differences(recorded: Identity, mine: Identity, *, machine: bool = True) -> list[str]:
    """The fields in which two identities differ, in words; empty if they are the same.

    Args:
        machine: compare the device's name, serial number and driver too. Without, only its class.
    """
    found = []
    for field in ("model", "weights", "plan", "contracts", "libraries", "device"):
        a, b = getattr(recorded, field), getattr(mine, field)
        if not isinstance(a, dict):
            a, b = {"": a}, {"": b}
        for key in sorted(a.keys() | b.keys()):
            if field == "device" and key != "class" and not machine:
                continue
            if a.get(key) != b.get(key):
                name = f"{field}.{key}" if key else field
                theirs, ours = (str(x.get(key, "nothing")) for x in (a, b))
                found.append(f"{name}: the receipt has {theirs}, and here is {ours}")
    return found


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((t.device for t in tensors_of(model).values()), torch.device("cpu"))


def _device(device: torch.device, driver: str) -> dict[str, str]:
    found = identify(device)
    told = {"class": found.kind, "name": found.name, "serial": found.serial, "driver": driver}
    if device.type == "cpu":
        told["isa"] = str(cpu.isa())
    return {key: value for key, value in told.items() if value}


def _config(config: Any) -> str:
    """The hash of a configuration; of nothing if there is none."""
    values = config.to_dict() if hasattr(config, "to_dict") else {}
    kept = {k: v for k, v in values.items() if k not in _VOLATILE}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _libraries() -> dict[str, str]:
    import samebits

    found = {
        "samebits": samebits.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        if name in sys.modules:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return found
