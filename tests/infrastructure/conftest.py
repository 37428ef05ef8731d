"""Assemblies, synthesized once per session: a CDK App takes a second."""

import functools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App

from cdk import nag
from crossover import validation
from crossover.experiment import Experiment
from stacks.synthesis import compose, feature_flags, synthesize
from tests.infrastructure.assemblies import Assembly
from tests.infrastructure.cases import Case

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

Synthesize = Callable[..., Assembly]
Assembled = Callable[[str], Assembly]  # by the name of a case


@pytest.fixture(scope="session")
def spirt() -> Experiment:
    """Return the experiment of config/spirt.yaml."""
    return validation.load(ROOT / "config" / "spirt.yaml")


@pytest.fixture(scope="session")
def synth(spirt: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Synthesize:
    """Return a function that synthesizes config/spirt.yaml with fields replaced, as `synth(layers=..., now=..., field=value)`. Layers are
    placeholders unless given.
    """
    nowhere = tmp_path_factory.mktemp("no-layers")

    def make(*, layers: Path = nowhere, now: datetime = NOW, **fields: Any) -> Assembly:
        """Synthesize the SPIRT experiment with changed `fields`, and return its assembly."""
        experiment = replace(spirt, **fields)
        folder = synthesize(experiment, tmp_path_factory.mktemp("assembly"), layers=layers, now=now)
        return Assembly(folder, f"{experiment.project}-{experiment.name}")

    return make


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> Assembled:
    """Return a function that synthesizes a case once, such as `assembled("all-reduce over s3")`, and checks that cdk-nag has no finding."""

    @functools.cache
    def make(name: str) -> Assembly:
        """Synthesize the case with that name, checked by cdk-nag, and return its assembly."""
        experiment, nowhere = Case.of(name).experiment, tmp_path_factory.mktemp("no-layers")
        out = tmp_path_factory.mktemp("assembly")
        app = App(outdir=str(out), context=feature_flags(), builtin_cloud_formation_validation=False)
        compose(app, experiment, now=NOW, layers=nowhere)
        nag.add_checks(app)
        app.synth()  # raises where cdk-nag finds something
        return Assembly(out, f"{experiment.project}-{experiment.name}")

    return make


@pytest.fixture(scope="session")
def assembly(synth: Synthesize) -> Assembly:
    """Return the assembly of config/spirt.yaml."""
    return synth()


@pytest.fixture(scope="session")
def large(synth: Synthesize, spirt: Experiment) -> Assembly:
    """Return the largest assembly: 64 workers, more minibatches than an inline Map takes, SnapStart."""
    return synth(
        name="large",
        workers=64,
        training=replace(spirt.training, batch_size=8),
        data=replace(spirt.data, dataset="cifar10"),
        functions=replace(spirt.functions, snap_start=True),
    )


@pytest.fixture(scope="session")
def fetching(synth: Synthesize, spirt: Experiment) -> Assembly:
    """Return an assembly that fetches, computes and stores instead of computing in the database, with a bucket per worker."""
    return synth(
        name="fetching",
        database=replace(spirt.database, compute="fetch"),
        storage=replace(spirt.storage, bucket_per_worker=True),
    )
