"""What peers send one another: read back, refused when it is something else, small where compressed."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms import buffers
from crossover.errors import Corrupt
from crossover.experiment import Aggregation, Experiment, PeerToPeer
from peers.p2p import messages
from peers.p2p.messages import Codec, Message


def codec(*, parameters: int = 1000, statistics: int = 6, **p2p: Any) -> Codec:
    experiment = Experiment(name="small", architecture="p2p_instance", p2p=PeerToPeer(**p2p))
    return Codec(experiment, parameters=parameters, statistics=statistics)


def body_of(parts: list[bytes | memoryview]) -> bytes:
    return b"".join(bytes(part) for part in parts)


@given(st.integers(0, 300), st.integers(0, 9), st.integers(0, 2**31))
def test_an_uncompressed_gradient_comes_back_bit_for_bit(parameters: int, statistics: int, seed: int) -> None:
    gradient = torch.randn(parameters + statistics, generator=torch.Generator().manual_seed(seed))
    each = codec(parameters=parameters, statistics=statistics)
    body = body_of(each.encode(gradient, samples=7, round=0, peer=1))
    assert bytes(buffers.view(each.decode(body, samples=7, what="x").clone())) == bytes(buffers.view(gradient))


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"compression": "qsgd", "bits": 8}, 0.26),
        ({"compression": "qsgd", "bits": 4}, 0.14),
        ({"compression": "fp16"}, 0.51),
    ],
)
def test_compression_keeps_statistics_whole_and_is_as_small_as_it_says(settings: dict[str, Any], share: float) -> None:
    each = codec(parameters=100_000, statistics=33, **settings)
    gradient = torch.randn(100_033, generator=torch.Generator().manual_seed(1))
    body = body_of(each.encode(gradient, samples=7, round=3, peer=1))
    assert len(body) <= share * 4 * gradient.numel()
    assert body == body_of(each.encode(gradient, samples=7, round=3, peer=1))  # a retry sends the same bytes
    read = each.decode(body, samples=7, what="x")
    assert torch.equal(read[100_000:], gradient[100_000:])
    assert float((read - gradient).norm() / gradient.norm()) < (0.2 if settings.get("bits") == 4 else 0.02)


@given(st.binary(max_size=200))
def test_a_message_comes_back_and_its_body_is_aligned(body: bytes) -> None:
    said = Message("20260101-000000-abcdef", 3, 17, 120, "", memoryview(b""))
    text = messages.encode(said, [body])
    read = messages.read(text, mailbox="x")
    assert (read.run, read.peer, read.round, read.samples, read.key) == (said.run, 3, 17, 120, "")
    assert bytes(read.body) == body
    assert (len(text) - len(body)) % 16 == 0


@given(st.binary(max_size=100))
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupt, match="mailbox 3"):
        messages.read(text, mailbox="mailbox 3")


def test_another_version_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Message("run", 0, 0, 1, "", memoryview(b""))
    monkeypatch.setattr(messages, "VERSION", 2)
    text = messages.encode(said, [])
    monkeypatch.setattr(messages, "VERSION", 1)
    with pytest.raises(Corrupt, match="of version 2; this program reads version 1: deploy all peers anew"):
        messages.read(text, mailbox="x")


def test_a_changed_message_is_refused() -> None:
    text = bytearray(messages.encode(Message("run", 0, 0, 1, "", memoryview(b"")), []))
    text[20] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        messages.read(bytes(text), mailbox="x")


@pytest.mark.parametrize("settings", [{}, {"compression": "qsgd"}, {"compression": "fp16"}], ids=str)
def test_gradients_of_other_models_or_with_nan_are_refused(settings: dict[str, Any]) -> None:
    each, other = codec(**settings), codec(parameters=1001, **settings)
    good = body_of(each.encode(torch.ones(1006), samples=7, round=0, peer=1))
    with pytest.raises(Corrupt, match="trains another model"):
        other.decode(good, samples=7, what="x")
    with pytest.raises(Corrupt, match="stands for 7 samples where 8"):
        each.decode(good, samples=8, what="x")
    bad = torch.ones(1006)
    bad[1005] = float("nan")  # a statistic: what stands before it may be refused by the compression already
    with pytest.raises(Corrupt, match="NaN"):
        each.decode(body_of(each.encode(bad, samples=7, round=0, peer=1)), samples=7, what="x")


def test_half_precision_does_not_overflow() -> None:
    each = codec(parameters=2, statistics=0, compression="fp16")
    body = body_of(each.encode(torch.tensor([1e6, -1e6]), samples=1, round=0, peer=0))
    assert each.decode(body, samples=1, what="x").tolist() == [65_504.0, -65_504.0]


def test_half_precision_keeps_infinity_for_the_rule_to_see() -> None:
    """It became float16's largest number: peers took for finite what `aggregation.non_finite: drop` leaves out."""
    experiment = Experiment(
        name="x",
        architecture="p2p_instance",
        p2p=PeerToPeer(compression="fp16"),
        aggregation=Aggregation(rule="median", non_finite="drop"),
    )
    kept, sent = Codec(experiment, parameters=2, statistics=1), torch.tensor([1.0, -float("inf"), 0.5])
    body = body_of(kept.encode(sent, samples=1, round=0, peer=0))
    assert torch.equal(kept.decode(body, samples=1, what="m"), sent)
