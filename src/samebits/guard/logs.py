"""Structured logs: one JSON object a line, for what samebits logs anyway."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone
from typing import Any

import msgspec

from samebits.errors import SettingError

LOGGER = "samebits"


class JsonLines(logging.Formatter):
    """``{"time", "level", "logger", "message", "process", ...}`` and, of what the guard reports,
    all fields of the event under ``"samebits"``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """One line, without its end."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        event = getattr(record, "samebits", None)
        if event is not None:
            line["samebits"] = event
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def write_to(target: str) -> logging.Handler:
    """Writes what samebits logs, from INFO on, as lines of JSON.

    Args:
        target: "json" for stderr, else a file, which is appended to.

    Raises:
        SettingError: the file cannot be written to.
    """
    handler: logging.Handler
    if target == "json":
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            handler = logging.FileHandler(target, encoding="utf-8")
        except OSError as error:
            raise SettingError(f"SAMEBITS_LOG={target!r}: {error.strerror}") from None
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(min(logger.level or logging.INFO, logging.INFO))
    return handler
