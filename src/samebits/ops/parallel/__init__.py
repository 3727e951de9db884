"""Operations whose weights lie on several ranks, with the bits of one rank.

What is sent is data, never a sum of floating-point numbers: the order of a reduction inside a
communication library follows message sizes and topology. Either a result is computed whole on one
rank, with the tree of the whole weight; or partial sums, which are subtrees of one tree, meet and
are folded in that tree's order.

The ranks of a group agree once on everything that decides bits (`agree`); a rank that fails, or
does not come, is an error on every rank.
"""

from __future__ import annotations

from samebits.ops.parallel.experts import expert_parallel_moe
from samebits.ops.parallel.linear import column_parallel_linear, row_parallel_linear
from samebits.ops.parallel.peers import check, transport
from samebits.ops.parallel.ranks import agree
from samebits.ops.parallel.vocabulary import vocab_parallel_embedding, vocab_parallel_logprobs

__all__ = [
    "agree",
    "check",
    "column_parallel_linear",
    "expert_parallel_moe",
    "row_parallel_linear",
    "transport",
    "vocab_parallel_embedding",
    "vocab_parallel_logprobs",
]
