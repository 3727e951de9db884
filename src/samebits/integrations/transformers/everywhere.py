"""Imported behind transformers by ``samebits run``: all models of the process get our attention."""

from __future__ import annotations

from samebits.integrations.transformers import hooks

hooks.install_for_all()
