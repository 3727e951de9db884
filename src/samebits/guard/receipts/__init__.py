"""Receipts: one hash-chained record for each request. docs/receipts.md is the user's page.

record.py     what a receipt holds, and the chain's hash
ledger.py     the SQLite file, appended to in transactions
recorder.py   `samebits.receipts`: batches on a thread of their own
reading.py    databases and their export as lines of JSON
verify.py     is a chain whole?
merkle.py, identity.py   which weights, contracts, plan, device and libraries
sums.py       integer checksums of layers and operations
between.py    gates and rotary embedding between recorded operations, computed again
"""

from __future__ import annotations

from samebits.guard.receipts.record import Gap, Head, Identity, Incident, Receipt
from samebits.guard.receipts.recorder import Recorder, active, receipts
from samebits.guard.receipts.verify import Fault, Verdict, verify

__all__ = [
    "Fault", "Gap", "Head", "Identity", "Incident", "Receipt", "Recorder", "Verdict", "active",
    "receipts", "verify",
]  # fmt: skip
