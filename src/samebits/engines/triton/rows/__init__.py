"""Row operations: norms, softmax and its relatives, reductions, gates, rotary embedding.

Kernels follow the contracts of `samebits.contract.rows` for sm_90 (one tree for every row length)
and of `samebits.contract.activations`. How many rows a program takes, and how many programs a row,
is the schedule's business.
"""
