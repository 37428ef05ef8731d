"""The templates of every configuration, for the judges of templates."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from crossover.experiment import Experiment
from stacks.synthesis import synthesize
from tests.infrastructure.assemblies import Assembly

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def assemblies(experiments: Mapping[str, Experiment], folder: Path) -> Iterator[tuple[str, Assembly]]:
    """Synthesize the experiments into `folder`, with placeholder layers; yield (name, assembly)."""
    for name, experiment in experiments.items():
        out = synthesize(experiment, folder / name.replace(" ", "-"), now=NOW, layers=folder / "no-layers")
        yield name, Assembly(out, f"{experiment.project}-{experiment.name}")


def different(experiments: Mapping[str, Experiment], folder: Path) -> dict[str, Path]:
    """Write the templates of these experiments to files in `folder`, equal ones only once, and return the paths by "EXPERIMENT: STACK"."""
    found: dict[str, tuple[str, Path]] = {}
    judged = folder / "templates"
    judged.mkdir()
    for name, assembly in assemblies(experiments, folder / "assemblies"):
        for stack, template in assembly.templates.items():
            path = judged / f"{name.replace(' ', '-')}.{stack}.json"
            found.setdefault(json.dumps(template), (f"{name}: {stack}", path))
    for text, (_, path) in found.items():
        path.write_text(text)
    return dict(found.values())
