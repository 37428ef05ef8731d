"""`crossover verify-aws`: try on a real account, step by step, what is unproven; destroy everything, write down what was shown."""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from crossover.account import standing, tell
from crossover.account.credentials import aws_errors_explained, check_credentials
from crossover.account.deployment import deploying
from crossover.account.deployment.minutes import expected_minutes
from crossover.account.proofs import evidence, fact_checks, unproven, verified
from crossover.account.proofs.afterwards import AFTERWARDS
from crossover.account.proofs.observed import Observed
from crossover.account.proofs.steps import DELETION_MIN, SMALLEST, STEPS, ProofWalk, walk_through
from crossover.account.removal import destroying
from crossover.account.resources import ownership, stacks
from crossover.cli.arguments import Debug, TakeOver, Yes
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
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Check on a real account what is unproven (docs/aws.md): deploy, train, look, destroy; asks first, with the cost."""
    experiment = load(config)
    check_deployment(experiment)
    check_credentials()
    facts = unproven.read()
    import boto3

    from crossover.local.processes import ending_on_signals

    session, whole = boto3.Session(), config == PROOF
    walk = ProofWalk(
        session=session,
        experiment=experiment,
        on_aws=evidence.is_aws(session),
        config=config,
        out=out,
        whole=whole,
        train=_train,
    )
    print(cost_before(walk), flush=True)
    if not yes and not (sys.stdin.isatty() and typer.confirm("Deploy, look and destroy?")):
        raise UserError("verify-aws: nothing was deployed; add --yes to go on unasked")
    with aws_errors_explained():
        refuse(walk, take_over=take_over)
        walk.shared_stay = not whole and stacks.look(session, f"{experiment.project}-network") is not None
    failure: BaseException | None = None
    # A closed terminal, or a `kill`, ends it as Ctrl-C does: by destroying first.
    with aws_errors_explained(), ending_on_signals():
        try:
            walk.alone, walk.refusal = not others_stand(walk), partial(refusal, take_over=take_over)
            walk_through(walk, STEPS)
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # whatever happened, what stands is destroyed
            failure = error
            print(f"stopped: {str(error) or type(error).__name__}; destroying what was deployed", flush=True)
        try:
            destroy_and_look(walk)
        finally:
            unseen = {
                id: Observed("not covered", fact_checks.NOT_COVERED.get(id, "stopped before it was looked at"))
                for id in facts
            }
            found = unseen | walk.observed
            path = verified.write(walk, facts, found, failure=failure)
            Console(highlight=False).print(verified.table(walk, found))
            print(f"{path}  [{walk.label}]: {verified.summary(found)}", flush=True)
            print(cost_after(walk), flush=True)
    if failure:
        raise failure


def refuse(walk: ProofWalk, *, take_over: bool) -> None:
    """Before anything costs: what a deployment would refuse, and an experiment that stands, because it would be destroyed.

    What an interrupted verification left of its own experiment is taken up. Raises UserError.
    """
    if not walk.whole and stacks.look(walk.session, walk.stack) is not None:
        raise UserError(
            f"{walk.stack}: stands already, and verify-aws destroys what it looks at; crossover destroy {walk.config} first, "
            "or leave CONFIG out"
        )
    # Of the project's own proof the smallest has to fit; what else does not is left out, and told.
    experiment, config = (load(SMALLEST), SMALLEST) if walk.whole else (walk.experiment, walk.config)
    deploying.refuse_what_cannot_work(experiment, config=config, tell=tell, take_over=take_over, command="verify-aws")


def refusal(experiment: Experiment, *, take_over: bool) -> str:
    """Why the account does not take the experiment now; "" where it does."""
    try:
        deploying.refuse_what_cannot_work(
            experiment, config=PROOF, tell=lambda line: None, take_over=take_over, command="verify-aws"
        )
    except UserError as error:
        return f"not proven here: {error}"
    return ""


def cost_after(walk: ProofWalk) -> str:
    """What the steps that were taken were predicted to cost, and what they came to by the minutes that they lasted."""
    taken = [step for step in STEPS if step.name in walk.minutes]
    predicted, project = sum(step.cost(walk.experiment) for step in taken), walk.experiment.project
    return (
        f"predicted ${predicted:.2f}, ${walk.spent_usd:.2f} by the minutes that the steps lasted, at the prices of config/pricing.yaml. "
        "What is billed shows in a day, if the tag project is activated: aws ce get-cost-and-usage --granularity DAILY --metrics "
        f"UnblendedCost --time-period Start=DAY,End=NEXT_DAY --filter "
        f'\'{{"Tags": {{"Key": "project", "Values": ["{project}"]}}}}\''
    )


def cost_before(walk: ProofWalk) -> str:
    """One line: dollars and minutes of the whole, before anything is done. Each step says its own again before it begins."""
    experiment, steps = walk.experiment, [step for step in STEPS if not step.left_out(walk)]
    hourly = standing.usd(standing.lines(experiment, running=True))
    minutes, usd = sum(step.minutes for step in steps), sum(step.cost(experiment) for step in steps)
    first = sum(expected_minutes(experiment).values()) + 5
    return (
        f"verify-aws: {walk.stack} and all that it needs, in steps; about {first} minutes until it has "
        f"run, up to {minutes + DELETION_MIN:.0f} until all is gone; about ${usd + hourly * DELETION_MIN / 60:.2f} "
        f"(at most ${hourly:.2f} an hour), projected"
    )


def _train(experiment: Experiment, out: Path) -> RunFolder:
    from crossover.running import run_aws

    with show_progress(experiment, where="aws", out=out) as on_progress:
        return run_aws(experiment, out, on_progress)


def others_stand(walk: ProofWalk) -> bool:
    """Whether the project has experiments beside this one that lean on the shared stacks: none that stands alone, as the smallest."""
    project = walk.experiment.project
    standing = {each.name for each in ownership.of(walk.session, project).standing}
    return bool(standing - {walk.stack, *(f"{project}-{kind}" for kind in stacks.SHARED)})


def destroy_and_look(walk: ProofWalk) -> None:
    """Everything goes, the shared stacks too where no other experiment of the project stands. Raises CrossoverError for what is left."""
    experiment, session = walk.experiment, walk.session
    try:
        smallest = load(SMALLEST)
        if walk.whole and stacks.look(session, f"{smallest.project}-{smallest.name}"):
            destroying.delete_experiment(session, smallest)
        with walk.timed("destroyed"):
            destroying.delete_experiment(session, experiment)
        if walk.interfaces_left is None:
            walk.interfaces_left = walk.function_interfaces()
        shared = not walk.shared_stay and not others_stand(walk)
        if shared:  # also where the schedule took the stacks: it leaves what a stack leaves
            with nullcontext() if walk.network_deleted else walk.timed("network deleted"):
                destroying.delete_shared(session, experiment)
            walk.network_deleted = True
        tell(destroying.verified(session, experiment.project, None if shared else experiment.name))
    except (KeyboardInterrupt, SystemExit):
        raise UserError(
            f"interrupted while destroying; crossover destroy {walk.config} --shared --verify goes on where it stopped"
        ) from None
    finally:
        walk.observed |= {id: check(walk) for id, check in AFTERWARDS.items()}
