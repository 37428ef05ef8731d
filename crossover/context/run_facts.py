"""What a run's functions and programs know of it beside their event."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crossover.experiment import Experiment, from_resolved

FACTS = {
    "experiment": {},
    "data": str,
    "parameters": int,
    "buffers": int,
    "created_at": float,
    "money?": {},
    "undecayed?": [[int]],
    "data_manifest": {"minibatches": int, "counts?": [[int]], "validation_chunks?": int},
}


@dataclass(frozen=True)
class RunFacts:
    """What stands in `runs/<id>/experiment.json`, read once per process and run."""

    experiment: Experiment
    data: str  # fingerprint of the staged data
    manifest: Mapping[str, Any]  # of the staged data
    parameters: int  # P
    buffers: int  # B
    created_at: float
    constants: bool = False  # whether what no vector holds of the model lies beside these, at `Keys.constants`
    undecayed: tuple[tuple[int, int], ...] = ()  # elements of the model that `weight_decay` leaves alone
    money: Mapping[str, Any] = field(
        default_factory=dict
    )  # what a run with a budget is judged by: crossover/costs/spending.py

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "RunFacts":
        """`plain`: as crossover/running/preparing.py writes it."""
        names = ("data", "parameters", "buffers", "created_at")
        return cls(
            experiment=from_resolved(plain["experiment"]),
            manifest=plain["data_manifest"],
            money=plain.get("money", {}),
            constants=plain.get("constants", False),
            undecayed=tuple((first, end) for first, end in plain.get("undecayed", ())),
            **{name: plain[name] for name in names},
        )
