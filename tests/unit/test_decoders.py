"""Words, checkpoints, leases and facts of another shape than their readers know, their checksums in order: Corrupt, naming the key."""

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import Corrupt
from crossover.reports import spending
from crossover.stores.encoding import Vector, VectorKind
from crossover.stores.keys import Keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic
from crossover.training import checkpoints, progress
from crossover.training.fleet import Heartbeats
from crossover.workflow.context import Resources
from functions.mlless import words
from peers.p2p import messages
from tests.unit.mutants import mutated

KEY, RUN = "k/of/it", "r"
VECTOR = Vector(VectorKind.STATE, memoryview(bytes(8)))
STATE = checkpoints.Checkpoint(checkpoints.Position(3, 1), {"model": VECTOR}, {"kept": [[1, 0], [2, 0]]})
MESSAGE = messages.Message(RUN, 1, 2, 3, "key", memoryview(b""))
WORD = {"step": 3, "senders": [0, 1], "leaves": {"1": 4}, "dropped": [2], "loss": 0.5, "at": 1.5}


def stored(key: str, body: bytes) -> MemoryObjectStore:
    """Return an object store that holds the document, with the checksum that documents end with, under `key`."""
    objects, text = MemoryObjectStore(Traffic()), body[:-1]
    objects.put(key, b'%b, "crc32": "%08x"}' % (text, zlib.crc32(text)))
    return objects


def record(body: bytes) -> Vector:
    """Return a stored vector that holds the bytes."""
    return Vector(VectorKind.RECORD, memoryview(body), dtype="uint8")


def repacked(whole: bytes, head: Any, body: bytes) -> bytes:
    """Return `whole` with `body` as the JSON of its header, whose length and checksum fit. `head`: the struct of the fields before the
    JSON.
    """
    magic, version, length, _ = head.unpack(whole[: head.size])
    return head.pack(magic, version, len(body), zlib.crc32(body)) + body + whole[head.size + length :]


@dataclass
class Found:
    """The parts of a Context that agreeing by store uses: the store of objects and the run's keys."""

    objects: MemoryObjectStore
    keys: Keys


def heartbeat(body: bytes) -> Any:
    """Decode a lease whose stored bytes are `body`."""
    objects = MemoryObjectStore(Traffic())
    objects.put(Keys(RUN).heartbeat(0), body)
    return Heartbeats(objects, Keys(RUN)).has_given_back(0, 0)


def of_records(body: bytes) -> Any:
    """Decode a run's records whose stored bytes are `body`."""
    return spending.read_records(stored(f"{Keys(RUN).records}x", body), Keys(RUN), {})


def facts_of(body: bytes) -> Any:
    """Decode a run configuration whose stored bytes are `body`."""
    return Resources(None).read_configuration(RUN, stored(Keys(RUN).experiment, body))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Decoder:
    """A decoder of stored JSON. `read`: decodes the bytes; `sample`: value that it accepts; `key`: what its errors must name."""

    name: str
    sample: Any
    read: Callable[[bytes], Any]
    key: str = KEY


FACTS = {
    "run": RUN,
    "experiment": {"name": "x", "architecture": "spirt", "training": {"epochs": 2}, "spirt": {}},
    "data": "f",
    "data_manifest": {"minibatches": 2, "counts": [[3, 3]], "validation_chunks": 1},
    "parameters": 3,
    "buffers": 0,
    "created_at": 1.5,
    "money": {},
}
RECORD = {
    "run": RUN,
    "request_id": "q",
    "step": "s",
    "worker": 0,
    "epoch": 1,
    "round": 0,
    "minibatch": 0,
    "started_at": 1.5,
    "wall_s": 1.0,
    "cpu_s": 1.0,
    "outcome": "ok",
    "stages": [{"stage": "a", "wall_s": 1.0, "cpu_s": 0.5}],
    "traffic": {},
}
DECISION = {
    "epoch": 1,
    "val_loss": 0.5,
    "val_metric": 0.5,
    "history": [[0.5, 0.5]],
    "finished": False,
    "reason": "",
    "at": 1.5,
}
STATE_BYTES, MESSAGE_BYTES = b"".join(map(bytes, checkpoints.encode(STATE))), messages.encode(MESSAGE, [])
DECODERS = [
    Decoder(
        "checkpoint",
        {"position": [3, 1], "vectors": [["model", 8]], "facts": {"kept": [[1, 0]]}},
        lambda body: checkpoints.read(repacked(STATE_BYTES, checkpoints._HEAD, body), key=KEY),
    ),
    Decoder(
        "message",
        {"run": RUN, "peer": 1, "round": 2, "samples": 3, "key": ""},
        lambda body: messages.read(repacked(MESSAGE_BYTES, messages._HEAD, body), mailbox=KEY),
    ),
    Decoder("word", WORD, lambda body: words.read_word(record(body), key=KEY)),
    Decoder(
        "report",
        {"loss": 0.5, "samples": 3, "seconds": 0.5, "update": True, "complaints": [1]},
        lambda body: words.read_report(record(body), key=KEY),
    ),
    Decoder("heartbeat", {"attempt": 0, "beat": 1, "over": True}, heartbeat, Keys(RUN).heartbeat(0)),
    Decoder(
        "decision",
        DECISION,
        lambda body: progress.read_decision(Found(stored(Keys(RUN).decision(1), body), Keys(RUN)), 1),  # type: ignore[arg-type]
        Keys(RUN).decision(1),
    ),
    Decoder("record", RECORD, of_records, f"{Keys(RUN).records}x"),
    Decoder("facts", FACTS, facts_of, Keys(RUN).experiment),
]


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_the_sample_is_read(decoder: Decoder) -> None:
    """Every decoder reads its sample."""
    decoder.read(json.dumps(decoder.sample).encode())


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
@given(data=st.data())
def test_another_shape_is_corrupt_and_names_the_key(decoder: Decoder, data: st.DataObject) -> None:
    """A changed document is read, or raises Corrupt with its key, and nothing else."""
    body = data.draw(mutated(decoder.sample).map(lambda plain: json.dumps(plain).encode()) | st.binary(max_size=20))
    said = decoder.key
    try:
        decoder.read(body)
    except Corrupt as error:
        said = str(error)
    assert decoder.key in said


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("word", "step", "3"),
        ("word", "senders", [None]),
        ("word", "leaves", {"x": 1}),
        ("report", "update", 1),
        ("message", "round", True),
        ("checkpoint", "position", [1]),
        ("decision", "finished", "no"),
        ("facts", "parameters", 1.5),
        ("record", "wall_s", None),
        ("heartbeat", "over", None),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(name: str, place: str, value: Any) -> None:
    """A sample with a wrong value raises Corrupt with the field. `name`: the decoder's; `place`: the field."""
    decoder = next(each for each in DECODERS if each.name == name)
    with pytest.raises(Corrupt, match=place):
        decoder.read(json.dumps({**decoder.sample, place: value}).encode())
