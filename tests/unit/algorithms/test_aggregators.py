"""Who adds what, what memory that takes, and the bits of it: numpy makes and adds the same gradients by arithmetic of its own."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from crossover.algorithms.aggregators import one_process
from crossover.algorithms.aggregators.gradients import BLOCK, gradient
from crossover.algorithms.aggregators.plan import MIB, RUNTIME_MB, Plan, sharded, tree
from tests import references

VGG16 = 134_301_514  # parameters, ten classes
PLANS = [
    sharded(10, 5, shards=3),
    tree(10, 5, groups=[3]),
    tree(10, 20, groups=[3, 3]),
    tree(10, 1, groups=[4]),
]


def inputs(plan: Plan) -> list[list[int]]:
    return [[len(each.inputs) for each in level] for level in plan.levels]


def test_the_papers_designs_share_20_clients_as_it_says() -> None:
    assert inputs(sharded(VGG16, 20, shards=4)) == [[20] * 4]
    assert inputs(tree(VGG16, 20, groups=[5])) == [[5] * 4, [4]]
    assert inputs(tree(VGG16, 20, groups=[3, 3])) == [[3, 3, 3, 3, 3, 3, 2], [3, 3, 1], [3]]


@pytest.mark.parametrize("plan", PLANS)
def test_every_client_is_in_the_mean_once(plan: Plan) -> None:
    for number in range(plan.parts):
        reached = [[client] for client in range(plan.clients)]
        for level in plan.levels:
            own = [each for each in level if each.part == number]
            assert [each.weights for each in own] == [tuple(len(reached[n]) for n in each.inputs) for each in own]
            reached = [[client for n in each.inputs for client in reached[n]] for each in own]
        assert reached == [list(range(plan.clients))]


def test_memory_is_two_parts_whatever_the_number_of_clients() -> None:
    """And what a function of the paper's sizes cannot hold is told with what could."""
    part_mb = -(-8 * VGG16 // MIB)
    assert sharded(VGG16, 20, shards=1).need_mb("aggregate") == RUNTIME_MB + part_mb
    assert tree(VGG16, 1_000, groups=[5]).need_mb("aggregate") == RUNTIME_MB + part_mb
    large, functions = tree(5_120 * 2**18, 20, groups=[5]), {"send_gradient": 10_240, "aggregate": 10_240}
    assert large.too_small(functions) == [
        "aggregate: 10,240 MB do not hold 2 x 5,120 MB beside the runtime's 200; 10,440 would be needed, and a function has at most "
        "10,240: smaller parts alone would fit"
    ]
    assert sharded(5_120 * 2**18, 20, shards=8).too_small({"send_gradient": 1_769, "aggregate": 2_370}) == []


def test_the_page_says_what_fits() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text(encoding="utf-8")
    table = page.partition("## Which gradients fit into a function")[2].partition("\nA run whose")[0]
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) == 7
    for parameters, size, *told in rows[2:]:
        elements = int(parameters.replace(",", ""))
        assert size == f"{4 * elements / MIB:,.1f}"
        plans = [tree(elements, 20, groups=[5]), *(sharded(elements, 20, shards=count) for count in (4, 8, 16))]
        needed = [plan.need_mb("aggregate") for plan in plans]
        assert [int(cell.replace(",", "").removesuffix(" (no function)")) for cell in told] == needed, size
        assert [cell.endswith("(no function)") for cell in told] == [mb > 10_240 for mb in needed]


def by_numpy(seed: int, client: int, elements: int) -> np.ndarray:
    x = np.arange(BLOCK, dtype=np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    x = (x ^ (x >> np.uint32(16))) - np.uint32(2**31)
    blocks = []
    for block in range(-(-elements // BLOCK)):
        factor, summand = np.frombuffer(
            hashlib.sha256(f"gradient {seed} {client} {block}".encode()).digest()[:8], "<u4"
        )
        blocks.append((x * (factor | np.uint32(1)) + summand).view(np.int32) >> 8)
    return np.concatenate(blocks)[:elements].astype(np.float32) / np.float32(2**24)


def test_a_gradient_is_the_same_wherever_it_is_made_and_in_whatever_parts() -> None:
    elements = BLOCK + 1_000
    whole = gradient(7, 3, slice(0, elements)).numpy()
    assert np.array_equal(whole, by_numpy(7, 3, elements))
    assert np.array_equal(gradient(7, 3, slice(BLOCK - 5, BLOCK + 9)).numpy(), whole[BLOCK - 5 : BLOCK + 9])
    assert not np.array_equal(gradient(8, 3, slice(0, 9)).numpy(), whole[:9])
    assert -0.5 <= whole.min() < -0.49 < 0.49 < whole.max() < 0.5 and abs(whole.mean()) < 0.01


@pytest.mark.parametrize("plan", [sharded(BLOCK + 7, 5, shards=2), tree(BLOCK + 7, 20, groups=[3, 3])])
def test_one_process_has_the_bits_of_numpy(plan: Plan) -> None:
    found = one_process.digests(plan, seed=1)
    assert len(found) == plan.aggregators
    for number in range(plan.parts):
        members = [by_numpy(1, client, plan.elements)[plan.part(number)] for client in range(plan.clients)]
        for level, row in enumerate(plan.levels, 1):
            means = {
                n: references.mean([members[i] for i in each.inputs], each.weights)
                for n, each in enumerate(row)
                if each.part == number
            }
            for n, mean in means.items():
                assert found[level, n] == hashlib.sha256(mean.tobytes()).hexdigest()
            members = list(means.values())
