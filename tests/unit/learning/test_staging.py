"""Staging: plans that tile the data, advice that works, objects that hold what the plan says."""

import json
import re
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.experiment import Data, Exchange, Experiment, Faults, Training
from crossover.learning.batches import decode_batch
from crossover.learning.datasets import Dataset, Samples, load
from crossover.learning.staging import plan_staging, stage
from crossover.stores import keys


def experiment(*, workers: int = 4, batch_size: int = 60, drop_last: bool = False, **fields: object) -> Experiment:
    """Return a SPIRT experiment. `fields`: further fields of it."""
    return Experiment(
        name="test",
        architecture="spirt",
        workers=workers,
        training=Training(batch_size=batch_size),
        data=Data(drop_last=drop_last),
        **fields,  # type: ignore[arg-type]
    )


class Folder(dict[str, bytes]):
    """An object store in memory. `writes`: number of objects written so far."""

    writes = 0

    def exists(self, key: str) -> bool:
        """Return whether the object exists."""
        return key in self

    def put(self, key: str, data: bytes) -> None:
        """Store the object and count the write."""
        self.writes += 1
        self[key] = bytes(data)


@given(st.integers(1, 2000), st.integers(1, 12), st.integers(1, 200), st.booleans())
def test_a_plan_covers_every_sample_once_or_says_what_would(
    samples: int, workers: int, batch_size: int, drop_last: bool
) -> None:
    """A staging plan has every sample once, or ConfigError suggests a batch size or number of workers that works."""
    own = experiment(workers=workers, batch_size=batch_size, drop_last=drop_last)
    try:
        made = plan_staging(own, samples)
    except ConfigError as error:
        for field, values in re.findall(r"(training\.batch_size|workers) ([\d or]+)(?:,| would)", str(error)):
            for value in map(int, values.split(" or ")):
                better = (
                    experiment(workers=workers, batch_size=value, drop_last=drop_last)
                    if field == "training.batch_size"
                    else experiment(workers=value, batch_size=batch_size, drop_last=drop_last)
                )
                assert plan_staging(better, samples).minibatches >= 1  # the advice works
        return
    assert len(made.partitions) == workers
    assert {len(partition) for partition in made.partitions} == {made.minibatches}
    assert made.minibatches >= 1
    ids = [id_ for partition in made.partitions for part in partition for id_ in part]
    assert len(set(ids)) == len(ids)
    sizes = [sum(row) for row in made.counts]
    for row in made.counts:
        assert all(count == batch_size for count in row[:-1]) and 1 <= row[-1] <= batch_size
        assert not drop_last or row[-1] == batch_size
    if not drop_last:
        assert sorted(ids) == list(range(samples))
        assert max(sizes) - min(sizes) <= 1


def test_the_papers_setting_gives_24_minibatches() -> None:
    """Check the plan of CIFAR-10 for 4 workers and minibatches of 512 samples."""
    made = plan_staging(experiment(batch_size=512, drop_last=True), 50_000)
    assert made.counts == [[512] * 24] * 4


def test_a_plan_that_cannot_be_names_field_value_and_what_would_do() -> None:
    """Check the errors for a batch size that gives unequal numbers of minibatches, for no samples, and for a batch size
    above a partition.
    """
    with pytest.raises(ConfigError, match=r"training\.batch_size: 5 .* training\.batch_size 4 or 6"):
        plan_staging(experiment(workers=2, batch_size=5), 11)
    with pytest.raises(ConfigError, match="more samples would do"):
        plan_staging(experiment(workers=2, batch_size=5), 0)
    with pytest.raises(ConfigError, match=r"training\.batch_size: 7 is larger than a worker's partition of 6 samples"):
        plan_staging(experiment(workers=2, batch_size=7), 11)


def test_as_many_workers_are_suggested_as_an_experiment_may_have() -> None:
    """The suggested number of workers may be as large as 64."""
    with pytest.raises(ConfigError, match=r"workers (\d+ or )?64 would do"):
        plan_staging(experiment(workers=63, batch_size=8), 512)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Return the default data set, loaded."""
    return load(experiment())


def test_a_round_beyond_the_epoch_is_refused_whatever_the_data() -> None:
    """A round of more minibatches than an epoch has raises ConfigError."""
    experiment = Experiment(
        name="x", architecture="all_reduce", training=Training(batch_size=10), exchange=Exchange(every=4)
    )
    assert plan_staging(experiment, 160).minibatches == 4
    with pytest.raises(ConfigError, match=r"exchange\.every: 4 is more than the 3 minibatches"):
        plan_staging(experiment, 120)


def test_local_steps_go_on_beyond_an_epoch_by_whole_ones_within_the_run() -> None:
    """Rounds of local steps may be longer than an epoch if they are whole epochs within the run; otherwise ConfigError says which are."""
    plain = Experiment(name="x", architecture="all_reduce", training=Training(batch_size=10, epochs=3))

    def asked(every: int, what: Any) -> int:
        """Return the minibatches of an epoch in the plan of 160 samples. `every`, `what`: settings of the exchange."""
        return plan_staging(replace(plain, exchange=Exchange(every=every, what=what)), 160).minibatches

    assert {asked(every, "model") for every in (3, 4, 8, 12)} == {asked(8, "delta")} == {4}
    for every, said in (
        (5, "whole epochs within the 3 of the run .* 4 or 8 is expected"),
        (16, "; 12 is expected"),
        (13, "; 12 is expected"),
    ):
        with pytest.raises(ConfigError, match=said):
            asked(every, "model")
    with pytest.raises(ConfigError, match=r"at most 4 is expected, .* exchange\.what: model or delta where .* go on"):
        asked(8, "gradients")


def test_steps_end_in_the_last_epoch() -> None:
    """`training.steps` is accepted only if its update lies in the last epoch; ConfigError says how many epochs would do."""

    def asked(steps: int, every: Any) -> int:
        """Return the number of minibatches in the plan of 160 samples, for these steps and this exchange."""
        training = Training(batch_size=10, epochs=2, steps=steps)
        experiment = Experiment(name="x", architecture="spirt", training=training, exchange=Exchange(every=every))
        return plan_staging(experiment, 160).minibatches

    assert {asked(steps, 1) for steps in (5, 8)} == {asked(3, 3)} == {asked(2, "epoch")} == {4}
    for steps, every, needed in ((4, 1, 1), (9, 1, 3), (5, 3, 3), (1, "epoch", 1)):
        with pytest.raises(
            ConfigError, match=rf"training\.steps: {steps} .* is 2; expected training\.epochs={needed}, or"
        ):
            asked(steps, every)


def test_staged_objects_hold_the_plan(digits: Dataset) -> None:
    """Check that the staged minibatches hold each training sample once, in random order, and that manifest and validation chunk are as
    planned.
    """
    own, store = experiment(), Folder()
    manifest = stage(own, digits, [store])
    assert json.loads(store[keys.data_manifest(digits.fingerprint)]) == manifest
    seen = []
    for worker in range(4):
        for number in range(manifest["minibatches"]):
            batch = decode_batch(store[keys.minibatch(digits.fingerprint, worker, number)])
            assert batch.samples == manifest["counts"][worker][number]
            assert torch.equal(batch.inputs, digits.train_inputs[batch.sample_ids])
            assert torch.equal(batch.labels, digits.train_labels[batch.sample_ids])
            seen += batch.sample_ids.tolist()
    assert sorted(seen) == list(range(digits.train_labels.numel()))
    assert seen != sorted(seen)  # shuffled
    assert manifest["train_samples"] == len(seen)
    chunk = decode_batch(store[keys.validation_chunk(digits.fingerprint, 0)])
    assert torch.equal(chunk.inputs, digits.validation_inputs)
    assert (manifest["validation_chunks"], manifest["validation_samples"]) == (1, chunk.samples)
    assert (manifest["classes"], manifest["input_shape"], manifest["dataset"]) == (10, [1, 8, 8], "digits")


def test_what_is_staged_is_not_staged_again(digits: Dataset) -> None:
    """Staging twice writes nothing the second time; after an interruption only what is missing."""
    store = Folder()
    stage(experiment(), digits, [store])
    before, store.writes = dict(store), 0
    stage(experiment(), digits, [store])
    assert store.writes == 0
    del store[keys.data_manifest(digits.fingerprint)]  # as if staging had been interrupted
    del store[keys.minibatch(digits.fingerprint, 2, 1)]
    stage(experiment(), digits, [store])
    assert store.writes == 2
    assert store == before


def test_a_bucket_per_worker_holds_its_own_minibatches_and_all_of_validation(digits: Dataset) -> None:
    """Check that with one store per worker each holds the worker's minibatches, the validation chunk and the manifest."""
    stores, together = [Folder() for _ in range(4)], Folder()
    stage(experiment(), digits, stores)
    stage(experiment(), digits, [together])
    train = f"data/{digits.fingerprint}/train/"
    for worker, store in enumerate(stores):
        assert {key for key in store if key.startswith(train)} == {
            key for key in together if key.startswith(f"{train}{worker}/")
        }
        assert keys.data_manifest(digits.fingerprint) in store
        assert keys.validation_chunk(digits.fingerprint, 0) in store
    assert {key: data for store in stores for key, data in store.items()} == together


def test_flipped_labels_are_the_faulty_workers_alone() -> None:
    """Check that the attack label_flip changes the labels of the faulty worker only."""
    honest, faulty = experiment(), experiment(faults=Faults(attack="label_flip", workers=(2,)))
    first, second = load(honest), load(faulty)
    assert first.fingerprint != second.fingerprint
    stores = Folder(), Folder()
    stage(honest, first, [stores[0]])
    stage(faulty, second, [stores[1]])
    for worker in range(4):
        labels = [
            decode_batch(store[keys.minibatch(data.fingerprint, worker, 0)]).labels
            for store, data in zip(stores, (first, second), strict=True)
        ]
        assert torch.equal(labels[1], 9 - labels[0] if worker == 2 else labels[0])


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"workers": 3},
        {"training": Training(batch_size=30)},
        {"data": Data(preprocess="minmax")},
        {"data": Data(limit=500)},
        {"data": Data(drop_last=True)},
        {"data": Data(validation=0.3)},
    ],
)
def test_the_fingerprint_covers_what_is_staged(digits: Dataset, change: dict[str, object]) -> None:
    """The fingerprint of the data differs after `change`, which affects staged objects."""
    assert load(replace(experiment(), **change)).fingerprint != digits.fingerprint  # type: ignore[arg-type]


def test_the_fingerprint_covers_the_seed_of_the_order_where_the_split_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fingerprint differs by seed for a data set with its own test split too, because the seed orders the samples."""
    images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 3
    module = ModuleType("own_data")
    module.loader = lambda _: Samples(images, labels, 3, images, labels)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_data", module)
    own = replace(experiment(), data=Data(dataset="own_data:loader", validation="test"))
    assert load(own).fingerprint == load(own).fingerprint
    assert load(own).fingerprint != load(replace(own, seed=2)).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"training": Training(batch_size=60, learning_rate=0.7, epochs=3)},
        {"data": Data(augment="crop_flip", directory="elsewhere")},
        {"faults": Faults(attack="sign_flip", workers=(1,))},
        {"name": "other", "architecture": "mlless"},
    ],
)
def test_the_fingerprint_leaves_out_what_is_not_staged(digits: Dataset, change: dict[str, object]) -> None:
    """The fingerprint of the data is equal after `change`, which affects no staged object."""
    assert load(replace(experiment(), **change)).fingerprint == digits.fingerprint  # type: ignore[arg-type]
