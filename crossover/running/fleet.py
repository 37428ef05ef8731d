"""A run of programs: a fleet of instances that is filled, told what to join, and emptied."""

from pathlib import Path
from typing import Any

from crossover.keys import current_run
from crossover.reports.folder import RunFolder
from crossover.running.following import Complete, Interruption, OnProgress, all_well, finish, nothing_more
from crossover.running.members import goes_on_without, instances_of
from crossover.running.patience import Look, at_once
from crossover.running.preparing import Prepared
from crossover.training.fleet.execution import ProgramsExecution, announce


def run_fleet(
    prepared: Prepared,
    fleet: str,
    out: Path,
    on_progress: OnProgress,
    *,
    session: Any,
    where: str,
    announced: bool = False,
    complete: Complete = nothing_more,
    look: Look = at_once,
    check: Interruption = all_well,
) -> RunFolder:
    """A run of programs: the fleet gets its instances, is told what to join, and is emptied again, whatever happens.

    `announced`: the programs are at work on it already. `check` raises what else keeps the run from going on.
    """
    groups, members = session.client("autoscaling"), prepared.experiment.workers
    count = instances_of(prepared.experiment, prepared.architecture)

    def release() -> None:
        groups.set_desired_capacity(AutoScalingGroupName=fleet, DesiredCapacity=0)

    def why() -> str:
        """What Auto Scaling says of its last attempt to start an instance: a quota, no capacity."""
        last = groups.describe_scaling_activities(AutoScalingGroupName=fleet, MaxRecords=1)["Activities"]
        return " ".join(f"{each.get('StatusCode', '')}: {each.get('StatusMessage', '')}" for each in last)

    def alive() -> bool:
        """Programs that are through leave the fleet, and take their place with them."""
        check()
        found = groups.describe_auto_scaling_groups(AutoScalingGroupNames=[fleet])["AutoScalingGroups"]
        return bool(found and found[0]["DesiredCapacity"])

    if not announced:
        announce(prepared.objects, fleet=fleet, run=prepared.run, members=members)
    try:
        groups.set_desired_capacity(AutoScalingGroupName=fleet, DesiredCapacity=count)
        execution = ProgramsExecution(
            prepared.objects,
            prepared.keys,
            members,
            tolerant=goes_on_without(prepared.experiment),
            release=release,
            alive=alive,
            why=why,
        )
        return finish(prepared, execution, out, on_progress, where=where, complete=complete, look=look)
    finally:
        release()
        prepared.objects.delete(current_run(fleet))
