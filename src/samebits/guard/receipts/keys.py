"""Keys that sign the end of a chain (HMAC-SHA-256)."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from samebits.errors import ReceiptError

SHORTEST = 16


class Key:
    """A secret that signs heads.

    Args:
        secret: at least 16 bytes.

    Raises:
        ReceiptError: it is shorter.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SHORTEST:
            raise ReceiptError(
                f"a key of {len(secret)} bytes: use at least {SHORTEST} random bytes, "
                "e.g. head -c 32 /dev/urandom > FILE"
            )
        self._secret = secret

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """The key in a file: all of its bytes.

        Raises:
            ReceiptError: the file cannot be read or is too short.
        """
        try:
            return cls(Path(path).read_bytes())
        except OSError as error:
            raise ReceiptError(f"key {path}: {error.strerror or error}") from None

    @property
    def name(self) -> str:
        """16 hexadecimal digits that tell keys apart and do not give them away."""
        return self._mac(b"samebits key name")[:16]

    def sign(self, ledger: str, sequence: int, hash: bytes) -> str:
        """The signature of a head, hexadecimal."""
        return self._mac(f"samebits head {ledger} {sequence} {hash.hex()}".encode())

    def signed(self, ledger: str, sequence: int, hash: bytes, signature: str) -> bool:
        """Whether a signature is this key's."""
        return hmac.compare_digest(self.sign(ledger, sequence, hash), signature)

    def _mac(self, message: bytes) -> str:
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
