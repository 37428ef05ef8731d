"""Where a server's own certificate and key lie."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a server: its certificate, which clients verify it against, and its private key."""

    certificate: Path
    key: Path
