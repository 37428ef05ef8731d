"""Files of tensors: the safetensors library reads what is written, and what is damaged is no file."""

import pytest
import torch
from safetensors.torch import load

from crossover.errors import Corrupt
from crossover.learning import batches

TENSORS = {
    "scalar": torch.tensor(3),
    "turned": torch.arange(6.0).view(2, 3).mT,
    "half": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.empty(0, 2),
    "flags": torch.tensor([True, False]),
}


def test_what_is_written_is_read_here_and_elsewhere() -> None:
    """Tensors and their metadata are read back by this project and by the safetensors library."""
    body = batches.encode_tensors(TENSORS, {"about": "this"})
    here, about = batches.decode_tensors(body)
    assert about == {"about": "this"}
    for found in (here, load(body)):
        assert found.keys() == TENSORS.keys()
        assert all(
            torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in TENSORS.items()
        )


@pytest.mark.parametrize("length", [0, 4, 9, 60, -1])
def test_a_truncated_tensor_file_is_refused(length: int) -> None:
    """Check that the first `length` bytes of a tensor file raise Corrupt."""
    with pytest.raises(Corrupt, match="tensor file"):
        batches.decode_tensors(batches.encode_tensors(TENSORS, {})[:length])


def test_a_tensor_that_has_no_place_is_named() -> None:
    """A tensor that the file format cannot hold is named with its kind; others give ""."""
    assert batches.find_tensors_problem(TENSORS) == ""
    assert "sparse is Tensor" in batches.find_tensors_problem({"sparse": torch.eye(2).to_sparse()})
    assert "state is dict" in batches.find_tensors_problem({"state": {}})
    assert "wave is torch.complex64" in batches.find_tensors_problem({"wave": torch.ones(2, dtype=torch.complex64)})


def test_a_digest_is_of_names_and_values() -> None:
    """The digest of tensors depends on their names and values, and is "" for none."""
    one = {"a": torch.ones(2)}
    assert batches.compute_digest({}) == ""
    assert batches.compute_digest(one) == batches.compute_digest({"a": torch.ones(2)})
    assert len({batches.compute_digest(each) for each in (one, {"b": torch.ones(2)}, {"a": torch.zeros(2)})}) == 3
