"""Which contract an operation has: the only place that chooses, and it cannot see a batch."""

from __future__ import annotations

from samebits.plan.contracts import contract_for, contract_of

__all__ = ["contract_for", "contract_of"]
