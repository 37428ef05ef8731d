"""`crossover verify-aws`: deploy a small experiment, train once, look at what AWS did, destroy everything, write down what was shown."""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from crossover.cli.arguments import Debug, Yes
from crossover.cli.aws import evidence, proofs, stacks, unproven
from crossover.cli.aws.evidence import Evidence
from crossover.cli.aws.proofs import Observed
from crossover.cli.credentials import aws_errors_explained, check_credentials
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.validation import check_deployment, load

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "config" / "aws" / "proof.yaml"
FILE = "verified-aws.json"
EXPIRY_WAIT_S = 1_800.0


def verify_aws(
    config: Annotated[Path, typer.Argument(help="What to deploy; another config covers other facts.")] = PROOF,
    out: Annotated[Path, typer.Option(help="Folder for the run and what the account showed.")] = Path(
        "results/verify-aws"
    ),
    yes: Yes = False,
    debug: Debug = False,
) -> None:
    """Check on a real account what is unproven (docs/aws.md): deploy, train, look, destroy; asks first, with the cost."""
    experiment = load(config)
    check_deployment(experiment)
    check_credentials()
    facts = unproven.read()
    print(cost_before(experiment), flush=True)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Deploy, look and destroy?")):
        raise UserError("verify-aws: nothing was deployed; add --yes to go on unasked")
    import boto3

    session = boto3.Session()
    with aws_errors_explained():
        refuse(session, config, experiment)
        seen = Evidence(session=session, experiment=experiment, on_aws=evidence.is_aws(session))
        seen.shared_stay = config != PROOF and stacks.look(session, f"{experiment.project}-network") is not None
    observed: dict[str, Observed] = {}
    failure: BaseException | None = None
    with aws_errors_explained(), _stopped_in_order():
        try:
            deploy_and_look(seen, config, out, observed)
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # whatever happened, what stands is destroyed
            failure = error
            print(f"stopped: {str(error) or type(error).__name__}; destroying what was deployed", flush=True)
        try:
            destroy_and_look(seen, config, observed)
        finally:
            found = {fact.id: observed.get(fact.id) or _unseen(fact.id, failure) for fact in facts}
            path = write(out, seen, facts, found, failure=failure)
            Console(highlight=False).print(table(seen, found))
            print(f"{path}  [{seen.label}]: {summary(found)}", flush=True)
    if failure:
        raise failure


def refuse(session: Any, config: Path, experiment: Experiment) -> None:
    """Before anything costs: what a deployment would refuse, and an experiment that stands, because it would be destroyed.

    What an interrupted verification left of its own experiment is taken up. Raises UserError.
    """
    from crossover.cli import deployment

    name = f"{experiment.project}-{experiment.name}"
    if config != PROOF and stacks.look(session, name) is not None:
        raise UserError(
            f"{name}: stands already, and verify-aws destroys what it looks at; crossover destroy {config} first, or leave CONFIG out"
        )
    deployment.refuse_what_cannot_work(experiment, config=config, tell=_tell)


def cost_before(experiment: Experiment) -> str:
    """One line: dollars and minutes of the whole, before anything is done."""
    from crossover.cli import deployment
    from crossover.cli.aws import standing

    minutes = sum(deployment.EXPECTED_MINUTES.values())
    hours = (minutes + 32) / 60  # the run, and a deletion that waits for network interfaces
    hourly = standing.usd(standing.lines(experiment, running=True))
    return (
        f"verify-aws: {experiment.project}-{experiment.name} and its network and broker, about {minutes + 5} minutes until it has run, "
        f"up to {hours * 60:.0f} until all is gone; about ${hourly * hours + 0.02:.2f} (${hourly:.2f} an hour), projected"
    )


def deploy_and_look(seen: Evidence, config: Path, out: Path, observed: dict[str, Observed]) -> None:
    """Deployment, one run, the checks that need both standing; at last the expiry's machine is told to delete the experiment."""
    from crossover import running
    from crossover.cli import deployment
    from crossover.cli.aws import ownership, sweeping
    from crossover.cli.progress import show_progress

    experiment, session = seen.experiment, seen.session
    shared = {f"{experiment.project}-{part}" for part in ("network", "broker")}
    seen.alone = not set(ownership.of(session, experiment.project, experiment.name).others) - shared
    with _timed(seen, "deployed"):
        deployment.deploy_previewed(config, experiment, ask=False, tell=_tell)
    with _timed(seen, "run"), show_progress(experiment, where="aws", out=out) as on_progress:
        seen.run = running.run_aws(experiment, out, on_progress)
    for id, check in proofs.STANDING.items():
        observed[id] = check(seen)
        _tell(f"{observed[id].verdict:<11}  {id}: {observed[id].seen}")
    if not seen.alone:
        return
    with _timed(seen, "experiment deleted"):
        if tell_expiry(seen):
            seen.expiry_state = sweeping.wait_for_stack(session, seen.stack, poll_s=2.0)


def tell_expiry(seen: Evidence) -> bool:
    """Start the expiry's machine with a moment at which this experiment is over; whether it ended. The schedule does the same later."""
    from crossover.cli.aws import stacks

    stack, arn = stacks.look(seen.session, seen.stack), seen.state_machine(f"{seen.experiment.project}-expiry")
    if stack is None or stack.expires_at is None or arn is None:
        return False
    _tell("telling the expiry's machine that the experiment's time is over")
    states, ends = seen.client("stepfunctions"), time.monotonic() + EXPIRY_WAIT_S
    moment = stack.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    started = states.start_execution(stateMachineArn=arn, input=json.dumps({"now": moment}))
    while states.describe_execution(executionArn=started["executionArn"])["status"] == "RUNNING":
        if time.monotonic() > ends:
            return False
        time.sleep(1.0)
    return True


def destroy_and_look(seen: Evidence, config: Path, observed: dict[str, Observed]) -> None:
    """Everything goes, the shared stacks too where no other experiment of the project stands. Raises CrossoverError for what is left."""
    from crossover.cli import destruction
    from crossover.cli.aws import ownership

    experiment, session = seen.experiment, seen.session
    try:
        with _timed(seen, "destroyed"):
            destruction.delete_experiment(session, experiment)
        seen.interfaces_left = seen.function_interfaces()
        others = set(ownership.of(session, experiment.project, experiment.name).others)
        alone = not others - {f"{experiment.project}-{part}" for part in stacks.SHARED}
        if alone and not seen.shared_stay:
            with _timed(seen, "network deleted"):
                destruction.delete_shared(session, experiment)
            seen.network_deleted = True
        whole = alone and not seen.shared_stay
        _tell(destruction.verified(session, experiment.project, None if whole else experiment.name))
    except (KeyboardInterrupt, SystemExit):
        raise UserError(
            f"interrupted while destroying; crossover destroy {config} --shared --verify goes on where it stopped"
        ) from None
    finally:
        for id, check in proofs.AFTERWARDS.items():
            observed[id] = check(seen)


def _unseen(id: str, failure: BaseException | None) -> Observed:
    if id in proofs.NOT_COVERED:
        return proofs.uncovered(proofs.NOT_COVERED[id])
    return proofs.uncovered("stopped before it was looked at" if failure else "no check looks at it")


def write(
    out: Path,
    seen: Evidence,
    facts: tuple[unproven.Fact, ...],
    found: Mapping[str, Observed],
    *,
    failure: BaseException | None,
) -> Path:
    """verified-aws.json, whole or not at all. `label`: measured-aws only where a real account answered."""
    from crossover.reports.folder import write_atomically

    document = {
        "label": seen.label,
        "verified_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "region": seen.client("sts").meta.region_name,
        "experiment": seen.experiment.resolved(),
        "failure": None if failure is None else str(failure) or type(failure).__name__,
        "minutes": {phase: round(minutes, 2) for phase, minutes in seen.minutes.items()},
        "records": "metrics.jsonl" if seen.run else None,  # beside this file: what projections are calibrated with
        "facts": [
            {
                "id": fact.id,
                "what": fact.what,
                "label": seen.label,
                "verdict": found[fact.id].verdict,
                "seen": found[fact.id].seen,
                "value": found[fact.id].value,
                "unit": found[fact.id].unit,
            }
            for fact in facts
        ],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FILE, json.dumps(document, indent=1).encode() + b"\n")
    return out / FILE


STYLES = {"proven": "green", "refuted": "bold red", "not covered": "dim"}


def table(seen: Evidence, found: Mapping[str, Observed]) -> Table:
    shown = Table("verdict", "fact of docs/aws.md", "seen", title=f"What was shown  [{seen.label}]".replace("[", "\\["))
    for id, each in found.items():
        shown.add_row(each.verdict, id, each.seen, style=STYLES[each.verdict])
    return shown


def summary(found: Mapping[str, Observed]) -> str:
    counts = {verdict: sum(1 for each in found.values() if each.verdict == verdict) for verdict in STYLES}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


@contextmanager
def _timed(seen: Evidence, phase: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        seen.minutes[phase] = (time.monotonic() - started) / 60


@contextmanager
def _stopped_in_order() -> Iterator[None]:
    """A terminal that is closed, or a `kill`, ends it as Ctrl-C does: by destroying first."""
    from crossover.local.processes import ending_on_signals

    with ending_on_signals():
        yield


def _tell(line: str) -> None:
    print(line, flush=True)
