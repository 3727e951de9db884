"""Every error a user can meet. Each says what happened, where, and what to do about it."""

from __future__ import annotations


class SamebitsError(RuntimeError):
    """Base class of all errors raised by samebits."""


class UncoveredError(SamebitsError):
    """An operation reduces or rounds in a way that no contract covers: its bits are not promised.

    Attributes:
        op: the operation, e.g. ``aten::cdist``.
        reason: why it is refused.
        site: ``file:line`` of the caller, or None.
    """

    def __init__(self, op: str, reason: str, *, remedy: str, site: str | None = None) -> None:
        self.op = op
        self.reason = reason
        self.site = site
        where = f" at {site}" if site else ""
        super().__init__(f"{op}{where}: {reason}. {remedy}")


class ContractError(SamebitsError, ValueError):
    """A contract, tree or arithmetic was described inconsistently."""


class ShapeError(SamebitsError, ValueError):
    """Operands whose shapes do not fit together."""


class DTypeError(SamebitsError, TypeError):
    """Operands of a dtype, layout or device that the operation does not take."""


class PlanError(SamebitsError, ValueError):
    """A plan that is damaged, was made for another stack, or holds a schedule with other bits."""


class DeviceError(SamebitsError):
    """A GPU, its driver or one of its libraries is missing or refused what it was asked for."""


class RankError(SamebitsError):
    """Ranks that would not compute alike, or one that failed or did not answer in time."""


class RevealError(SamebitsError):
    """A function's reduction tree cannot be read: the message says which assumption failed."""


class SwitchError(SamebitsError):
    """The switch could not be turned, or came too late to hold."""


class ReceiptError(SamebitsError):
    """Receipts that cannot be written or read, or that do not fit what they are compared with."""


class GuardError(SamebitsError):
    """The guard caught what it could not put right, or one device too often.

    Attributes:
        event: the last one, a `samebits.guard.Event`.
    """

    def __init__(self, message: str, event: object = None) -> None:
        self.event = event
        super().__init__(message)


class SettingError(SamebitsError, ValueError):
    """An environment variable or keyword has a value that is not understood."""


class LateSwitchWarning(UserWarning):
    """Something was compiled, captured or configured before the switch was on."""


class UncoveredWarning(UserWarning):
    """With ``policy="warn"``: an operation ran although no contract covers it."""


class CapacityError(SamebitsError, MemoryError):
    """Something planned ahead does not fit into the memory that is free."""
