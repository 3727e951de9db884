"""Token ids that a request names: none may lie outside the vocabulary.

vLLM writes -Inf or adds a bias wherever an id says, on a GPU without asking whether the row of
logits is that long: an id outside lands in the row of another request. An id that can never be
drawn need not be forbidden either, so those are dropped; what cannot be served without them is
refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from samebits.errors import SettingError


def admit(request: Any, vocabulary: int) -> None:
    """Makes a request harmless to others: gives it parameters without ids outside the vocabulary.

    Args:
        request: vLLM's ``EngineCoreRequest``.
        vocabulary: columns of the model's logits.

    Raises:
        SettingError: the prompt or ``allowed_token_ids`` has ids outside the vocabulary.
    """
    prompt, params = request.prompt_token_ids, request.sampling_params
    if prompt and not request.mm_features:
        _inside("the prompt", prompt, vocabulary)
    if params is None:  # nothing is drawn
        return
    _inside("allowed_token_ids", params.allowed_token_ids or (), vocabulary)
    request.sampling_params = without(params, vocabulary)


def without(params: Any, vocabulary: int) -> Any:
    """``SamplingParams`` that draw the same tokens and name no id outside the vocabulary.

    Stop tokens (the model's own, too), biases, and bad words with a token that is not there.
    """

    def there(ids: Iterable[int]) -> bool:
        return all(0 <= i < vocabulary for i in ids)

    words = params.bad_words_token_ids or []
    stops, biases = params.all_stop_token_ids, params.logit_bias or {}
    if there(stops) and there(biases) and all(map(there, words)):
        return params
    params = copy.copy(params)
    params._all_stop_token_ids = {i for i in stops if there((i,))}
    if biases:
        params.logit_bias = {i: bias for i, bias in biases.items() if there((i,))} or None
    if words:
        params._bad_words_token_ids = [word for word in words if there(word)] or None
    return params


def _inside(what: str, ids: Iterable[int], vocabulary: int) -> None:
    lowest, highest = min(ids, default=0), max(ids, default=0)
    if lowest < 0 or highest >= vocabulary:
        found = lowest if lowest < 0 else highest
        raise SettingError(
            f"vLLM: {what} has the token id {found}, and the model's ids go from 0 to "
            f"{vocabulary - 1}: leave it out"
        )
