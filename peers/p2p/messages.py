"""Messages between peers: whose gradient of which round, and the gradient itself or its key in the object store."""

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from crossover.errors import Corrupt
from crossover.stores.encoding import read_plain

_MAGIC, VERSION = b"XP2P", 1
_HEAD = struct.Struct("<4sIII")  # magic, version, length and crc32 of the JSON that follows
_SAID = {"run": str, "peer": int, "round": int, "samples": int, "key": str}


@dataclass(frozen=True, slots=True)
class Message:
    """A peer's contribution to one round, such as its gradient, as it lies in a mailbox. `run`: the run's id; `peer`: the sender's rank;
    `samples`: number of samples that it stands for; `body`: the encoded vector, or empty if it is stored in the object store under `key`.
    """

    run: str
    peer: int
    round: int
    samples: int
    key: str
    body: memoryview


def encode(message: Message, parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the bytes of `message` for a mailbox. `parts`: buffers of the body, in order; none if the message has a key. They count
    instead of `message.body`, which is not used.
    """
    said = {name: getattr(message, name) for name in _SAID}
    plain = json.dumps(said).encode()
    plain += b" " * (-(_HEAD.size + len(plain)) % 16)  # the body's payload stays aligned
    return b"".join([_HEAD.pack(_MAGIC, VERSION, len(plain), zlib.crc32(plain)), plain, *parts])


def read(text: bytes, *, mailbox: str) -> Message:
    """Return the message decoded from `text`, bytes from `encode`; its body is a view of them. Raises Corrupt, naming `mailbox`, if it is
    of another version or no message, or if its fields are damaged. The body is not checked: it has a checksum of its own.
    """
    view = memoryview(text)
    if view.nbytes < _HEAD.size or bytes(view[:4]) != _MAGIC:
        raise Corrupt(f"{mailbox}: {view.nbytes} bytes, which are not a peer's message")
    _, version, length, crc = _HEAD.unpack(view[: _HEAD.size])
    if version != VERSION:
        raise Corrupt(
            f"{mailbox}: a message of version {version}; this program reads version {VERSION}: deploy all peers anew"
        )
    plain = view[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(plain) != crc:
        raise Corrupt(f"{mailbox}: the checksum differs: the message was damaged on its way")
    said = read_plain(bytes(plain), _SAID, key=mailbox)
    return Message(**{name: said[name] for name in _SAID}, body=view[_HEAD.size + length :])
