"""Who adds what: the aggregators of each level, what they read, and how much memory a function needs for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from crossover.algorithms.chunking import chunk, chunk_sizes
from crossover.experiment import MOST_MEMORY_MB

ELEMENT_BYTES, MIB = 4, 2**20
HELD_PARTS = {"send_gradient": 1, "aggregate": 2}
# Of a function that has imported torch and boto3, before it holds a vector: the peaks of local runs, less two vectors, rounded up.
RUNTIME_MB = 200


@dataclass(frozen=True)
class Aggregator:
    """Averages part `part` of what `inputs` hold: members of the level before, by number; on the first level clients.

    `weights`: for how many clients each input stands.
    """

    part: int
    inputs: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def clients(self) -> int:
        return sum(self.weights)


Level = tuple[Aggregator, ...]


@dataclass(frozen=True)
class Plan:
    """One aggregation: every client's gradient, (elements,) float32, cut into `parts`; a level begins when the one before has ended."""

    elements: int
    clients: int
    parts: int
    levels: tuple[Level, ...]

    @property
    def gradient_bytes(self) -> int:
        return ELEMENT_BYTES * self.elements

    @property
    def widest(self) -> int:
        """The most aggregators that work side by side."""
        return max(len(level) for level in self.levels)

    @property
    def aggregators(self) -> int:
        return sum(len(level) for level in self.levels)

    def part(self, number: int) -> slice:
        """Where a part lies in the gradient."""
        return chunk(self.elements, self.parts, worker=number)

    def part_elements(self, number: int) -> int:
        return chunk_sizes(self.elements, self.parts)[number]

    def part_bytes(self, number: int) -> int:
        return ELEMENT_BYTES * self.part_elements(number)

    def need_mb(self, step: str) -> int:
        """What a step's function needs, in Lambda's MB, whatever the number of clients: a client's holds one part, an aggregator's two, the
        sum so far and one input.
        """
        return RUNTIME_MB + ceil(HELD_PARTS[step] * self.part_bytes(0) / MIB)

    def too_small(self, memory_mb: Mapping[str, int]) -> list[str]:
        """Why functions of so much memory, by step, cannot do their work, and what could; one line each."""
        size = f"{self.part_bytes(0) / MIB:,.0f} MB"
        return [
            f"{step}: {memory_mb[step]:,} MB do not hold {parts} x {size} beside the runtime's {RUNTIME_MB}; "
            + (
                f"expected at least {need:,}"
                if need <= MOST_MEMORY_MB
                else f"{need:,} would be needed, and a function has at most {MOST_MEMORY_MB:,}: smaller parts alone would fit"
            )
            for step, parts in HELD_PARTS.items()
            if (need := self.need_mb(step)) > memory_mb[step]
        ]

    @property
    def words(self) -> str:
        """`20 clients' gradients of 42.7 MB, by 4 + 1 aggregators`; MB as Lambda counts them."""
        counts = " + ".join(str(len(level)) for level in self.levels)
        return f"{self.clients} clients' gradients of {self.gradient_bytes / MIB:,.1f} MB, by {counts} aggregators"


def sharded(elements: int, clients: int, *, shards: int) -> Plan:
    """One level: aggregator i averages shard i of all clients."""
    everybody = tuple(range(clients))
    level = tuple(Aggregator(shard, everybody, (1,) * clients) for shard in range(min(shards, elements)))
    return Plan(elements, clients, len(level), (level,))


def tree(elements: int, clients: int, *, groups: Sequence[int]) -> Plan:
    """Levels of whole gradients, each with groups of so many of the level before, filled one after another; the last level is one group."""
    levels: list[Level] = []
    below = [1] * clients
    for size in (*groups, clients):
        starts = range(0, len(below), size)
        levels.append(
            tuple(Aggregator(0, tuple(range(n, min(n + size, len(below)))), tuple(below[n : n + size])) for n in starts)
        )
        below = [each.clients for each in levels[-1]]
    return Plan(elements, clients, 1, tuple(levels))
