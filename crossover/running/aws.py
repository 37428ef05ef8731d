"""A run of the deployed experiment on AWS."""

from pathlib import Path

from crossover import runtime
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running.baseline import with_baseline
from crossover.running.deployed_run import run_deployed
from crossover.running.following import OnProgress
from crossover.running.patience import AwsPatience, renewing_session
from crossover.running.resumption import Unfinished
from crossover.simulation.processors import fixed


def run_aws(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: str = "") -> RunFolder:
    """The deployed experiment on AWS, by the credentials of the environment."""
    # Seconds of a cloud on one machine are not AWS's, whichever command asked for them.
    where = "local" if runtime.environment().get("AWS_ENDPOINT_URL") else "aws"
    session, renew = renewing_session()
    look = AwsPatience(renew)
    if resume:  # that run alone
        return run_deployed(fixed(experiment), out, on_progress, session=session, where=where, resume=resume, look=look)

    def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
        return run_deployed(each, into, on_progress, session=session, where=where, look=look)

    return with_baseline(run, experiment, out, where="aws")
