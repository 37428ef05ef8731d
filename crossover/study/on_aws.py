"""Trials on AWS: each stack is deployed before its first trial and destroyed after its last, and the shared ones with the last of all.

`stacks.json` in the study's folder says before each deployment what is going to be ours, and when it has gone: a command that goes on after
another has died finds what stands by it. Where none goes on, every stack ends by its time to live.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from crossover import running
from crossover.account import standing
from crossover.account.credentials import aws_errors_explained, check_credentials
from crossover.account.deployment.deploying import deploy_previewed, refuse_what_cannot_work
from crossover.account.removal.destroying import delete_experiment, delete_shared
from crossover.account.resources import stacks
from crossover.account.resources.stacks import StandingStack
from crossover.architecture.infrastructure import shared_stacks
from crossover.errors import UserError
from crossover.experiment import Experiment, from_resolved
from crossover.reports import folder
from crossover.reports.folder import RunFolder
from crossover.running.following import OnProgress
from crossover.running.patience import renewing_session
from crossover.study.machines import InThisProcess
from crossover.study.runner import Announce
from crossover.validation import validate

STACKS = "stacks.json"
HOUR_S = 3_600.0
DEPLOYING_S = 1_200.0  # a stack stands so long at most before and after a run


class OnTheAccount(InThisProcess):
    """`out`: the study's folder; `session`: by default the environment's."""

    def __init__(self, out: Path, *, tell: Announce, session: Any = None) -> None:
        self._out, self._tell = out, tell
        self._session = session
        self._ready = set[str]()  # of this command
        # By stack: its ARN, when it stood from and to (unix seconds, to None: it stands), until when it may, seconds of its runs.
        path = out / STACKS
        self._told: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def __enter__(self) -> "OnTheAccount":
        check_credentials()
        self._session = self._session or renewing_session()[0]
        for each in self._told.values():
            self._close_if_gone(each)
        self._write()
        return self

    def _standing(self, experiment: Experiment) -> StandingStack | None:
        return stacks.look(self._session, f"{experiment.project}-{experiment.name}")

    def _close_if_gone(self, known: dict[str, Any]) -> None:
        """What its time to live has ended, or somebody: nobody knows when, at the latest when it had to."""
        if not stands(known):
            return
        there = self._standing(from_resolved(known["experiment"]))
        if there is None or known["id"] not in ("", there.id):
            known["stood"][-1][1] = min(time.time(), known["until"] or time.time())

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """A run of its that is under way is followed to its end."""
        if experiment.name not in self._ready:
            self._deploy(experiment)
        with aws_errors_explained():
            try:
                return running.run_aws(experiment, out, watch)
            finally:
                ran_s = sum(
                    float(json.loads(each.read_bytes())["duration_s"]) for each in out.glob(f"**/{folder.RESULT}")
                )
                self._told[experiment.name]["ran_s"][out.name] = ran_s
                self._write()

    def _deploy(self, experiment: Experiment) -> None:
        """Again where it stands: what is up to date takes seconds, and its time to live begins anew."""
        config = self._out / f"{experiment.name}.yaml"
        lifetime = {**experiment.resolved()["lifetime"], "budget_usd": None}  # the trial's own, when it runs
        fields = {**experiment.resolved(), "recipe": "none", "lifetime": lifetime}
        folder.write_atomically(config, yaml.safe_dump(fields, sort_keys=False).encode())
        deployed = validate(fields)
        with aws_errors_explained():
            self._refuse_anothers(experiment)
            refuse_what_cannot_work(deployed, config=config, tell=self._tell)
            shared = [f"{experiment.project}-{part}" for part in shared_stacks(deployed)]
            there = {name for name in shared if stacks.look(self._session, name)}
            known = self._told.setdefault(experiment.name, {"stood": [], "ran_s": {}, "shared": []})
            known |= {"experiment": deployed.resolved()}
            if not stands(known):
                known["stood"].append([time.time(), None])
                known |= {"id": "", "until": None}
            known["shared"] = sorted({*known["shared"], *(name for name in shared if name not in there)})
            self._write()
            deploy_previewed(config, deployed, ask=False, tell=self._tell)
            if made := self._standing(deployed):
                known |= {"id": made.id, "until": made.expires_at.timestamp() if made.expires_at else None}
                self._write()
        self._ready.add(experiment.name)

    def _refuse_anothers(self, experiment: Experiment) -> None:
        """Raises UserError for a stack of the trial's name that this folder has not made."""
        if known := self._told.get(experiment.name):
            self._close_if_gone(known)
        there = self._standing(experiment)
        if there and not (known and stands(known)):
            raise UserError(
                f"{there.name} stands and is not of this study: nothing is deployed over it, and nothing of it deleted; give the study "
                "another name, or destroy what stands there with its own file"
            )

    def leave(self, experiment: Experiment) -> None:
        """Also one that an earlier command has left standing. Shared stacks go with the last, where this study made them."""
        known = self._told.get(experiment.name)
        if known is None or not stands(known):
            return
        deployed = from_resolved(known["experiment"])
        self._close_if_gone(known)
        if stands(known):
            delete_experiment(self._session, deployed)
            known["stood"][-1][1] = time.time()
        self._ready.discard(experiment.name)
        self._write()
        ours = {name for each in self._told.values() for name in each["shared"]}
        there = {name for part in stacks.SHARED if stacks.look(self._session, name := f"{deployed.project}-{part}")}
        if not any(map(stands, self._told.values())) and there and there <= ours:
            try:
                delete_shared(self._session, deployed)
            except UserError as needed:  # others' experiments stand on them
                self._tell(f"stays: {needed}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What a command leaves standing costs: that is told."""
        for name, each in self._told.items():
            if error is not None and stands(each):
                config = self._out / f"{name}.yaml"
                self._tell(
                    f"{name} stands, until its time to live is over: --resume goes on, crossover destroy {config} ends it"
                )

    def standing_usd(self) -> float:
        """By the hour, for the times in which each stack stood, less what its runs have counted; shared stacks with each of them."""
        found = 0.0
        for each in self._told.values():
            stood_s = sum((ended or time.time()) - began for began, ended in each["stood"]) - sum(
                each["ran_s"].values()
            )
            found += hourly_usd(from_resolved(each["experiment"])) * max(0.0, stood_s) / HOUR_S
        return found

    def beside_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """The run's own stack is billed with the run, but for being deployed and destroyed."""
        others = [each for name, each in self._told.items() if stands(each) and name != experiment.name]
        hour = sum(hourly_usd(from_resolved(each["experiment"])) for each in others)
        return (hour * (seconds + DEPLOYING_S) + hourly_usd(experiment) * DEPLOYING_S) / HOUR_S

    def _write(self) -> None:
        folder.write_atomically(self._out / STACKS, json.dumps(self._told, indent=1).encode() + b"\n")


def stands(known: Mapping[str, Any]) -> bool:
    """Whether a stack of stacks.json has no end yet."""
    return bool(known["stood"]) and known["stood"][-1][1] is None


def hourly_usd(experiment: Experiment) -> float:
    return standing.usd(standing.lines(experiment))
