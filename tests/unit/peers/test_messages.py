"""What peers send one another: read back, refused when it is something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Corrupt
from peers.p2p import messages
from peers.p2p.messages import Message


@given(st.binary(max_size=200))
def test_a_message_comes_back_and_its_body_is_aligned(body: bytes) -> None:
    """An encoded message is read back equal, and its body begins at a multiple of 16 bytes."""
    said = Message("20260101-000000-abcdef", 3, 17, 120, "", memoryview(b""))
    text = messages.encode(said, [body])
    read = messages.read(text, mailbox="x")
    assert (read.run, read.peer, read.round, read.samples, read.key) == (said.run, 3, 17, 120, "")
    assert bytes(read.body) == body
    assert (len(text) - len(body)) % 16 == 0


@given(st.binary(max_size=100))
def test_anything_else_is_refused(text: bytes) -> None:
    """Bytes that are no message raise Corrupt with the name of the mailbox."""
    with pytest.raises(Corrupt, match="mailbox 3"):
        messages.read(text, mailbox="mailbox 3")


def test_another_version_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """`messages.read` raises Corrupt for a message of another version; the error says to deploy all peers anew."""
    said = Message("run", 0, 0, 1, "", memoryview(b""))
    monkeypatch.setattr(messages, "VERSION", 2)
    text = messages.encode(said, [])
    monkeypatch.setattr(messages, "VERSION", 1)
    with pytest.raises(Corrupt, match="of version 2; this program reads version 1: deploy all peers anew"):
        messages.read(text, mailbox="x")


def test_a_changed_message_is_refused() -> None:
    """`messages.read` raises Corrupt for a message with a changed bit."""
    text = bytearray(messages.encode(Message("run", 0, 0, 1, "", memoryview(b"")), []))
    text[20] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        messages.read(bytes(text), mailbox="x")
