"""What an experiment's stack published about itself, and whether a run fits it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crossover.architecture import infrastructure as surroundings
from crossover.asl.limits import ARRAY_LIMIT
from crossover.clients import aws_calls
from crossover.context.run_facts import RunFacts
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.running.preparing import Prepared
from crossover.training.calendar import calendar
from crossover.validation.machines import too_many


@dataclass(frozen=True)
class Deployed:
    """What the experiment's stack published, found from project and experiment alone."""

    bucket: str
    run_machine: str  # "" where programs run, which `fleet` then names
    fleet: str
    data_buckets: tuple[str, ...]
    shape: Mapping[str, Any]

    def check(self, prepared: Prepared) -> None:
        """Map modes, database hosts and layers were fixed when the stack was made: what does not fit it is refused before anything runs."""
        experiment, most = prepared.experiment, self.shape["minibatches"]
        asked = {
            "architecture": experiment.architecture,
            "compute": experiment.database.compute,
            "channel": experiment.storage.channel,
        }
        wrong = [
            f"{name}: {asked[name]!r}, deployed {self.shape[name]!r}"
            for name in asked
            if asked[name] != self.shape[name]
        ]
        if experiment.workers > self.shape["workers"]:
            wrong.append(f"workers: {experiment.workers}, deployed for {self.shape['workers']}")
        side_by_side = calendar(RunFacts.from_json(prepared.facts)).side_by_side(0)
        if most is not None and side_by_side > most:
            wrong.append(f"minibatches side by side: {side_by_side}, deployed for {most}")
        if side_by_side > ARRAY_LIMIT and surroundings.side_by_side(prepared.architecture):
            raise ConfigError(too_many(experiment, side_by_side))
        if wrong:
            raise ConfigError("; ".join(wrong) + "; crossover deploy with the same file brings it up to date")

    @classmethod
    def of(cls, experiment: Experiment, session: Any) -> "Deployed":
        found = aws_calls.parameters(session, f"/crossover/{experiment.project}/{experiment.name}/")
        if "bucket" not in found or not {"run_machine", "fleet"} & found.keys():
            raise ConfigError(
                f"{experiment.name}: not deployed in project {experiment.project}; "
                "crossover deploy with the same file does that"
            )
        buckets = tuple(found.get("data_buckets", "").split())
        return cls(
            found["bucket"], found.get("run_machine", ""), found.get("fleet", ""), buckets, json.loads(found["shape"])
        )
