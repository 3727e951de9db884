"""transformers with samebits inside.

    import samebits.integrations.transformers as sbt
    model = sbt.enable(AutoModelForCausalLM.from_pretrained(...))

or ``from_pretrained(..., attn_implementation="samebits")`` once this package is imported and the
switch is on. docs/transformers.md has the whole story. Needs transformers 5.17 or later.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import transformers.modeling_utils  # noqa: F401  (first: `samebits run` has a hook behind it)

from samebits import mode
from samebits.errors import SwitchError, UncoveredError, UncoveredWarning
from samebits.integrations.transformers import hooks
from samebits.integrations.transformers.attention import attention_forward
from samebits.integrations.transformers.cache import KVCache
from samebits.integrations.transformers.kvplan import CachePlan, plan_cache
from samebits.integrations.transformers.masks import mask
from samebits.integrations.transformers.support import reasons_against

__all__ = [
    "CachePlan", "KVCache", "attention_forward", "disable", "enable", "mask", "plan_cache",
    "reasons_against",
]  # fmt: skip

Model = TypeVar("Model")
_before: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()

hooks.install()


def enable(model: Model = None, *, policy: str = "refuse", allow: Iterable[str] = ()) -> Model:  # type: ignore[assignment]
    """Turns the switch on, if it is off, and gives a model our attention and experts.

    Args:
        model: a `PreTrainedModel`. None: every model of this process, also those loaded later: our
            attention stands for "sdpa", and other implementations are refused.
        policy, allow: as in `samebits.enable`; with "warn" a model that would break the promise
            is warned about and runs.

    Returns:
        The model.

    Raises:
        UncoveredError: the model would break the promise; the message has all reasons.
    """
    if model is not None:
        reasons = reasons_against(model)
        if reasons and policy == "refuse":
            raise UncoveredError(
                type(model).__name__,
                "; ".join(reasons),
                remedy='policy="warn" runs it all the same.',
            )
        if reasons and policy == "warn":
            message = f"{type(model).__name__}: {'; '.join(reasons)}"
            warnings.warn(message, UncoveredWarning, stacklevel=2)
    if not mode.is_on():
        mode.enable(policy=policy, allow=allow)
    hooks.install()
    if model is None:
        hooks.install_for_all()
    else:
        _give(model)
    return model


def disable(model: Any = None) -> None:
    """Gives a model back what it had before `enable`; None: undoes ``enable()`` for all models.

    The switch stays on: `samebits.disable` turns it off.

    Raises:
        SwitchError: continuous batching uses the model, and would give it our attention again.
    """
    if model is None:
        hooks.remove(for_all_only=True)
        return
    if model in _before and model.config._attn_implementation == hooks.PAGED:
        raise SwitchError(
            "continuous batching uses the model: stop its manager before disable(model)"
        )
    before = _before.pop(model, None)
    if before is not None:
        model.set_attn_implementation(before["attention"])
        if "experts" in before:
            model.set_experts_implementation(before["experts"])


def _give(model: Any) -> None:
    if hooks.ours(model):
        return
    before = {"attention": model.config._attn_implementation}
    model.set_attn_implementation(hooks.NAME)
    if model._can_set_experts_implementation():
        before["experts"] = model.config._experts_implementation
        model.set_experts_implementation(hooks.NAME)
    _before[model] = before
