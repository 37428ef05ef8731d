"""A run on the cloud on one machine: synthesize, deploy, run, tear down."""

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crossover.architecture import architecture_of, steps
from crossover.architecture.infrastructure import talks
from crossover.dataplane.traffic import Traffic
from crossover.experiment import Experiment
from crossover.reports.folder import SERVER_LOG, RunFolder
from crossover.running.baseline import with_baseline
from crossover.running.cdk_process import synthesized
from crossover.running.deployed_run import run_deployed
from crossover.running.following import OnProgress, after
from crossover.running.keeping import Databases, keeping
from crossover.running.resumption import Unfinished
from crossover.running.stack import Deployed

if TYPE_CHECKING:
    from crossover.local.cloud import LocalCloud


def run_local(
    experiment: Experiment, out: Path, on_progress: OnProgress, *, workspace: Path | None = None, resume: bool = False
) -> RunFolder:
    """The same through the cloud on one machine: synthesize, deploy, run, tear down. `resume`: what `out` holds unfinished."""
    from crossover.local import processes, tools
    from crossover.local.cloud import LocalCloud
    from crossover.running import room

    tools.check()
    room.check_servers(out, talks=talks(architecture_of(experiment)))
    with processes.temporary_folder() as folder:

        def run(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
            if not cloud.stacks():
                cloud.deploy(synthesized(experiment, folder / "assembly"))
            return run_on_cloud(cloud, each, into, on_progress, unfinished=unfinished)

        with LocalCloud(workspace or folder / "cloud") as cloud:
            found = with_baseline(run, experiment, out, where="local", resume=resume, cores=os.cpu_count())
            cloud.destroy()  # of a run that failed, or was interrupted, the stacks go with their cloud
            return found


def run_on_cloud(
    cloud: "LocalCloud", experiment: Experiment, out: Path, on_progress: OnProgress, *, unfinished: Unfinished | None
) -> RunFolder:
    """A run of the experiment that the local cloud holds. What it can go on with is kept in `out` should it
    fail: the cloud ends with it.
    """
    from crossover.dataplane.s3 import SETTINGS, S3ObjectStore
    from crossover.local import state_databases

    session = cloud.session()
    objects = S3ObjectStore(
        Deployed.of(experiment, session).bucket, Traffic(), client=session.client("s3", config=SETTINGS)
    )
    if unfinished:
        unfinished.restore(objects)
    architecture = architecture_of(experiment)
    (out / SERVER_LOG).unlink(missing_ok=True)  # an earlier run's

    def of_workers() -> Databases:
        if architecture.state != "database":
            return nullcontext({})
        step = steps(architecture)[0].name.replace("_", "-")
        return state_databases.of(cloud, experiment, function=f"{experiment.project}-{experiment.name}-{step}")

    with keeping(objects, out, where="local", databases=of_workers) as keep:
        return run_deployed(
            experiment,
            out,
            after(keep, on_progress),
            session=session,
            where="local",
            resume=unfinished.run if unfinished else "",
            check=partial(cloud.check, out / SERVER_LOG),
        )
