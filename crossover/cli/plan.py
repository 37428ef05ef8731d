"""`crossover plan`: what an experiment is made of, before anything is deployed."""

from dataclasses import asdict
from functools import partial
from typing import Any

from crossover import own_code
from crossover.account import standing
from crossover.architecture import Architecture, architecture_of, steps
from crossover.architecture.infrastructure import NETWORK, database_hosts, shared_stacks
from crossover.asl import definitions
from crossover.cli import estimates
from crossover.cli.arguments import AsJson, Config, Debug, Override, accepted, print_json
from crossover.costs import prices
from crossover.errors import NoProjection
from crossover.experiment import Experiment
from crossover.reports import display, terminal
from crossover.reports.terminal import TextTable
from crossover.simulation import own_steps
from crossover.simulation.processors import idle
from crossover.validation import check_deployment
from crossover.validation.placement import without_command


def plan(config: Config, override: Override = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show the functions, state machines and hosts that `deploy` would make."""
    experiment = accepted(config, override)
    check_deployment(experiment)
    own_steps.check_fits(experiment)
    own = tried(experiment)
    architecture = architecture_of(experiment)
    if as_json:
        print_json(in_json(experiment, architecture, own))
        return
    terminal.show(headline(experiment, architecture))
    if own:
        terminal.show(f"your code: {own}")
    if found := base(experiment, architecture):
        terminal.show(_base_words(found))
    if steps(architecture):
        terminal.show(functions_table(experiment, architecture))
    terminal.show(*machines_and_hosts(experiment, architecture))
    if standing.lines(experiment, running=True):
        terminal.show(costs_table(experiment))
    terminal.show(*totals(experiment), *of_a_run(experiment))
    terminal.show(*(f"! {warning}" for warning in warnings(experiment, architecture)))


def tried(experiment: Experiment) -> str | None:
    """What was found of code of one's own, whose faults end the command; None without any."""
    if not own_code.used(experiment):
        return None
    from crossover.running.trying import try_out  # torch, reports and their plots

    return try_out(experiment)


def warnings(experiment: Experiment, architecture: Architecture) -> list[str]:
    """What is paid for in vain, or takes longer than Lambda lets it."""
    return [warning for warning in (slow_start(experiment, architecture), idle(experiment)) if warning]


def in_json(experiment: Experiment, architecture: Architecture, own: str | None) -> dict[str, Any]:
    """The same for other programs; `run` is None where nothing tells what one takes, and `no_projection` says why."""
    try:
        known, unknown = asdict(estimates.estimate(experiment)), None
        known |= {"label": "projected", "minutes": known["minutes"]._asdict(), "usd": known["usd"]._asdict()}
    except NoProjection as why:
        known, unknown = None, str(why)
    program, each_hour = architecture.program, partial(standing.lines, experiment)
    return {
        "name": experiment.name,
        "architecture": experiment.architecture,
        "workers": experiment.workers,
        "stack": f"{experiment.project}-{experiment.name}",
        "shared_stacks": shared_stacks(experiment, architecture),
        "own_code": own,
        "base": base(experiment, architecture),
        "functions": functions(experiment, architecture),
        "state_machines": list(definitions(architecture, experiment)),
        "database_hosts": database_hosts(experiment, architecture),
        "instances": asdict(program.instances(experiment)) if program else None,
        "ttl_hours": experiment.lifetime.ttl_hours,
        "usd_per_hour": {
            "standing": standing.usd(each_hour()),
            "while_a_run_lasts": standing.usd(each_hour(running=True)),
        },
        "prices_as_of": prices.load().as_of,
        "run": known,
        "no_projection": unknown,
        "warnings": warnings(experiment, architecture),
    }


def headline(experiment: Experiment, architecture: Architecture) -> str:
    """What it is, and which stacks it takes."""
    stack = f"stack {experiment.project}-{experiment.name}"
    shared = shared_stacks(experiment, architecture)
    beside = f"beside the project's {' and '.join(shared)}" if shared else "alone: no network, no broker, no database"
    return f"{experiment.name}: {experiment.architecture}, {experiment.workers} workers, {stack} {beside}"


def base(experiment: Experiment, architecture: Architecture) -> dict[str, Any] | None:
    """What `training.weights` means: bytes that are staged once, and what a fresh environment of each function takes to read them, as
    projected; None without it.
    """
    if experiment.training.weights.file is None:
        return None
    from crossover.learning.models import weights  # torch, which only such an experiment needs
    from crossover.simulation import calibration

    bytes_ = weights.size(experiment.training.weights)
    in_vpc, read = NETWORK in shared_stacks(experiment, architecture), {}
    for step in steps(architecture):
        if step.torch is True:
            memory_mb = experiment.functions.memory_of(step.name, torch=True)
            read[step.name] = calibration.AWS.base_s(bytes_, memory_mb=memory_mb, in_vpc=in_vpc)
    return {"bytes": bytes_, "sha256": experiment.training.weights.sha256, "read_s": read}


def _base_words(found: dict[str, Any]) -> str:
    once = f"base: {display.bytes_(found['bytes'])}, staged once"
    if not found["read_s"]:
        return f"{once}; each program reads it when it begins"
    read = ", ".join(f"{name} {display.seconds(seconds)}" for name, seconds in found["read_s"].items())
    return f"{once}; added to what a cold start takes: {read}  [projected]"


def costs_table(experiment: Experiment) -> TextTable:
    """One row per thing that costs while it stands; what only a run starts is marked."""
    resting = standing.lines(experiment)
    during = [line for line in standing.lines(experiment, running=True) if line not in resting]
    rows = [[line.item, f"{line.usd:.4f}"] for line in resting]
    rows += [[f"{line.item}, while a run lasts", f"{line.usd:.4f}"] for line in during]
    return TextTable("Costs while it stands", ["an hour of", "USD"], rows)


def totals(experiment: Experiment) -> list[str]:
    """By the hour, and at most until it deletes itself."""
    resting, during = standing.usd(standing.lines(experiment)), standing.usd(standing.lines(experiment, running=True))
    ttl_h, run_h = experiment.lifetime.ttl_hours, experiment.lifetime.maximum_run_hours
    gb_month = prices.load().of("s3.gb_month").usd
    most = resting * ttl_h + (during - resting) * min(run_h, ttl_h)
    lines = [
        f"standing: ${resting:.2f} an hour, ${during:.2f} while a run lasts, functions apart (prices of {prices.load().as_of})",
        f"besides: its bucket, ${gb_month:g} a month for each GB that runs leave in it, and looks whether its time is over, "
        f"${standing.looks_usd():.3f} an hour",
        f"if nobody destroys it: ${most:.2f} in its {ttl_h:g} hours at most, functions and those apart",
    ]
    if experiment.lifetime.budget_usd is None:
        lines.append("no budget: lifetime.budget_usd would stop a run before it passes it")
    return lines


def of_a_run(experiment: Experiment) -> list[str]:
    """Minutes and dollars of one run, what most of it is, and what that is projected from."""
    try:
        found = estimates.estimate(experiment)
    except NoProjection as unknown:
        basis = f"crossover run on this machine once (results/{experiment.name}) gives a basis"
        return [f"a run: no projection: {unknown}; {basis}"]
    boot = f" and {found.boot_minutes:.1f} until its instances are up" if found.boot_minutes else ""
    most = sorted(found.lines, key=lambda line: -line.usd)[:3]
    minutes, usd = found.minutes, found.usd
    between = [f"  ({minutes.p5:.1f} to {minutes.p95:.1f} minutes, ${usd.p5:.4f} to ${usd.p95:.4f}: p5 to p95)"]
    lines = [
        f"{_size(experiment, found.epochs)}: about {minutes.p50:.1f} minutes{boot}, ${usd.p50:.4f}  [projected]",
        *(between if minutes.p5 < minutes.p95 else []),
        *(f"  ${line.usd:.4f}  {line.item}" for line in most),
        f"  from {found.words}",
        *([f"  {found.spread}"] if found.spread else []),
        *(f"  outside what was measured: {limit}" for limit in found.outside),
        *(f"! would not run so on AWS: {problem}" for problem in found.problems),
    ]
    lifetime = experiment.lifetime
    most_minutes = 60 * lifetime.maximum_run_hours - found.boot_minutes
    if minutes.p95 > most_minutes:
        would = "would" if minutes.p50 > most_minutes else f"could (p95 is {minutes.p95:.1f} minutes)"
        lines.append(
            f"! longer than lifetime.maximum_run_hours, {lifetime.maximum_run_hours:g}: its instances {would} end first"
        )
    if lifetime.budget_usd is not None and usd.p95 > lifetime.budget_usd:
        would = "would" if usd.p50 > lifetime.budget_usd else f"could (p95 is ${usd.p95:.4f})"
        lines.append(
            f"! dearer than lifetime.budget_usd, {lifetime.budget_usd:g}: the run {would} be stopped before its end"
        )
    return lines


def slow_start(experiment: Experiment, architecture: Architecture) -> str | None:
    """What an INIT with torch that takes longer than Lambda lets it means; None where none does."""
    from crossover.simulation import calibration

    init_s, limit_s = calibration.AWS.cold_torch_s, calibration.INIT_LIMIT_S
    computing = [step.name for step in steps(architecture) if step.needs_torch(experiment)]
    if init_s <= limit_s or not computing or experiment.functions.snap_start:
        return None
    return (
        f"INIT of {', '.join(computing)}: about {init_s:g} s with torch, and Lambda ends one after {limit_s:g} s: it begins anew "
        f"within the first invocation, and a cold start takes {calibration.cold_start_s(init_s):g} s; functions.snap_start: true "
        "starts from a snapshot instead"
    )


def _size(experiment: Experiment, epochs: int) -> str:
    if aggregates := architecture_of(experiment).aggregates:
        return f"a run, {aggregates(experiment).words}"
    return f"a run of {epochs} epochs"


def functions_table(experiment: Experiment, architecture: Architecture) -> TextTable:
    """One row per step: its function."""
    rows = [
        [each["name"], str(each["memory_mb"]), "yes" if each["torch"] else "", ", ".join(each["reaches"])]
        for each in functions(experiment, architecture)
    ]
    return TextTable("Lambda functions", ["function", "memory MB", "torch", "reaches"], rows)


def functions(experiment: Experiment, architecture: Architecture) -> list[dict[str, Any]]:
    """The function of each step."""
    found = []
    hosts = database_hosts(experiment, architecture)
    for step in steps(architecture):
        torch = step.needs_torch(experiment)
        memory_mb = experiment.functions.memory_of(step.name, torch=torch)
        uses = step.uses if hosts else step.uses - {"tensors"}  # which then lie among the objects
        found.append({"name": step.name, "memory_mb": memory_mb, "torch": torch, "reaches": sorted(uses)})
    return found


def machines_and_hosts(experiment: Experiment, architecture: Architecture) -> list[str]:
    """State machines, database hosts, instances, and the end of it all."""
    lines = []
    if machines := definitions(architecture, experiment):
        lines.append(f"state machines: {', '.join(machines)}")
    if hosts := database_hosts(experiment, architecture):
        lines.append(f"database hosts: {hosts} x {experiment.database.instance_type}")
    if architecture.tensor_hosts == "per_worker" and (lacking := without_command(experiment)):
        lines.append(f"computed by functions: the database has no command for {' and '.join(lacking)}")
    if architecture.program:
        asked = architecture.program.instances(experiment)
        lines.append(f"instances while a run lasts: {asked.count} x {asked.instance_type}")
    lines.append(f"deleted by itself {experiment.lifetime.ttl_hours:g} hours after deployment")
    return lines
