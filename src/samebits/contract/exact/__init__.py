"""Exact contracts: the correctly rounded value of the exact sum. No order, no split, no device.

- `integers`   the definition: sums of Python integers, one rounding
- `contract`   `ExactContract`: products, and rows whose sums are exact
- `rows`       softmax, norms and the rest of `contract.rows` with such sums
- `augmented`  IEEE 754-2019's augmented operations
- `binned`     sums that any order gives, with a bound of their error
"""

from __future__ import annotations
