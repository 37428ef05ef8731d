"""Try on a real account, step by step, what is unproven; destroy everything, and write down what was shown."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from crossover.cli.arguments import Debug, TakeOver, show_progress
from crossover.cli.main import run_command
from crossover.errors import UserError, print_line
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running import account, deploying, removal, running_costs
from crossover.running.account import check_credentials, explain_aws_errors
from crossover.running.preflight import expected_minutes
from crossover.stores.deployed_clients import is_aws
from crossover.validation import check_deployment, load
from tests.aws import billing, fact_checks, unproven, verified
from tests.aws.afterwards import AFTERWARDS
from tests.aws.observed import Observed
from tests.aws.steps import DELETION_MIN, SMALLEST, STEPS, ProofWalk, walk_through

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "config" / "aws" / "proof.yaml"
NAME = "python -m tests.aws"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def main(arguments: Sequence[str]) -> None:
    """Run the command line `arguments` and end as `crossover` does: one message per failure, and its exit status."""
    run_command(app, arguments, name=NAME)


@app.command()
def verify(
    config: Annotated[Path, typer.Argument(help="What to deploy; another config covers other facts.")] = PROOF,
    out: Annotated[Path, typer.Option(help="Folder for the run and what the account showed.")] = Path(
        "results/test-aws"
    ),
    most_usd: Annotated[
        float | None, typer.Option(min=0, help="A ceiling in dollars, instead of being asked before each step.")
    ] = None,
    billed: Annotated[
        bool,
        typer.Option("--billed", help="Deploy nothing: add to an earlier walk what AWS billed. The call costs $0.01."),
    ] = False,
    take_over: TakeOver = False,
    debug: Debug = False,
) -> None:
    """Check on a real account what is unproven (docs/aws.md): deploy, train, look, destroy; asks first, with the cost."""
    if billed:
        check_credentials()
        with explain_aws_errors():
            print(billing.add_billed(out / verified.FILE), flush=True)
        return
    experiment = load(config)
    check_deployment(experiment)
    check_credentials()
    facts = unproven.read()
    import boto3

    from crossover.local.servers import exit_on_signals

    session, whole = boto3.Session(), config == PROOF
    walk = ProofWalk(
        session=session,
        experiment=experiment,
        on_aws=is_aws(session),
        config=config,
        out=out,
        whole=whole,
        train=_train,
        ceiling_usd=most_usd,
        confirm=typer.confirm,
    )
    print(cost_before(walk), flush=True)
    refuse_price(walk)
    with explain_aws_errors():
        refuse(walk, take_over=take_over)
        walk.shared_stay = not whole and account.find_stack(session, f"{experiment.project}-network") is not None
    failure: BaseException | None = None
    # A closed terminal, or a `kill`, ends it as Ctrl-C does: by destroying first.
    with explain_aws_errors(), exit_on_signals():
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
            path = verified.write(walk, facts, found, usd=dollars(walk), failure=failure)
            Console(highlight=False).print(verified.table(walk, found))
            print(f"{path}  [{walk.label}]: {verified.summary(found)}", flush=True)
            print(cost_after(walk), flush=True)
    if failure:
        raise failure


def refuse_price(walk: ProofWalk) -> None:
    """Refuse a walk that is above the ceiling, or that has neither a ceiling nor anybody to ask. Raises UserError."""
    if walk.ceiling_usd is None and not sys.stdin.isatty():
        raise UserError(
            "nothing was deployed: nobody can be asked here; make test-aws MAX_USD=1 gives a ceiling in dollars"
        )
    if walk.ceiling_usd is not None and not (total := whole_usd(walk)) <= walk.ceiling_usd:
        raise UserError(
            f"nothing was deployed: about ${total:.2f} are projected, and the ceiling is ${walk.ceiling_usd:.2f}; raise "
            "MAX_USD, or leave it out and be asked before each step"
        )


def refuse(walk: ProofWalk, *, take_over: bool) -> None:
    """Refuse the verification before anything costs money, for the reasons for which a deployment would be refused, and if the experiment
    is deployed already, because it would be destroyed. Stacks that an interrupted verification left are reused. Raises UserError.
    """
    if not walk.whole and account.find_stack(walk.session, walk.stack) is not None:
        raise UserError(
            f"{walk.stack}: stands already, and {NAME} destroys what it looks at; crossover destroy {walk.config} first, "
            "or leave CONFIG out"
        )
    # Of the project's own proof the smallest has to fit; what else does not is left out, and told.
    experiment, config = (load(SMALLEST), SMALLEST) if walk.whole else (walk.experiment, walk.config)
    deploying.check_before_deploying(experiment, config=config, tell=print_line, take_over=take_over, command=NAME)


def refusal(experiment: Experiment, *, take_over: bool) -> str:
    """Return why the account does not take the experiment now; "" if it does."""
    try:
        deploying.check_before_deploying(
            experiment, config=PROOF, tell=lambda line: None, take_over=take_over, command=NAME
        )
    except UserError as error:
        return f"not proven here: {error}"
    return ""


def cost_after(walk: ProofWalk) -> str:
    """Return a sentence about the steps that were taken: what they were predicted to cost, and what they came to by the minutes that they
    lasted.
    """
    usd = dollars(walk)
    return (
        f"predicted ${usd['predicted']:.2f}, ${usd['by_minutes']:.2f} by the minutes that the steps lasted, at the prices of "
        f"config/pricing.yaml. What is billed shows in a day, if the tag project is activated: {NAME} --billed --out {walk.out}"
    )


def dollars(walk: ProofWalk) -> dict[str, float | None]:
    """Return what the steps that were taken were predicted to cost, what they came to by their minutes, and no bill yet."""
    taken = [step for step in STEPS if step.name in walk.minutes]
    predicted = sum(step.cost(walk.experiment) for step in taken)
    return {"predicted": round(predicted, 4), "by_minutes": round(walk.spent_usd, 4), "billed": None}


def whole_usd(walk: ProofWalk) -> float:
    """Return the projected dollars of all steps that are taken, and of deleting everything."""
    hourly = running_costs.sum_usd(running_costs.list_hourly_costs(walk.experiment, running=True))
    steps = [step for step in STEPS if not step.left_out(walk)]
    return sum(step.cost(walk.experiment) for step in steps) + hourly * DELETION_MIN / 60


def cost_before(walk: ProofWalk) -> str:
    """Return one line with the dollars and minutes of the whole verification, before anything is done. Each step says its own again before
    it begins.
    """
    experiment, steps = walk.experiment, [step for step in STEPS if not step.left_out(walk)]
    hourly = running_costs.sum_usd(running_costs.list_hourly_costs(experiment, running=True))
    minutes = sum(step.minutes for step in steps)
    first = sum(expected_minutes(experiment).values()) + 5
    return (
        f"{walk.stack} and all that it needs, in steps; about {first} minutes until it has "
        f"run, up to {minutes + DELETION_MIN:.0f} until all is gone; about ${whole_usd(walk):.2f} "
        f"(at most ${hourly:.2f} an hour), projected"
    )


def _train(experiment: Experiment, out: Path) -> RunFolder:
    """Run the experiment on AWS with progress lines, and return its folder."""
    from crossover.running.deployed import run_aws

    with show_progress(experiment, where="aws", out=out) as on_progress:
        return run_aws(experiment, out, on_progress)


def others_stand(walk: ProofWalk) -> bool:
    """Return True if the project has other experiments that use the shared stacks."""
    project = walk.experiment.project
    standing = {each.name for each in account.load_owner(walk.session, project).standing}
    return bool(standing - {walk.stack, *(f"{project}-{kind}" for kind in account.SHARED_KINDS)})


def destroy_and_look(walk: ProofWalk) -> None:
    """Delete everything that the verification deployed, the shared stacks too if no other experiment of the project uses them, and check
    the rest. Raises CrossoverError if something is left.
    """
    experiment, session = walk.experiment, walk.session
    try:
        smallest = load(SMALLEST)
        if walk.whole and account.find_stack(session, f"{smallest.project}-{smallest.name}"):
            removal.delete_experiment(session, smallest)
        with walk.timed("destroyed"):
            removal.delete_experiment(session, experiment)
        if walk.interfaces_left is None:
            walk.interfaces_left = walk.function_interfaces()
        shared = not walk.shared_stay and not others_stand(walk)
        if shared:  # also where the schedule took the stacks: it leaves what a stack leaves
            with nullcontext() if walk.network_deleted else walk.timed("network deleted"):
                removal.delete_shared(session, experiment)
            walk.network_deleted = True
        print_line(removal.verify_removed(session, experiment.project, None if shared else experiment.name))
    except (KeyboardInterrupt, SystemExit):
        raise UserError(
            f"interrupted while destroying; crossover destroy {walk.config} --shared --verify goes on where it stopped"
        ) from None
    finally:
        walk.observed |= {id: check(walk) for id, check in AFTERWARDS.items()}
