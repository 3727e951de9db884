"""vLLM with the contracts of samebits: same request, same bits, whatever else is in the batch.

vLLM finds `register` by its entry point and calls it in each of its processes. Nothing changes
until a configuration asks for it, by ``SAMEBITS=1`` in the environment or by
``--additional-config '{"samebits": true}'``:

    options.py    what a configuration asks for
    hooks.py      where the plugin waits: a configuration or a worker is made, a request is taken
    config.py     what is set in a configuration, and the reasons to refuse one
    requests.py   token ids that a request must not name
    model.py      the reasons to refuse a loaded model
    backend.py    what vLLM is told about attention
    attention.py, attention_gpu.py, attention_cpu.py, layers.py, moe.py, lora.py, sampler.py,
    verify.py     calls into samebits.ops
    workers.py    all ranks agree on what decides bits before a weight is loaded

No number is computed here: every bit is decided in `samebits.ops`.
"""

from __future__ import annotations


def register() -> None:
    """Entry point of the group ``vllm.general_plugins``. Idempotent; does nothing by itself."""
    from samebits.integrations.vllm import hooks

    hooks.wait()
