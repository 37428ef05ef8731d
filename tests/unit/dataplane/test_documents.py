"""JSON behind a checksum: it stays JSON, and every changed bit is seen."""

import json

import pytest

from crossover.errors import Corrupt
from crossover.stores.documents import seal, unseal

PLAIN = {"epoch": 3, "val_metric": 0.9375, "history": [[0.1, 0.5]], "reason": 'ü, "crc32": "1"}', "by": None}


def test_what_was_sealed_is_opened_and_is_json() -> None:
    """A sealed document is valid JSON and is read back unchanged."""
    body = seal(PLAIN)
    assert unseal(body, key="k") == PLAIN
    assert json.loads(body).items() >= PLAIN.items()


def test_every_changed_bit_is_seen() -> None:
    """Any flipped bit of a sealed document raises Corrupt, which names the key."""
    body = seal(PLAIN)
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match=r"^runs/r/decision: checksum differs"):
            unseal(bytes(damaged), key="runs/r/decision")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"epoch": 3}', b'{"epoch": 3, "crc32": 7}'])
def test_what_was_not_sealed_is_refused(body: bytes) -> None:
    """Bytes without a valid checksum raise Corrupt."""
    with pytest.raises(Corrupt):
        unseal(body, key="k")
