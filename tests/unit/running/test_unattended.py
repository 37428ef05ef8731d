"""A run that is under way when its command is called again: taken up where it is the one that is meant, refused where not."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from crossover.errors import UserError
from crossover.experiment import Experiment, Lifetime, Training
from crossover.running import monitor
from crossover.running.monitor import attach_to_run
from crossover.stores.documents import seal
from crossover.stores.keys import Keys
from crossover.workflow.architecture import load

SPIRT = Experiment(name="spirt", architecture="spirt")
RUN = "20270101-100000-abcdef"


def objects(experiment: Experiment) -> Any:
    """Return a store that holds the experiment document of RUN, which was started with `experiment`."""
    settings = load(experiment.architecture).resolve(experiment).to_plain()
    stored = {Keys(RUN).experiment: seal({"experiment": settings, "run": RUN})}
    return SimpleNamespace(get=stored.__getitem__)


def test_the_same_settings_are_taken_up_whatever_they_may_cost() -> None:
    """`attach_to_run` takes up a run whose settings differ only in the budget, with the settings as they were resolved at its start."""
    found = attach_to_run(RUN, replace(SPIRT, lifetime=Lifetime(budget_usd=1.0)), objects=objects(SPIRT), resume="")
    assert (found.run, found.facts["run"], found.architecture.name) == (RUN, RUN, "spirt")
    assert found.experiment.exchange.every == "epoch"  # as it was resolved when it was started


def test_other_settings_are_refused_by_name() -> None:
    """A run under way with other settings raises UserError that names them with both values; `--resume` with its id takes it up with its
    own.
    """
    other = replace(SPIRT, training=Training(epochs=3))
    with pytest.raises(UserError, match=rf"run {RUN} is under way with other settings: training\.epochs: 3, there 20"):
        attach_to_run(RUN, other, objects=objects(SPIRT), resume="")
    followed = attach_to_run(RUN, other, objects=objects(SPIRT), resume=RUN)
    assert followed.experiment.training.epochs == 20


def test_another_run_is_not_resumed_beside_it() -> None:
    """Resuming another run than the one under way raises UserError."""
    with pytest.raises(UserError, match=rf"--resume older: run {RUN} is under way"):
        attach_to_run(RUN, SPIRT, objects=objects(SPIRT), resume="older")


class Session:
    """A boto3 session of a deployed experiment, and its clients. `facts`: its parameters; `executions`: names of those that run;
    `desired`: capacity of its fleet.
    """

    def __init__(self, facts: dict[str, str], *, executions: tuple[str, ...] = (), desired: int = 0) -> None:
        """Keep what the calls answer."""
        self.facts, self.names, self.desired = facts, executions, desired

    class exceptions:
        """The client's exceptions, found as in boto3."""

        class NoSuchKey(Exception):
            """Error for an object that does not exist."""

    def client(self, service: str) -> Any:
        """Return this object as the client of any service."""
        return self

    def get_paginator(self, name: str) -> Any:
        """Return a paginator of one page with the experiment's parameters."""
        listed = [{"Name": f"/crossover/crossover/spirt/{key}", "Value": value} for key, value in self.facts.items()]
        return SimpleNamespace(paginate=lambda **arguments: [{"Parameters": listed}])

    def list_executions(self, **arguments: Any) -> Any:
        """Return the running executions."""
        assert arguments["statusFilter"] == "RUNNING"
        return {"executions": [{"name": name, "executionArn": f"arn:{name}"} for name in self.names]}

    def describe_auto_scaling_groups(self, **arguments: Any) -> Any:
        """Return one group with the fleet's capacity."""
        return {"AutoScalingGroups": [{"DesiredCapacity": self.desired}]}

    def get_object(self, **arguments: Any) -> Any:
        """Return the document of the fleet's current run. Raises NoSuchKey if the fleet's capacity is 1, for instances without a run."""
        if self.desired == 1:
            raise self.exceptions.NoSuchKey
        return {"Body": SimpleNamespace(read=lambda: json.dumps({"run": RUN, "members": 4}).encode())}


FACTS = {"bucket": "b", "shape": "{}"}


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        (Session({**FACTS, "run_machine": "m"}), None),
        (Session({**FACTS, "run_machine": "m"}, executions=(f"{RUN}-0",)), monitor.RunUnderWay(RUN, f"arn:{RUN}-0")),
        (Session({**FACTS, "fleet": "f"}), None),
        (Session({**FACTS, "fleet": "f"}, desired=1), None),  # instances, but nobody told them of a run
        (Session({**FACTS, "fleet": "f"}, desired=4), monitor.RunUnderWay(RUN, "")),
    ],
)
def test_what_is_under_way_is_asked_of_the_machine_or_the_fleet(session: Session, expected: Any) -> None:
    """`find_run_under_way` returns the run of the state machine's execution, or of the fleet's instances, else None."""
    assert monitor.find_run_under_way(SPIRT, session) == expected
