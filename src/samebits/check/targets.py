"""What a target on the command line stands for: a model by name, or an object of a module."""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from samebits.check.adapters import HuggingFaceDecoder, HuggingFaceEncoder, subject_of
from samebits.check.operations import OperationsSubject
from samebits.check.subject import Subject
from samebits.check.tokens import EncoderSubject
from samebits.errors import SamebitsError, SettingError

QUESTIONS = (
    "Write a short poem about the sea.",
    "Explain in two sentences why the sky is blue.",
    "What is the capital of France?",
    "List three uses of copper.",
    "How do vaccines work?",
    "Name a famous painter and one of their works.",
    "Translate 'good morning' into Spanish and Italian.",
    "What is 17 times 3?",
)
SENTENCES = (
    "The same text must give the same vector, whatever else is in the batch.",
    "A search index is only as stable as the vectors that it was built from.",
    "Rain is expected in the north, with sunny spells later in the day.",
    "She left the office early to catch the last train home to her family.",
    "Floating-point addition is not associative, so the order of a sum matters.",
    "The museum's new wing holds a collection of medieval manuscripts.",
    "Please find attached the minutes of the meeting held on Tuesday.",
    "Two thirds of the coffee that the country grows is sold abroad.",
)


def load(
    target: str, *, inputs: str | None = None, shape: str | None = None, device: str = "cpu"
) -> Subject:
    """The subject that a command line's target names.

    Args:
        target: ``tiny``, ``smollm2``, ``minilm``, ``ops`` (operations by themselves), or
            ``module:name`` of a function, a module, a model, or a factory without parameters that
            returns one (or a pair with its inputs).
        inputs: ``module:name`` of the inputs (or of a function without parameters that gives them).
        shape: ``8x4096:bfloat16``, random inputs instead.
        device: ``cpu``, ``cuda`` or ``cuda:1``: where modules and inputs are put. The bundled model
            is taken in bfloat16 on a GPU, whose attention has no contract in float32.

    Raises:
        SettingError: there is nothing of that name, or it needs inputs, or they are given twice, or
            to a model that has its own.
        MissingPackageError: the model comes in a package that is not installed.
    """
    where = _device(device)
    if inputs is not None and shape is not None:
        raise SettingError("give inputs or a shape of random ones, not both")
    if ":" in target:
        thing = _produced(named(target))
        given: Any = None
        if isinstance(thing, tuple):
            thing, given = _pair(target, thing)
        if inputs is not None:
            given = _produced(named(inputs))
        elif shape is not None:
            given = _random(shape)
        if isinstance(thing, torch.nn.Module):
            thing = thing.to(where)
        return subject_of(thing, _moved(given, where), name=target)
    if target not in MODELS:
        raise SettingError(
            f"there is no model {target!r}: use one of {', '.join(MODELS)}, or module:function"
        )
    if inputs is not None or shape is not None:
        raise SettingError(f"{target} has inputs of its own: only module:function takes others")
    return MODELS[target](where)


def _pair(target: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
    """A thing to check and its inputs.

    Raises:
        SettingError: it is no pair; it may be what `samebits explain` takes.
    """
    if len(given) == 2:
        return given[0], given[1]
    remedy = f"two runs are compared by `samebits explain {target}`; " if len(given) > 2 else ""
    raise SettingError(
        f"{target} gives a tuple of {len(given)}: {remedy}check takes a model or a "
        "function, or a pair of one and its inputs"
    )


def _device(name: str) -> torch.device:
    """The device of a command line.

    Raises:
        SettingError: torch does not know it, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise SettingError(f"device {name!r} cannot be used here: {reason}") from error
    return device


def _moved(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, torch.Tensor):
        return inputs.to(device)
    if isinstance(inputs, (tuple, list)):
        return type(inputs)(_moved(x, device) for x in inputs)
    return inputs


def _tiny(device: torch.device) -> Subject:
    from samebits.models import tiny

    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return subject_of(tiny.load(dtype=dtype, device=device), name="tiny")


def _smollm2(device: torch.device) -> Subject:
    from samebits.models import hub

    loaded = hub.smollm2()
    requests = [torch.tensor(hub.ask(loaded.tokenizer, question)) for question in QUESTIONS]
    prompts = [(f"{question}\n", ids) for question, ids in zip(QUESTIONS, requests, strict=True)]
    decoder = HuggingFaceDecoder(loaded.model.to(device), "smollm2", loaded.tokenizer, prompts)
    return subject_of(decoder, requests)


def _minilm(device: torch.device) -> Subject:
    from samebits.models import hub

    loaded = hub.minilm()
    requests = [torch.tensor(loaded.tokenizer(sentence)["input_ids"]) for sentence in SENTENCES]
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    model = loaded.model.to(device=device, dtype=dtype)
    return EncoderSubject(HuggingFaceEncoder(model, "minilm"), requests)


MODELS: dict[str, Callable[[torch.device], Subject]] = {
    "tiny": _tiny,
    "smollm2": _smollm2,
    "minilm": _minilm,
    "ops": OperationsSubject,
}


def produced(path: str) -> Any:
    """The object at ``module:name``, or what it gives when it is a function without parameters.

    Raises:
        SettingError: there is nothing of that name.
    """
    return _produced(named(path))


def named(path: str) -> Any:
    """The object at ``module:name.name``; modules of the working directory are found too."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingError(f"there is no module {module!r} ({error})") from error
    except Exception as error:
        raise SettingError(f"module {module!r} {_raised(error)}") from error
    try:
        return operator.attrgetter(name)(found)
    except AttributeError:
        raise SettingError(f"module {module!r} has no {name!r}") from None


def _produced(thing: Any) -> Any:
    """What a factory gives: a plain function that can be called without arguments is one."""
    if not inspect.isfunction(thing):
        return thing
    required = [
        p
        for p in inspect.signature(thing).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if required:
        return thing
    try:
        return thing()
    except SamebitsError:
        raise
    except Exception as error:
        raise SettingError(f"{thing.__module__}:{thing.__qualname__} {_raised(error)}") from error


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"


def _random(shape: str) -> torch.Tensor:
    """Random numbers of a shape such as ``8x4096`` or ``8x4096:bfloat16``."""
    sizes, _, dtype = shape.partition(":")
    kind = getattr(torch, dtype or "float32", None)
    try:
        lengths = [int(size) for size in sizes.replace(",", "x").split("x")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1 or not isinstance(kind, torch.dtype):
        raise SettingError(f"shape {shape!r} is not understood: write 8x4096 or 8x4096:bfloat16")
    return torch.randn(lengths, generator=torch.Generator().manual_seed(0)).to(kind)
