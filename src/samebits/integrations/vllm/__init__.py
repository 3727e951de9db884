"""vLLM with the contracts of samebits: same request, same bits, whatever else is in the batch.

vLLM finds `register` by its entry point and calls it in each of its processes. Nothing changes
until a configuration asks for it, by ``SAMEBITS=1`` in the environment or by
``--additional-config '{"samebits": true}'``:

    options.py    what a configuration asks for
    hooks.py      the two places where the plugin waits: a configuration is made, a worker is made
    config.py     what is set in a configuration, and the reasons to refuse one
    model.py      the reasons to refuse a loaded model
    layers.py, moe.py, lora.py, attention.py, sampler.py, verify.py    calls into samebits.ops
    workers.py    all ranks agree on what decides bits before a weight is loaded

No number is computed here: every bit is decided in `samebits.ops`.
"""

from __future__ import annotations


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``. Idempotent; does nothing by itself."""
    from samebits.integrations.vllm import hooks

    hooks.wait()
