"""The base that a model begins from, as functions and programs take it from the object store."""

import hashlib
from dataclasses import replace

import pytest
import torch

from crossover.errors import Corrupt
from crossover.experiment import Weights
from crossover.learning import batches
from crossover.stores import keys
from crossover.stores.clients import MemoryClients
from crossover.stores.protocols import Traffic
from crossover.workflow.context import Resources
from tests.architectures.harness import small


@pytest.mark.parametrize("staged", ["of other numbers", "cut", "flipped"])
def test_a_staged_base_of_another_digest_is_refused_by_functions(staged: str) -> None:
    """A function that reads pretrained weights of another digest than the experiment's raises Corrupt, at a second invocation too."""
    whole = batches.encode_tensors({"weight": torch.ones(64)}, {})
    other = {
        "of other numbers": batches.encode_tensors({"weight": torch.zeros(64)}, {}),
        "cut": whole[:-4],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
    }[staged]
    digest = hashlib.sha256(whole + staged.encode()).hexdigest()  # one that no other test's process knows
    experiment = small("all_reduce")
    weights = Weights(file="base.safetensors", sha256=digest)
    experiment = replace(experiment, training=replace(experiment.training, weights=weights))
    clients = MemoryClients(workers=1)
    clients.object_store.put(keys.weights(digest), other)
    for _ in range(2):  # a second invocation in the same process, too
        with pytest.raises(
            Corrupt, match=f"the staged file's SHA-256 is {hashlib.sha256(other).hexdigest()}; {digest}"
        ):
            Resources(clients).load_base_weights(experiment, clients.objects(Traffic()))
