"""What a serving process starts beside the switch: receipts, metrics, logs (docs/receipts.md)."""

from __future__ import annotations

from samebits import settings


def start() -> None:
    """Starts what the environment asks for. Called once, when samebits is imported with SAMEBITS=1.

    Raises:
        SettingError: a variable is not understood, or an optional package is missing.
        ReceiptError: receipts cannot be written.
    """
    target, port, path = settings.log_target(), settings.metrics_port(), settings.receipts_path()
    if target is not None:
        from samebits.guard import logs

        logs.write_to(target)
    if path is not None:
        from samebits.guard.receipts import receipts

        receipts(path)
    if port is not None:
        from samebits.guard import metrics

        metrics.serve(port)
