"""What a vLLM configuration asks of samebits."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import Any, Literal

from samebits import settings
from samebits.errors import SettingError, UncoveredError
from samebits.guard.receipts import receipts

log = logging.getLogger("vllm.samebits")
KEY = "samebits"


@dataclass(frozen=True)
class Options:
    """Value of ``additional_config["samebits"]``.

    Attributes:
        policy: ``refuse`` stops at the start what no contract covers; ``warn`` runs it, and names
            it in the log and in the report.
        plan: a plan file to put in force in every worker; None: the tables of this release.
        tp_invariant: row-parallel products have the tree that all tensor-parallel sizes share.
            None: where there is more than one rank. True on one rank gives it the bits of several.
        receipts: a path, or a table with ``path`` and other arguments of `samebits.receipts`, to
            keep a receipt of each request; None: none are kept.
        warm_up: compile on a GPU what the model will need when the worker starts, in several
            threads, so that no request waits for a compiler.
    """

    policy: Literal["refuse", "warn"] = "refuse"
    plan: str | None = None
    tp_invariant: bool | None = None
    receipts: str | dict[str, Any] | None = None
    warm_up: bool = True

    def shared_tree(self, ranks: int) -> bool:
        """Whether row-parallel products of `ranks` ranks have the tree that all sizes share."""
        return ranks > 1 if self.tp_invariant is None else self.tp_invariant


def requested(additional_config: Any) -> Options | None:
    """The options of a configuration, None if it does not ask for samebits.

    Args:
        additional_config: of a ``VllmConfig``; anything but a dict asks for nothing.

    Raises:
        SettingError: an option is not understood, or the environment asks for the opposite.
    """
    value = additional_config.get(KEY) if isinstance(additional_config, dict) else None
    by_environment = settings.enabled_at_start()
    if value is None:
        return Options(receipts=settings.receipts_path()) if by_environment else None
    if value is False:
        if by_environment:
            raise SettingError(
                "SAMEBITS=1 turns samebits on and additional_config turns it off: drop one of them"
            )
        return None
    if value is True:
        return Options()
    if not isinstance(value, dict):
        raise SettingError(f"additional_config: {KEY} is true, false or a table, not {value!r}")
    unknown = sorted(set(value) - set(Options.__dataclass_fields__))
    if unknown:
        raise SettingError(
            f"additional_config: {KEY} has no option {', '.join(map(repr, unknown))}; "
            f"there are {', '.join(Options.__dataclass_fields__)}"
        )
    options = Options(**value)
    if options.policy not in ("refuse", "warn"):
        raise SettingError(f"{KEY}: policy={options.policy!r} is not 'refuse' or 'warn'")
    if options.tp_invariant not in (None, True, False):
        raise SettingError(f"{KEY}: tp_invariant={options.tp_invariant!r} is not true or false")
    if options.warm_up not in (True, False):
        raise SettingError(f"{KEY}: warm_up={options.warm_up!r} is not true or false")
    if options.plan is not None and not isinstance(options.plan, str):
        raise SettingError(f"{KEY}: plan={options.plan!r} is not a path")
    _check_receipts(options.receipts)
    return options


def _check_receipts(wanted: Any) -> None:
    if wanted is None or isinstance(wanted, str):
        return
    names = set(inspect.signature(receipts).parameters) - {"text"}  # a function, no JSON
    if not isinstance(wanted, dict) or "path" not in wanted or set(wanted) - set(names):
        raise SettingError(
            f"{KEY}: receipts={wanted!r} is neither a path nor a table with path and, as they "
            f"like, {', '.join(sorted(names - {'path'}))}"
        )


def settle(options: Options, reasons: list[str], what: str) -> None:
    """Refuses `what` for its reasons, or names them in the log, as the policy says.

    Raises:
        UncoveredError: there are reasons and the policy is ``refuse``.
    """
    if not reasons:
        return
    listed = "".join(f"\n  - {reason}" for reason in reasons)
    if options.policy == "refuse":
        raise UncoveredError(
            "vLLM",
            f"{what} has parts that no contract covers:{listed}\n",
            remedy="Change them, or run with --additional-config "
            '\'{"samebits": {"policy": "warn"}}\', which promises nothing for what is listed',
        )
    log.warning("samebits promises nothing for these parts of %s:%s", what, listed)
