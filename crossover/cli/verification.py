"""`crossover verify-aws`: try on a real account, step by step, what is unproven; destroy everything, write down what was shown."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from crossover.account import tell
from crossover.account.credentials import aws_errors_explained, check_credentials
from crossover.account.proofs import evidence, fact_checks, unproven, verified
from crossover.account.proofs.evidence import Evidence
from crossover.account.proofs.observed import Observed, uncovered
from crossover.account.resources import stacks
from crossover.cli.arguments import Debug, Yes
from crossover.cli.progress import show_progress
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.validation import check_deployment, load

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "config" / "aws" / "proof.yaml"


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
    print(cost_before(experiment, whole=config == PROOF), flush=True)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Deploy, look and destroy?")):
        raise UserError("verify-aws: nothing was deployed; add --yes to go on unasked")
    import boto3

    from crossover.local.processes import ending_on_signals

    session = boto3.Session()
    with aws_errors_explained():
        refuse(session, config, experiment)
        seen = Evidence(session=session, experiment=experiment, on_aws=evidence.is_aws(session))
        seen.shared_stay = config != PROOF and stacks.look(session, f"{experiment.project}-network") is not None
    observed: dict[str, Observed] = {}
    failure: BaseException | None = None
    with (
        aws_errors_explained(),
        ending_on_signals(),
    ):  # a closed terminal, or a `kill`, ends it as Ctrl-C does: by destroying first
        try:
            deploy_and_look(seen, config, out, observed)
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # whatever happened, what stands is destroyed
            failure = error
            print(f"stopped: {str(error) or type(error).__name__}; destroying what was deployed", flush=True)
        try:
            destroy_and_look(seen, config, observed)
        finally:
            found = {fact.id: observed.get(fact.id) or _unseen(fact.id, failure) for fact in facts}
            path = verified.write(out, seen, facts, found, failure=failure)
            Console(highlight=False).print(verified.table(seen, found))
            print(f"{path}  [{seen.label}]: {verified.summary(found)}", flush=True)
    if failure:
        raise failure


def refuse(session: Any, config: Path, experiment: Experiment) -> None:
    """Before anything costs: what a deployment would refuse, and an experiment that stands, because it would be destroyed.

    What an interrupted verification left of its own experiment is taken up. Raises UserError.
    """
    from crossover.account.deployment import deploying

    name = f"{experiment.project}-{experiment.name}"
    if config != PROOF and stacks.look(session, name) is not None:
        raise UserError(
            f"{name}: stands already, and verify-aws destroys what it looks at; crossover destroy {config} first, or leave CONFIG out"
        )
    deploying.refuse_what_cannot_work(experiment, config=config, tell=tell)


def cost_before(experiment: Experiment, *, whole: bool) -> str:
    """One line: dollars and minutes of the whole, before anything is done. Each step says its own again before it begins."""
    from crossover.account import standing
    from crossover.account.deployment import deploying
    from crossover.account.proofs.steps import planned

    hourly = standing.usd(standing.lines(experiment, running=True))
    deletion_min = 32  # it may wait for network interfaces
    steps = planned(experiment, whole=whole)
    minutes, usd = sum(step.minutes for step in steps), sum(step.cost(experiment) for step in steps)
    first = sum(deploying.expected_minutes(experiment).values()) + 5
    return (
        f"verify-aws: {experiment.project}-{experiment.name} and all that it needs, in steps; about {first} minutes until it has "
        f"run, up to {minutes + deletion_min:.0f} until all is gone; about ${usd + hourly * deletion_min / 60:.2f} "
        f"(at most ${hourly:.2f} an hour), projected"
    )


def deploy_and_look(seen: Evidence, config: Path, out: Path, observed: dict[str, Observed]) -> None:
    """Step after step (`proofs.steps`), from the cheapest on; the first that fails ends it."""
    from crossover.account.proofs.step_walk import Walk, walk_through
    from crossover.account.proofs.steps import STEPS
    from crossover.account.resources import ownership

    experiment = seen.experiment
    shared = {f"{experiment.project}-{part}" for part in ("network", "broker")}
    seen.alone = not set(ownership.of(seen.session, experiment.project, experiment.name).others) - shared
    walk_through(
        Walk(seen=seen, config=config, out=out, whole=config == PROOF, observed=observed, tell=tell, train=_train),
        STEPS,
    )


def _train(experiment: Experiment, out: Path) -> RunFolder:
    from crossover.running import run_aws

    with show_progress(experiment, where="aws", out=out) as on_progress:
        return run_aws(experiment, out, on_progress)


def destroy_and_look(seen: Evidence, config: Path, observed: dict[str, Observed]) -> None:
    """Everything goes, the shared stacks too where no other experiment of the project stands. Raises CrossoverError for what is left."""
    from crossover.account.proofs.step_walk import timed
    from crossover.account.proofs.steps import SMALLEST
    from crossover.account.removal import destroying
    from crossover.account.resources import ownership

    experiment, session = seen.experiment, seen.session
    try:
        smallest = load(SMALLEST)
        if config == PROOF and stacks.look(session, f"{smallest.project}-{smallest.name}"):
            destroying.delete_experiment(session, smallest)
        with timed(seen, "destroyed"):
            destroying.delete_experiment(session, experiment)
        seen.interfaces_left = seen.function_interfaces()
        others = set(ownership.of(session, experiment.project, experiment.name).others)
        alone = not others - {f"{experiment.project}-{part}" for part in stacks.SHARED}
        if alone and not seen.shared_stay:
            with timed(seen, "network deleted"):
                destroying.delete_shared(session, experiment)
            seen.network_deleted = True
        whole = alone and not seen.shared_stay
        tell(destroying.verified(session, experiment.project, None if whole else experiment.name))
    except (KeyboardInterrupt, SystemExit):
        raise UserError(
            f"interrupted while destroying; crossover destroy {config} --shared --verify goes on where it stopped"
        ) from None
    finally:
        for id, check in fact_checks.AFTERWARDS.items():
            observed[id] = check(seen)


def _unseen(id: str, failure: BaseException | None) -> Observed:
    if id in fact_checks.NOT_COVERED:
        return uncovered(fact_checks.NOT_COVERED[id])
    return uncovered("stopped before it was looked at" if failure else "no check looks at it")
