"""Imported behind the server of transformers by ``samebits run``."""

from __future__ import annotations

from samebits.integrations.transformers import hooks

hooks.install_server()
