"""Tables of floating point numbers are standardised in float64, judged by scikit-learn's StandardScaler."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import Tensor

from crossover import runtime
from crossover.errors import DataError
from crossover.experiment import Data, Experiment, Training
from crossover.learning import datasets
from crossover.learning.batches import decode_batch
from crossover.learning.samples import Dataset, Preparation, Samples, augment_images, compute_constants, get_affine_map
from crossover.learning.staging import stage
from crossover.stores import keys
from crossover.stores.memory import MemoryObjectStore
from crossover.stores.protocols import Traffic

CONSTANTS = [
    0.0,
    0.1,
    0.2,
    0.3,
    0.7,
    14.62,
    1 / 3,
    0.001,
    2.54,
    9.81,
    273.15,
    3.14159265,
    6.02e23,
    -1.1,
    1e-40,
    1e18,
    1e200,
]
OFFSETS = [0.0, 1.0, 48.1371, 1e3, 1e5, 1e6, 1e7, 1_732_572_000.0, 1_732_572_000_000.0, -1e9]
SPREADS = [1e-4, 1.0, 17.0, 200.0]


def loaded(
    inputs: Tensor, monkeypatch: pytest.MonkeyPatch, *, test: Tensor | None = None, preprocess: str = "standardize"
) -> tuple[Dataset, Tensor, Tensor]:
    """Return the data set that a loader's `inputs` become, and what the model sees of its training and validation parts. `test`: inputs
    of the validation part, by default the first three.
    """
    own = Experiment(
        name="table",
        architecture="single",
        workers=1,
        training=Training(model="mine:network", batch_size=10),
        data=Data(dataset="mine:rows", preprocess=preprocess, validation="test"),  # type: ignore[arg-type]
    )
    test = inputs[:3] if test is None else test
    found = Samples(inputs, torch.arange(len(inputs)) % 2, 2, test, torch.zeros(len(test), dtype=torch.int64))
    monkeypatch.setattr(datasets, "load_samples", lambda experiment: (found, None))
    dataset = datasets.load(own)
    prepare = Preparation(get_affine_map(dataset, preprocess), memory_format="contiguous")
    return dataset, prepare(dataset.train_inputs), prepare(dataset.validation_inputs)


def normal(rows: int, columns: int = 1, *, seed: int = 0) -> Tensor:
    """Return normally distributed float64 numbers, the same for the same seed."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_column_becomes_0_whatever_the_number_of_rows(
    constant: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a constant column is standardized to exactly 0, and a column of random numbers to deviation 1."""
    if not torch.tensor(constant, dtype=dtype).isfinite():
        pytest.skip(f"{dtype} has no {constant}")
    for rows in (3, 40, 149, 2280, 5000, 5960):
        column = torch.full((rows, 1), constant, dtype=torch.float64)
        table = torch.cat([normal(rows), column], 1).to(dtype)
        _, seen, _ = loaded(table, monkeypatch)
        assert seen.dtype == torch.float32 and bool((seen[:, 1] == 0).all()), (rows, seen[:, 1].abs().max())
        assert seen[:, 0].double().std(correction=0) == pytest.approx(1, abs=1e-5)


@given(
    rows=st.integers(2, 5000),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    columns=st.lists(
        st.one_of(
            st.tuples(st.sampled_from(OFFSETS), st.sampled_from(SPREADS)),
            st.tuples(st.sampled_from(CONSTANTS[:-2]), st.just(0.0)),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 9),
)
def test_generated_tables_are_as_scikit_learn_has_them(
    rows: int, dtype: torch.dtype, columns: list[tuple[float, float]], seed: int
) -> None:
    """Standardised columns are within rounding of scikit-learn's StandardScaler; constant columns become 0."""
    draws = normal(rows, len(columns), seed=seed)
    table = torch.stack([offset + spread * draws[:, i] for i, (offset, spread) in enumerate(columns)], 1).to(dtype)
    judge = StandardScaler().fit(table.double().numpy())
    with pytest.MonkeyPatch.context() as monkeypatch:
        _, seen, validation = loaded(table, monkeypatch, test=table[-2:])
    expected = torch.from_numpy(judge.transform(table.double().numpy()))
    for i, (offset, spread) in enumerate(columns):
        if float(table[:, i].max()) == float(table[:, i].min()):
            assert judge.scale_[i] == 1.0 and bool(
                (seen[:, i] == 0).all()
            )  # scikit-learn may be off by the constant's last bit
            continue
        own_bits = abs(offset) / spread * 2.0**-47 if spread else 0.0  # a few of the table's own last bits
        assert seen[:, i].double() == pytest.approx(expected[:, i], rel=1e-5, abs=2e-6 + own_bits)
    assert torch.equal(validation, seen[-2:])


@pytest.mark.parametrize("offset", OFFSETS)
def test_ends_at_an_offset_are_0_and_1(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """minmax maps columns around a large offset to 0 and 1, as scikit-learn's MinMaxScaler does."""
    table = offset + torch.rand(500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, seen, _ = loaded(table, monkeypatch, preprocess="minmax")
    expected = torch.from_numpy(MinMaxScaler().fit_transform(table.numpy()))
    assert seen.double() == pytest.approx(expected, abs=1e-6 + offset * 2.0**-50)


def test_what_differs_by_its_last_bits_alone_has_no_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column whose values differ only by rounding becomes 0, as a constant one does."""
    column = torch.tensor([0.1 + 0.2, 0.3] * 500, dtype=torch.float64)
    _, seen, _ = loaded(column.unsqueeze(1), monkeypatch)
    assert seen.abs().max() < 1e-15


@pytest.mark.parametrize(
    ("size", "dtype"), [(1e-40, torch.float32), (1e-30, torch.float64), (1e-200, torch.float64), (1e200, torch.float64)]
)
def test_a_column_of_any_size_gets_deviation_1(
    size: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that very small and very large numbers are standardized without underflow or overflow."""
    _, seen, _ = loaded((normal(200) * size).to(dtype), monkeypatch)
    assert seen.double().std(correction=0) == pytest.approx(1, abs=1e-5)
    assert seen.double().mean() == pytest.approx(0, abs=1e-6)


def test_what_float32_does_not_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs beyond float32's range raise DataError with the number of rows, the first one and the part of the data."""
    table = torch.tensor([[1.0], [1e300], [2.0]], dtype=torch.float64)
    beyond = r"mine:rows: inputs are beyond float32, .* in 1 of 3 rows, the first is 1, of the training set, .*none"
    with pytest.raises(DataError, match=beyond):
        loaded(table, monkeypatch, preprocess="none")
    with pytest.raises(DataError, match="in 1 of 1 rows, the first is 0, of the validation set"):
        loaded(
            torch.tensor([[1.0], [2.0]], dtype=torch.float64),
            monkeypatch,
            test=torch.full((1, 1), 1e300, dtype=torch.float64),
        )


def test_a_wide_table_is_staged_as_the_model_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float64 table around a large offset is staged in float32 after standardising."""
    table = 1e9 + normal(40, 2)
    dataset, seen, _ = loaded(table, monkeypatch)
    own = Experiment(name="table", architecture="single", workers=1, training=Training(batch_size=40))
    store = MemoryObjectStore(Traffic())
    manifest = stage(own, dataset, [store])
    assert manifest["affine"]["scale"] == manifest["affine"]["shift"] == []
    key = keys.minibatch(dataset.fingerprint, 0, 0)
    batch = decode_batch(store.get(key))
    assert batch.inputs.dtype == torch.float32
    assert torch.equal(
        Preparation(manifest["affine"], memory_format="contiguous")(batch.inputs), seen[batch.sample_ids]
    )


def test_ordinary_float32_and_uint8_are_staged_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordinary float32 and uint8 inputs are staged unchanged, with the fingerprints of earlier versions."""
    rows = torch.arange(40).remainder(7).float().view(20, 2)
    images = torch.arange(48, dtype=torch.uint8).view(3, 1, 4, 4)
    for inputs, fingerprint in (
        (rows, "002b770bfa49984916b34a63ea7060ea"),
        (images, "0164f8f0677df76672db8c18161b1f95"),
    ):
        dataset, seen, _ = loaded(inputs, monkeypatch)
        scale, shift = compute_constants(inputs, "standardize")
        assert torch.equal(dataset.train_inputs, inputs) and dataset.fingerprint == fingerprint
        assert get_affine_map(dataset, "standardize") == {"scale": scale, "shift": shift}
        by_channel = (-1, *[1] * (inputs.ndim - 2))
        factor, term = (torch.tensor(each).view(by_channel) for each in (scale, shift))
        assert torch.equal(seen, inputs.float() * factor + term)


def test_what_float32_has_lost_already_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A float32 column that lies far from 0 relative to its deviation is noted once; the same in float64 is not."""
    stamps = torch.arange(1_732_572_000, 1_732_572_900).double().unsqueeze(1)
    loaded(stamps, monkeypatch)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        loaded(stamps.float(), monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: data.dataset: mine:rows: inputs, channel 0, lie around 1.733e+09 and deviate by 2")
    assert "float32" in line and "float64" in line


@pytest.mark.parametrize("augment", ["crop_flip", "crop_alternate"])
def test_images_of_float64_are_shifted_over_black_as_any(augment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmented float64 images are padded with the value that black has after standardising."""
    images = (torch.arange(5 * 2 * 8 * 8) % 97 / 97).view(5, 2, 8, 8).double()
    ids, data = torch.arange(5), Data(augment=augment)  # type: ignore[arg-type]
    dataset, _, _ = loaded(images, monkeypatch)
    prepare = Preparation(get_affine_map(dataset, "standardize"), memory_format="contiguous")
    scale, shift = compute_constants(images, "standardize")
    whole = Preparation({"scale": scale, "shift": shift}, memory_format="contiguous")
    found = prepare(augment_images(dataset.train_inputs, ids, data, seed=3, epoch=1, zero=prepare.zero))
    assert torch.equal(found, whole(augment_images(images, ids, data, seed=3, epoch=1)))


def test_what_float32_has_made_one_number_of_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A float32 column of large equal numbers is noted, because float32 may have merged different ones; a constant 0.1 is not."""
    runtime.get_or_make("notes on data sets", set[str]).clear()  # each is printed once in a process
    minute = torch.arange(1_732_572_000, 1_732_572_060).float().unsqueeze(1)
    loaded(torch.cat([minute, torch.full_like(minute, 0.1)], 1), monkeypatch)
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "inputs, channel 0, are 1.733e+09 in every row; if they were not, float32 holds in steps of 128; return float64"
        in line
    )
