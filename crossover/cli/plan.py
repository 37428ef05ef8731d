"""`crossover plan`: the resources that a deployment would create, their costs, and estimates of a run."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossover import bundling
from crossover.cli.arguments import AsJson, Config, Debug, Override, load_runnable, print_json
from crossover.errors import ConfigError, NoProjection
from crossover.experiment import Experiment, flatten_fields, from_plain
from crossover.learning import understood
from crossover.reports import bill, display, prices, tables
from crossover.reports.bill import Line
from crossover.reports.display import Band
from crossover.reports.tables import TextTable
from crossover.running import running_costs
from crossover.simulation import processors
from crossover.simulation.processors import describe_idle_vcpus
from crossover.stores.encoding import find_misfits
from crossover.validation import check_deployment
from crossover.validation.combinations import list_missing_commands
from crossover.workflow.architecture import Architecture, architecture_of, steps
from crossover.workflow.infrastructure import NETWORK, database_hosts, shared_stacks
from crossover.workflow.state_machines import build_definitions

if TYPE_CHECKING:
    from crossover.running.preparing import TriedCode
    from crossover.simulation.calibration import Calibration


# --- estimates --------------------------------------------------------------------------------------------------------

HERE = "this machine's seconds at AWS's prices"
# Settings that change neither an epoch's time nor its traffic. Their hourly costs are priced anew.
_ALIKE = re.compile(
    r"(name|project|owner|seed|recipe|baseline|(faults|lifetime|network)\..*|data\.directory|database\.image_generation"
    r"|training\.(epochs|learning_rate|nesterov|weight_decay|label_smoothing|schedule|warm_up|plateau_\w+|early_stopping"
    r"|target|metric\..*))$"
).match


@dataclass(frozen=True, kw_only=True)
class PlanEstimate:
    """A projected estimate of one run, for `crossover plan`.

    `epochs`: number of epochs; `minutes`, `usd`: 5th, 50th and 95th percentile over simulations; all three are equal if there are no
    simulations. `lines`: lines of the bill of the median run that are not 0; `boot_minutes`: time in which instances boot before it, which
    is billed too. `words`: source of the estimate; `spread`: source of the percentiles, or why there are none; `problems`: why AWS would
    not run it; `outside`: settings beyond the measured range; `earlier_run`: what an earlier run on this machine took, in words; `on_aws`:
    whether the estimate comes from an earlier run on AWS.
    """

    epochs: int
    minutes: Band
    boot_minutes: float
    usd: Band
    lines: Sequence[Line]
    words: str
    spread: str
    problems: Sequence[str] = ()
    outside: Sequence[str] = ()
    earlier_run: str = ""
    on_aws: bool = False


def estimate_run(
    experiment: Experiment, *, results: Path = Path("results"), repetitions: int | None = None
) -> PlanEstimate:
    """Return an estimate of a run's minutes and dollars: from an earlier run on AWS in the folder `results`/<name>, with the relative
    spread of a simulation; without one from a simulation; if that is impossible, from an earlier run on this machine. `repetitions`: number
    of simulations, None for the default.

    Raises NoProjection if none of these is possible, ConfigError if a price is missing.
    """
    earlier = estimate_by_earlier_run(experiment, results / experiment.name)
    try:
        simulated = estimate_by_simulation(experiment, repetitions=repetitions)
    except NoProjection as unknown:
        if earlier is None:
            raise
        return replace(earlier, spread=f"uncertainty unknown: {unknown}")
    if earlier is None:
        return simulated
    if not earlier.on_aws:
        took = f"{display.seconds(60 * earlier.minutes.p50)}, {display.usd(earlier.usd.p50)}"
        return replace(simulated, earlier_run=f"{took}, by {earlier.words}")
    return replace(
        earlier,
        minutes=_scale_band(earlier.minutes.p50, simulated.minutes),
        usd=_scale_band(earlier.usd.p50, simulated.usd),
        spread=f"{simulated.spread}, around the earlier run's time and cost",
    )


def _longest_boot_minutes(experiment: Experiment) -> float:
    """Return the minutes that the slowest of the run's instances takes to boot; 0 if the run has no instances."""
    return max((fleet.boot_s for fleet in bill.infrastructure_of(experiment).fleets), default=0.0) / 60


# --- a simulation -----------------------------------------------------------------------------------------------------


def estimate_by_simulation(experiment: Experiment, *, repetitions: int | None = None) -> PlanEstimate:
    """Return an estimate of a run by simulation; user code is loaded to measure its sizes. `repetitions`: number of simulations, None for
    the default.

    Raises NoProjection if the sizes of model or data are unknown, or if a step of the architecture cannot be simulated.
    """
    from crossover.advice.question import size_run  # torch, if the sizes are not known
    from crossover.simulation.repetitions import REPETITIONS, project

    count = REPETITIONS if repetitions is None else repetitions
    workload, cloud = size_run(experiment)
    found = project(experiment, cloud, workload=workload, repetitions=count)
    return PlanEstimate(
        epochs=experiment.training.epochs,
        minutes=Band(*(each / 60 for each in found.band("seconds"))),
        boot_minutes=_longest_boot_minutes(experiment),
        usd=found.band("usd"),
        lines=[line for line in found.run.lines if line.usd > 0],
        words=f"a simulation of every call (crossover project), calibration: {found.run.calibration.name}"
        + _describe_unmeasured_speed(experiment, found.run.calibration),
        spread=found.words,
        problems=found.problems,
        outside=found.run.outside,
    )


def _describe_unmeasured_speed(experiment: Experiment, cloud: "Calibration") -> str:
    """Return in words that the speed of the experiment's model is not measured, so that `advise` may project other seconds; "" if it is
    measured. `cloud`: the calibration with the measured speeds.
    """
    if experiment.training.model in cloud.sample_s:
        return ""
    return "; the model's speed follows from its multiply-accumulates: `advise` for a model alone, or with --probe, measures it instead"


def _scale_band(middle: float, like: Band) -> Band:
    """Return percentiles around the median `middle` with the same relative spread as those of `like`, whose median is not 0."""
    return Band(*(middle * each / like.p50 for each in like))


# --- an earlier run ---------------------------------------------------------------------------------------------------


_SHAPE = {  # of the fields of a result.json that an estimate uses
    "outcome": "finished",
    "label": str,
    "started_at": str,
    "experiment": {},
    "duration_s": float,
    "epochs": [{"epoch?": int, "wall_s": float}],
    "cost": {"lines": [{"item": str, "quantity": float}]},
}


def estimate_by_earlier_run(experiment: Experiment, folder: Path) -> PlanEstimate | None:
    """Return an estimate of a run from the earlier run in `folder`, without percentiles. None unless that run finished, its result.json is
    undamaged, and it had the same settings, as far as they affect time and traffic; the number of epochs may differ.
    """
    try:
        result = json.loads((folder / "result.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if any(find_misfits(result, _SHAPE)) or not (done := result["epochs"]):
        return None
    try:
        there = _settings_of_work(from_plain(result["experiment"]))
    except (TypeError, AttributeError, ValueError, ConfigError):  # of a version with other fields, or damaged
        return None
    if there != _settings_of_work(experiment):
        return None
    epochs, trained = experiment.training.epochs, display.epochs_of(result)
    ends = (int(each.get("epoch", number)) for number, each in enumerate(done, 1))  # a row may be of several epochs
    counts = [last - before for before, last in pairwise((0, *ends))]
    if min(counts) < 1:
        return None
    epoch_s = sorted(float(each["wall_s"]) / count for each, count in zip(done, counts, strict=True))[len(done) // 2]
    seconds = max(0.0, float(result["duration_s"]) - trained * epoch_s) + epochs * epoch_s

    def scale_quantity(begins: str) -> float:
        """Return the quantity of one item of the earlier run's bill, scaled to the number of epochs of this experiment. `begins`: first
        words of the item's name.
        """
        quantities = (float(line["quantity"]) for line in result["cost"]["lines"] if line["item"].startswith(begins))
        return sum(quantities) * epochs / trained

    used = bill.Quantities(
        gb_s=scale_quantity("Lambda duration"),
        invocations=round(scale_quantity("Lambda requests")),
        cold_starts=0,  # of secrets' calls and of storage a run takes less than is shown
        stored_bytes=0,
        writes=round(scale_quantity("S3 requests, PUT")),
        reads=round(scale_quantity("S3 requests, GET")),
    )
    transitions = round(scale_quantity("Step Functions transitions"))
    lines = bill.bill(
        used, bill.infrastructure_of(experiment), prices.load(), duration_s=seconds, transitions=transitions
    )
    usd = sum(line.usd for line in lines)
    return PlanEstimate(
        epochs=epochs,
        minutes=Band(seconds / 60, seconds / 60, seconds / 60),
        boot_minutes=_longest_boot_minutes(experiment),
        usd=Band(usd, usd, usd),
        spread="",
        lines=[line for line in lines if line.usd > 0],
        words=f"the {result['label']} run of {result['started_at'][:10]} in {folder}"
        + ("" if result["label"] == "measured-aws" else f": {HERE}"),
        on_aws=result["label"] == "measured-aws",
    )


def _settings_of_work(experiment: Experiment) -> dict[str, Any]:
    """Return {field: value} for all settings of the experiment except those that are known not to affect an epoch's time and traffic. Two
    experiments with equal results take equally long for an epoch.
    """
    whole = architecture_of(experiment).resolve(experiment).to_plain()
    return {
        name: value for name, value in flatten_fields({**whole, "architecture": experiment.module}) if not _ALIKE(name)
    }


# --- plan -------------------------------------------------------------------------------------------------------------
# `crossover plan`: an experiment's resources, before they are deployed.


def plan(config: Config, override: Override = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show what `deploy` would create, what it costs per hour, and the projected time and cost of a run.

    Creates nothing on AWS. Your own code is tried first on a few samples.
    """
    experiment = load_runnable(config, override)
    check_deployment(experiment)
    processors.check_fits(experiment)
    own, data = try_user_code(experiment)
    architecture = architecture_of(experiment)
    if as_json:
        print_json(plan_as_json(experiment, architecture, own, data))
        return
    tables.show(describe_deployment(experiment, architecture))
    if own:
        tables.show(f"your code: {own}")
    if data:
        tables.show(*understood.format_lines(data))
    if found := base_weights_cost(experiment, architecture):
        tables.show(_describe_base_weights(found))
    if steps(architecture):
        tables.show(functions_table(experiment, architecture))
    tables.show(*describe_hosts(experiment, architecture))
    if running_costs.list_hourly_costs(experiment, running=True):
        tables.show(costs_table(experiment))
    tables.show(*describe_hourly_costs(experiment), *describe_run(experiment))
    tables.show(*(f"! {warning}" for warning in list_warnings(experiment, architecture)))


def try_user_code(experiment: Experiment) -> "TriedCode":
    """Try the experiment's user code by training on a few samples. Returns (sentence on the code, how the data was understood); the first
    is None without user code, in which case nothing is trained, the second if nothing is known of the data. Raises OwnCodeError,
    ConfigError, DataError.
    """
    if not bundling.list_user_code_with_loader(experiment):
        return None, understood.describe_known(experiment)
    from crossover.running.preparing import try_out  # torch, reports and their plots

    return try_out(experiment)


def list_warnings(experiment: Experiment, architecture: Architecture) -> list[str]:
    """Return the plan's warnings: about a slow start of functions with torch, and about vCPUs that are paid for but idle."""
    return [
        warning for warning in (warn_of_slow_init(experiment, architecture), describe_idle_vcpus(experiment)) if warning
    ]


def plan_as_json(
    experiment: Experiment, architecture: Architecture, own: str | None, data: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the plan of an experiment as a dictionary for --json. `run` is None if no run can be projected; `no_projection` then says why.
    Nothing is asked of AWS.

    `architecture`: the experiment's architecture; `own`, `data`: the two values that `try_user_code` returned.
    """
    try:
        found, unknown = estimate_run(experiment), None
        known: dict[str, Any] | None = {
            **{name: value for name, value in asdict(found).items() if name != "on_aws"},
            "label": "projected",
            "minutes": found.minutes._asdict(),
            "usd": found.usd._asdict(),
            "lines": [line.as_json() for line in found.lines],
        }
    except NoProjection as why:
        known, unknown = None, str(why)
    program, each_hour = architecture.program, partial(running_costs.list_hourly_costs, experiment)
    return {
        "name": experiment.name,
        "architecture": experiment.architecture,
        "workers": experiment.workers,
        "stack": f"{experiment.project}-{experiment.name}",
        "shared_stacks": shared_stacks(experiment, architecture),
        "own_code": own,
        "data": data,
        "base": base_weights_cost(experiment, architecture),
        "functions": list_functions(experiment, architecture),
        "state_machines": list(build_definitions(architecture, experiment)),
        "database_hosts": database_hosts(experiment, architecture),
        "instances": asdict(program.instances(experiment)) if program else None,
        "ttl_hours": experiment.lifetime.ttl_hours,
        "usd_per_hour": {
            "standing": running_costs.sum_usd(each_hour()),
            "while_a_run_lasts": running_costs.sum_usd(each_hour(running=True)),
        },
        "prices_as_of": prices.load().as_of,
        "run": known,
        "no_projection": unknown,
        "warnings": list_warnings(experiment, architecture),
    }


def describe_deployment(experiment: Experiment, architecture: Architecture) -> str:
    """Return one line about a deployment: its architecture, workers and stacks."""
    stack = f"stack {experiment.project}-{experiment.name}"
    shared = shared_stacks(experiment, architecture)
    beside = f"that uses the project's {' and '.join(shared)}" if shared else "without network, broker or database"
    return (
        f"{experiment.name}: {experiment.architecture}, {display.count(experiment.workers, 'worker')}, {stack} {beside}"
    )


def base_weights_cost(experiment: Experiment, architecture: Architecture) -> dict[str, Any] | None:
    """Return {"bytes", "sha256", "read_s"} for the pretrained weights that the experiment starts from, None if there are none. `read_s`
    has, by step that trains, the projected seconds by which reading them lengthens a function's cold start; {} for programs. A file on S3
    is downloaded for that. Raises ConfigError if the file cannot be found or read.
    """
    if experiment.training.weights.file is None:
        return None
    from crossover.learning import weights  # torch, which only such an experiment needs
    from crossover.simulation import calibration

    bytes_ = weights.get_file_size(experiment.training.weights)
    in_vpc, read = NETWORK in shared_stacks(experiment, architecture), {}
    for step in steps(architecture):
        if step.torch is True:
            memory_mb = experiment.functions.memory_of(step.name, torch=True)
            read[step.name] = calibration.AWS.base_s(bytes_, memory_mb=memory_mb, in_vpc=in_vpc)
    return {"bytes": bytes_, "sha256": experiment.training.weights.sha256, "read_s": read}


def _describe_base_weights(found: dict[str, Any]) -> str:
    """Return one line on the pretrained weights: their size, and by how much they lengthen cold starts. `found`: what `base_weights_cost`
    returned.
    """
    once = f"pretrained weights: {display.bytes_(found['bytes'])}, uploaded once"
    if not found["read_s"]:
        return f"{once}; each program reads them when it starts"
    read = ", ".join(f"{name} {display.seconds(seconds)}" for name, seconds in found["read_s"].items())
    return f"{once}; they lengthen each cold start: {read}  [projected]"


def costs_table(experiment: Experiment) -> TextTable:
    """Return a table of what a deployment costs per hour: a row (item, dollars with four decimals) for each item that costs all the time,
    then for each that costs only during a run, which says so. Raises ConfigError if a price is missing.
    """
    resting = running_costs.list_hourly_costs(experiment)
    during = [line for line in running_costs.list_hourly_costs(experiment, running=True) if line not in resting]
    rows = [[line.item, f"{line.usd:.4f}"] for line in resting]
    rows += [[f"{line.item}, during a run", f"{line.usd:.4f}"] for line in during]
    return TextTable("Cost per hour while deployed", ["resource", "USD"], rows)


def find_users_region() -> str:
    """Return the AWS region that the environment or the AWS profile names, as AWS's own tools choose it; "" if neither names one or the
    profile cannot be read.
    """
    if named := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        return named
    config = Path(os.environ.get("AWS_CONFIG_FILE") or Path.home() / ".aws" / "config")
    if not config.is_file():
        return ""
    import botocore.exceptions
    import botocore.session

    try:
        return str(botocore.session.Session().get_config_variable("region") or "")
    except botocore.exceptions.BotoCoreError:
        return ""


def describe_hourly_costs(experiment: Experiment) -> list[str]:
    """Return lines on what a deployment costs per hour, on the most that it can cost until it deletes itself, and on a missing budget."""
    resting, during = (
        running_costs.sum_usd(running_costs.list_hourly_costs(experiment)),
        running_costs.sum_usd(running_costs.list_hourly_costs(experiment, running=True)),
    )
    ttl_h, run_h = experiment.lifetime.ttl_hours, experiment.lifetime.maximum_run_hours
    gb_month = prices.load().of("s3.gb_month").usd
    most = resting * ttl_h + (during - resting) * min(run_h, ttl_h)
    here = find_users_region() or prices.load().region
    other = f"; your region is {here}, and its prices differ" if here != prices.load().region else ""
    lines = [
        f"cost per hour: ${resting:.2f} while deployed, ${during:.2f} during a run, without functions ({prices.load().basis}{other})",
        f"plus its bucket, ${gb_month:g} per GB and month, and its expiry checks, "
        f"${running_costs.usd_of_expiry_polls():.3f} per hour",
        f"unless you destroy it earlier: at most ${most:.2f} in its {ttl_h:g} hours to live, without functions, bucket and checks",
    ]
    if experiment.lifetime.budget_usd is None:
        lines.append("no budget: set lifetime.budget_usd to stop a run before it exceeds that many dollars")
    return lines


def describe_run(experiment: Experiment) -> list[str]:
    """Return lines with the projected minutes and dollars of one run, its three largest cost items, the source of the projection, and
    warnings if it exceeds the experiment's limits; one line with the reason if there is no projection.
    """
    from crossover.simulation import AWS, start_up

    try:
        found = estimate_run(experiment)
    except NoProjection as unknown:
        basis = f"one `crossover run` on this machine (results/{experiment.name}) makes one possible"
        return [f"no projection of a run: {unknown}; {basis}"]
    parts = start_up.list_parts_of(experiment, AWS)
    start_up_s, boot_s = sum(each.seconds for each in parts), 60 * found.boot_minutes
    deployed = f"{display.seconds(boot_s)} if it is deployed already" if boot_s else "none if it is deployed already"
    most = sorted(found.lines, key=lambda line: -line.usd)[:3]
    minutes, usd = found.minutes, found.usd
    times = [display.seconds(60 * each) for each in minutes]
    between = [f"  p5 to p95: {times[0]} to {times[2]}, {display.usd(usd.p5)} to {display.usd(usd.p95)}"]
    lines = [
        f"a run of {display.count(found.epochs, 'epoch')}: about {times[1]}, {display.usd(usd.p50)}  [projected]",
        f"  after {display.seconds(start_up_s)} of start-up from `deploy` on, as `advise` counts it ({deployed})",
        *(between if minutes.p5 < minutes.p95 else []),
        *(f"  {display.usd(line.usd)}  {line.item}" for line in most),
        f"  from {found.words}",
        *([f"  {found.spread}"] if found.spread else []),
        *([f"  an earlier run: {found.earlier_run}"] if found.earlier_run else []),
        *(f"  beyond the measured range: {limit}" for limit in found.outside),
        *(f"! AWS would not run this: {problem}" for problem in found.problems),
    ]
    lifetime = experiment.lifetime
    most_minutes = 60 * lifetime.maximum_run_hours - found.boot_minutes
    if minutes.p95 > most_minutes:
        would = "would" if minutes.p50 > most_minutes else f"could (p95 is {times[2]})"
        lines.append(
            f"! exceeds lifetime.maximum_run_hours ({lifetime.maximum_run_hours:g}): its instances {would} stop before the run ends"
        )
    if lifetime.budget_usd is not None and usd.p95 > lifetime.budget_usd:
        would = "would" if usd.p50 > lifetime.budget_usd else f"could (p95 is {display.usd(usd.p95)})"
        lines.append(
            f"! exceeds lifetime.budget_usd ({lifetime.budget_usd:g}): the run {would} be stopped before it ends"
        )
    return lines


def warn_of_slow_init(experiment: Experiment, architecture: Architecture) -> str | None:
    """Return a warning if the start of a function with torch (its INIT) takes longer than Lambda allows, so that it is repeated; None
    otherwise.
    """
    from crossover.simulation import calibration

    init_s, limit_s = calibration.AWS.init_torch_s, calibration.INIT_LIMIT_S
    computing = [step.name for step in steps(architecture) if step.needs_torch(experiment)]
    if init_s <= limit_s or not computing or experiment.functions.snap_start:
        return None
    return (
        f"{', '.join(computing)}: loading torch takes about {init_s:g} s, and Lambda stops an INIT after {limit_s:g} s and repeats it "
        f"in the first invocation, so that a cold start takes {calibration.cold_start_s(init_s):g} s; functions.snap_start: true "
        "starts from a snapshot instead"
    )


def functions_table(experiment: Experiment, architecture: Architecture) -> TextTable:
    """Return a table with one row for each Lambda function: name, memory, torch, services that it reaches."""
    rows = [
        [each["name"], str(each["memory_mb"]), "yes" if each["torch"] else "", ", ".join(each["reaches"])]
        for each in list_functions(experiment, architecture)
    ]
    return TextTable("Lambda functions", ["function", "memory MB", "torch", "reaches"], rows)


def list_functions(experiment: Experiment, architecture: Architecture) -> list[dict[str, Any]]:
    """Return a dictionary for each Lambda function: `name` of its step, `memory_mb`, whether it has `torch`, and the sorted names of the
    services that it `reaches`.
    """
    found = []
    hosts = database_hosts(experiment, architecture)
    for step in steps(architecture):
        torch = step.needs_torch(experiment)
        memory_mb = experiment.functions.memory_of(step.name, torch=torch)
        uses = step.uses if hosts else step.uses - {"tensors"}  # which then lie among the objects
        found.append({"name": step.name, "memory_mb": memory_mb, "torch": torch, "reaches": sorted(uses)})
    return found


def describe_hosts(experiment: Experiment, architecture: Architecture) -> list[str]:
    """Return lines about the deployment's state machines, database hosts, instances and time to live."""
    lines = []
    if machines := build_definitions(architecture, experiment):
        lines.append(f"state machines: {', '.join(machines)}")
    if hosts := database_hosts(experiment, architecture):
        lines.append(f"database hosts: {hosts} x {experiment.database.instance_type}")
    if architecture.tensor_hosts == "per_worker" and (lacking := list_missing_commands(experiment)):
        lines.append(f"functions compute {' and '.join(lacking)}, because the database has no command for it")
    if architecture.program:
        asked = architecture.program.instances(experiment)
        lines.append(f"instances during a run: {asked.count} x {asked.instance_type}")
    lines.append(f"deletes itself {experiment.lifetime.ttl_hours:g} hours after deployment")
    return lines
