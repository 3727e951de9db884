"""Attributes of another library that are replaced, and can be put back."""

from __future__ import annotations

from typing import Any

from samebits.errors import SwitchError

_ABSENT = object()


class Patches:
    """Replacements in the order they were made; `undo` puts back exactly what was there."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def __len__(self) -> int:
        return len(self._before)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """``owner.name = value``. A class's inherited attribute is shadowed, not changed.

        Raises:
            SwitchError: there is no such attribute: another release of the library.
        """
        if not hasattr(owner, name):
            raise SwitchError(
                f"this release has no {getattr(owner, '__qualname__', owner)}.{name} that could be "
                "replaced: use one that docs/vllm.md names"
            )
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Restores everything, last change first."""
        while self._before:
            owner, name, value = self._before.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
