"""`crossover plan`: what an experiment is made of, before anything is deployed."""

from rich.console import Console
from rich.table import Table

from crossover import workflow
from crossover.asl import definitions
from crossover.cli.arguments import Config, Debug
from crossover.experiment import Experiment
from crossover.validation import check_deployment, load


def plan(config: Config, debug: Debug = False) -> None:
    """Show the functions, state machines and hosts that `deploy` would make."""
    experiment = load(config)
    check_deployment(experiment)
    architecture = workflow.load(experiment.architecture)
    console = Console(highlight=False)
    console.print(
        f"{experiment.name}: {experiment.architecture}, {experiment.workers} workers, stack {experiment.project}-{experiment.name}"
    )
    if workflow.steps(architecture):
        console.print(functions_table(experiment, architecture))
    for line in machines_and_hosts(experiment, architecture):
        console.print(line)


def functions_table(experiment: Experiment, architecture: workflow.Architecture) -> Table:
    """One row per step: its function."""
    table = Table("function", "memory MB", "torch", "reaches", title="Lambda functions", title_justify="left")
    for step in workflow.steps(architecture):
        torch = step.needs_torch(experiment)
        memory_mb = experiment.functions.memory_of(step.name, torch=torch)
        table.add_row(step.name, str(memory_mb), "yes" if torch else "", ", ".join(sorted(step.uses)))
    return table


def machines_and_hosts(experiment: Experiment, architecture: workflow.Architecture) -> list[str]:
    """State machines, database hosts, instances, and the end of it all."""
    lines = []
    if machines := definitions(architecture, experiment):
        lines.append(f"state machines: {', '.join(machines)}")
    hosts = {"per_worker": experiment.workers, "shared": 1, "none": 0}[architecture.tensor_hosts]
    if hosts:
        lines.append(
            f"database hosts: {hosts} x {experiment.database.instance_type}, {experiment.database.engine} engine"
        )
    if architecture.program:
        instances, kind = (
            (experiment.gpu.instances, experiment.gpu.instance_type)
            if architecture.program.count == "gpus"
            else (experiment.workers, experiment.p2p.instance_type)
        )
        lines.append(f"instances while a run lasts: {instances} x {kind}")
    lines.append(f"deleted by itself {experiment.lifetime.ttl_hours:g} hours after deployment")
    return lines
