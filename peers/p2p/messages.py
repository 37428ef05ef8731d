"""What peers tell one another: whose gradient of which round, and the gradient itself or where it lies."""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from crossover.dataplane.plain import read as read_plain
from crossover.errors import Corrupt

_MAGIC, VERSION = b"XP2P", 1
_HEAD = struct.Struct("<4sIII")  # magic, version, length and crc32 of the JSON that follows
_SAID = {"run": str, "peer": int, "round": int, "samples": int, "key": str}


@dataclass(frozen=True, slots=True)
class Message:
    """A peer's gradient of a round. `body`: the vector's wire format, or nothing where it lies in the object store under `key`."""

    run: str
    peer: int
    round: int
    samples: int
    key: str
    body: memoryview


def encode(message: Message, parts: Sequence[bytes | memoryview]) -> bytes:
    """The message as it stands in a mailbox; `parts`: its body's buffers, in order (none where it has a key)."""
    said = {name: getattr(message, name) for name in _SAID}
    plain = json.dumps(said).encode()
    plain += b" " * (-(_HEAD.size + len(plain)) % 16)  # the body's payload stays aligned
    return b"".join([_HEAD.pack(_MAGIC, VERSION, len(plain), zlib.crc32(plain)), plain, *parts])


def read(text: bytes, *, mailbox: str) -> Message:
    """The message in `text`. Raises Corrupt, naming the mailbox, on another version or on what is no message."""
    view = memoryview(text)
    if view.nbytes < _HEAD.size or bytes(view[:4]) != _MAGIC:
        raise Corrupt(f"{mailbox}: {view.nbytes} bytes that are no message of a peer")
    _, version, length, crc = _HEAD.unpack(view[: _HEAD.size])
    if version != VERSION:
        raise Corrupt(
            f"{mailbox}: a message of version {version}; this program reads version {VERSION}: deploy all peers anew"
        )
    plain = view[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(plain) != crc:
        raise Corrupt(f"{mailbox}: checksum differs: the message was changed on its way")
    said = read_plain(bytes(plain), _SAID, key=mailbox)
    return Message(**{name: said[name] for name in _SAID}, body=view[_HEAD.size + length :])
