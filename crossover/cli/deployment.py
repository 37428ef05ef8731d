"""`crossover deploy`."""

import sys
import time

from crossover.account import tell
from crossover.account.credentials import aws_errors_explained, check_credentials
from crossover.account.deployment.deploying import deploy_previewed, refuse_what_cannot_work
from crossover.cli.arguments import Config, Debug, TakeOver, Yes, accepted
from crossover.cli.docker import check_docker
from crossover.errors import UserError
from crossover.simulation import own_steps
from crossover.simulation.processors import idle
from crossover.training.baselines import companions
from crossover.validation import check_deployment


def deploy(config: Config, yes: Yes = False, take_over: TakeOver = False, debug: Debug = False) -> None:
    """Deploy the experiment on AWS, with the shared network and broker where they are missing."""
    experiment = accepted(config)
    check_deployment(experiment)
    own_steps.check_fits(experiment)
    check_docker(experiment)
    check_credentials()
    if not yes and not sys.stdin.isatty():
        raise UserError("deploy: nobody to ask, since the input is no terminal; add --yes")
    with aws_errors_explained():
        for each in (experiment, *companions(experiment)):  # baselines are deployed by the same command
            refuse_what_cannot_work(each, config=config, tell=tell, take_over=take_over)
    if wasted := idle(experiment):
        print(f"note: {wasted}", file=sys.stderr, flush=True)
    started = time.monotonic()
    deploy_previewed(config, experiment, ask=not yes, tell=tell)
    print(f"deployed in {(time.monotonic() - started) / 60:.1f} minutes; crossover run {config} --on aws")
