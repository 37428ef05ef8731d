"""JSON on its way: what the members of a run tell one another, and the runner, behind a checksum.

Vectors, checkpoints and minibatches have one in their headers. Without it a changed digit of a decision or a record would be believed. A
document stays JSON, for whoever looks at it.
"""

import json
import zlib
from collections.abc import Mapping
from typing import Any

from crossover.dataplane import plain
from crossover.dataplane.protocols import ObjectStore
from crossover.errors import Corrupt

ANYTHING: dict[str, Any] = {}  # an object of any members
_SEAL = b', "crc32": "'  # the last member, of what stands before it; of one length, so that a document's is known beforehand


def sealed(document: Mapping[str, Any]) -> bytes:
    """`document`, which has a member at least, as JSON with its checksum as the last member."""
    text = json.dumps(document).encode()[:-1]
    return b'%b%b%08x"}' % (text, _SEAL, zlib.crc32(text))


def opened(body: bytes, shape: Any = ANYTHING, *, key: str) -> dict[str, Any]:
    """What was sealed. Raises Corrupt, naming `key`, where a byte of it differs or it has not the shape (see `plain`)."""
    text, found, seal = body.rpartition(_SEAL)
    if not found or seal != b'%08x"}' % zlib.crc32(text):
        raise Corrupt(f"{key}: checksum differs: these {len(body)} bytes are not what was written")
    document: dict[str, Any] = plain.read(text + b"}", shape, key=key)
    return document


def read(objects: ObjectStore, key: str, shape: Any = ANYTHING) -> dict[str, Any]:
    """The document that lies under `key`. Raises Missing, Corrupt."""
    return opened(objects.get(key), shape, key=key)
