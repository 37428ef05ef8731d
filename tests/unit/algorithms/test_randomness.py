"""Seeds, permutations, hashes, chunks and attacks: the same everywhere, and doing what they say."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.algorithms.compression import compute_hashes, make_generator
from crossover.algorithms.robust import attack_vector, flip_labels
from crossover.algorithms.schedule import chunk_slice, derive_seed, list_chunk_sizes, permute


def test_seeds_are_the_same_for_ever() -> None:
    """Seeds, permutations and hashes have fixed published values, because others would change every staged data set and run."""
    assert derive_seed("dropout", 1, 2, 3, 4) == 0xA2A58E63A56272FF
    assert permute(8, seed=1) == [0, 5, 4, 1, 2, 6, 7, 3]
    assert compute_hashes(torch.tensor([0, 1, -1]), "augmentation", 1, 2).tolist() == [
        6604250144519186898,
        7546282002837610584,
        4864690864971187585,
    ]


def test_seeds_differ_by_purpose_and_key() -> None:
    """Check that derive_seed gives different seeds for different purposes and keys, such as (1, 23) and (12, 3)."""
    keys = [("a", (1, 23)), ("a", (12, 3)), ("b", (1, 23)), ("a", (1,)), ("a", ()), ("a", (-1, 23))]
    assert len({derive_seed(purpose, *key) for purpose, key in keys}) == len(keys)


@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_permutations_hold_every_number_once(count: int, start: int) -> None:
    """Check that permute returns each number below `count` once."""
    assert sorted(permute(count, seed=start)) == list(range(count))


def test_permutations_are_uniform() -> None:
    """Check that the six orders of three numbers are about equally frequent over 6,000 seeds."""
    counts = Counter(tuple(permute(3, seed=derive_seed("test", i))) for i in range(6_000))
    assert len(counts) == 6
    assert all(abs(count - 1_000) < 150 for count in counts.values())  # five standard deviations


def test_generators_leave_the_global_one_alone() -> None:
    """Check that generators of one key draw equal numbers and leave torch's global generator unchanged."""
    before = torch.random.get_rng_state()
    torch.randn(5, generator=make_generator("a", 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(
        torch.randn(5, generator=make_generator("a", 1)), torch.randn(5, generator=make_generator("a", 1))
    )


def test_hashes_are_splitmix64() -> None:
    """`compute_hashes` gives the numbers of SplitMix64 as computed with Python's integers."""
    mask = 2**64 - 1
    start = derive_seed("augmentation", 3, 7)
    for id_ in (0, 1, 49_999, 2**40):
        x = (id_ * 0x9E3779B97F4A7C15 + start) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        assert compute_hashes(torch.tensor([id_]), "augmentation", 3, 7).item() == (x ^ (x >> 31)) >> 1


@given(st.integers(0, 1000), st.integers(1, 64))
def test_chunks_tile_the_vector(elements: int, workers: int) -> None:
    """The workers' chunks follow one another, cover the vector, and differ by one element at most."""
    numbers = list(range(elements))
    parts = [numbers[chunk_slice(elements, workers, worker=worker)] for worker in range(workers)]
    assert [number for part in parts for number in part] == numbers
    assert [len(part) for part in parts] == list_chunk_sizes(elements, workers)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_chunk_misuse_is_named() -> None:
    """Check that a worker that does not exist, and no workers, raise ValueError."""
    with pytest.raises(ValueError, match="worker: 3; 0 to 2"):
        chunk_slice(10, 3, worker=3)
    with pytest.raises(ValueError, match="10 elements for 0 workers"):
        list_chunk_sizes(10, 0)


def test_attacks_change_the_gradient_and_not_the_statistics() -> None:
    """Check what each attack makes of a vector, that noise repeats for a seed, and that an unknown attack raises ValueError."""
    vector = torch.arange(1.0, 1001.0)
    for attack in ("sign_flip", "gaussian"):
        changed = attack_vector(vector, attack=attack, scale=10.0, generator=make_generator("attack"), buffers=100)
        assert torch.equal(changed[900:], vector[900:])
        assert not torch.equal(changed[:900], vector[:900])
    flipped = attack_vector(vector, attack="sign_flip", scale=10.0, generator=make_generator("attack"), buffers=100)
    assert torch.equal(flipped[:900], -10 * vector[:900])
    noise = attack_vector(vector, attack="gaussian", scale=10.0, generator=make_generator("attack"), buffers=100)[:900]
    size = vector[:900].square().mean().sqrt() * 10
    assert 0.8 < float(noise.std() / size) < 1.2
    again = attack_vector(vector, attack="gaussian", scale=10.0, generator=make_generator("attack"), buffers=100)[:900]
    assert torch.equal(noise, again)
    for harmless in ("none", "label_flip"):
        same = attack_vector(vector, attack=harmless, scale=10.0, generator=make_generator("attack"))
        assert torch.equal(same, vector)
    with pytest.raises(ValueError, match="'shout'; one of none"):
        attack_vector(vector, attack="shout", scale=1.0, generator=make_generator("attack"))


def test_label_flip_is_its_own_inverse() -> None:
    """Check that flip_labels replaces class c by 9 - c, and gives the original labels if it is applied twice."""
    labels = torch.tensor([random.Random(1).randrange(10) for _ in range(50)])
    flipped = flip_labels(labels, classes=10)
    assert flipped[0] == 9 - labels[0]
    assert torch.equal(flip_labels(flipped, classes=10), labels)
