"""Simulate the rows of the two papers: fit their deployments to the rows that are not held out, and compare all printed figures with
projections.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from crossover.errors import DataError
from crossover.experiment import Database, Exchange, Experiment, Functions, Gpu, PeerToPeer, Training
from crossover.learning.sizes import DATA
from crossover.reports.display import of_errors
from crossover.reports.published import Row, rows
from crossover.simulation.calibration import ASSUMED, FREE, REFERENCE_SAMPLE_S, Calibration, Service
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import MODELS as SIZES
from crossover.simulation.workload import Workload

# --- fitting ----------------------------------------------------------------------------------------------------------

Set = Callable[[Calibration, float], Calibration]


@dataclass(frozen=True)
class PrintedFigure:
    """A printed figure. `project`: function that projects it with a calibration."""

    printed: float
    project: Callable[[Calibration], float]


@dataclass(frozen=True)
class Fitted:
    """A fitted figure of the calibration, with its unit and source."""

    figure: str
    value: float
    unit: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Return the figure as a dictionary, its value rounded to four digits."""
        return {"figure": self.figure, "value": float(f"{self.value:.4g}"), "unit": self.unit, "source": self.source}


@dataclass(frozen=True)
class FitResidual:
    """A measured time beside what the fitted figures give, for one `part` of a session or row, with that many functions."""

    part: str
    session: str
    level: str
    functions: int
    measured_s: float
    fitted_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the residual as a dictionary, with the relative error."""
        return {
            **asdict(self),
            "measured_s": float(f"{self.measured_s:.4g}"),
            "fitted_s": float(f"{self.fitted_s:.4g}"),
            "error": round(self.fitted_s / self.measured_s - 1, 3),
        }


def fit_unknowns(
    base: Calibration, unknowns: Sequence[Set], observed: Sequence[PrintedFigure], *, probe: float = 1.0
) -> Calibration:
    """Return `base` with its unknowns set to the values that fit the observed figures best.

    `unknowns`: functions that set one figure of a calibration. `probe`: step with which slopes are measured; figures are taken to be linear
    in the unknowns. No value is negative.
    """
    found = base
    for unknown in unknowns:
        found = unknown(found, 0.0)
    at_zero = [each.project(found) for each in observed]
    slopes = [
        [(each.project(unknown(found, probe)) - zero) / probe for unknown in unknowns]
        for each, zero in zip(observed, at_zero, strict=True)
    ]
    left = [each.printed - zero for each, zero in zip(observed, at_zero, strict=True)]
    values = _one(slopes, left) if len(unknowns) == 1 else _several(slopes, left, [each.printed for each in observed])
    for unknown, value in zip(unknowns, values, strict=True):
        found = unknown(found, value)
    return found


def _one(slopes: Sequence[Sequence[float]], left: Sequence[float]) -> list[float]:
    """Solve for a single unknown: the median over the figures, at least 0. `left`: what of each figure is not explained with the unknown at
    0.
    """
    return [max(0.0, median(rest / slope[0] for slope, rest in zip(slopes, left, strict=True)))]


def _several(slopes: Sequence[Sequence[float]], left: Sequence[float], printed: Sequence[float]) -> list[float]:
    """Solve for several unknowns by least squares of relative errors. Negative ones are set to zero and the rest are fitted again."""
    weights = 1 / np.asarray(printed)
    matrix, right = np.asarray(slopes) * weights[:, None], np.asarray(left) * weights
    kept = list(range(matrix.shape[1]))
    while kept:
        solution = np.linalg.lstsq(matrix[:, kept], right, rcond=None)[0]
        if (solution >= 0).all():
            break
        kept = [each for each, value in zip(kept, solution, strict=True) if value >= 0]
    values = [0.0] * matrix.shape[1]
    for each, value in zip(kept, solution if kept else (), strict=True):
        values[each] = float(value)
    return values


# --- papers -----------------------------------------------------------------------------------------------------------
# The papers' rows as runs: which experiment a printed row was, and which simulated seconds stand beside its figures.

HELD_OUT = Path(__file__).parents[2] / "config" / "held-out.yaml"
A, B = PAPERS = "comparison-2025", "p2p-2023"
# What the papers call their models, in ours: the authors' ResNet-18 is the CIFAR variant (11,173,962 parameters).
VARIANT = {"resnet18": "resnet18_cifar", "resnet50": "resnet50_cifar", "mobilenet": "mobilenet"}
STATED = {"squeezenet": 1_200_000, "mobilenet_v3_small": 2_500_000, "vgg11": 132_900_000}  # 2023, section IV-B
COMMUNICATION = ("store", "aggregate", "synchronise")
STAGES = ("compute gradients", "send", "receive", "model update", "convergence detection")
WORKERS_OF_THE_HIGHEST = 16  # section 4.2 gives the highest of 4 to 16
AVERAGED_EPOCHS = 4  # 2023, Table I: averages of four epochs


@cache
def held_out() -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """Return the figures that fits may not see, by paper, table and row."""
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {(each["paper"], each["table"], each["row"]): tuple(each["figures"]) for each in plain["held_out"]}


@cache
def _measured() -> Mapping[tuple[str, str, int, int], bool]:
    """Return whether each measured cell is held out, by gradient, design, aggregators and memory."""
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {
        (each["gradient"], each["design"], each["aggregators"], each["memory_mb"]): each["held_out"]
        for each in plain["measured"]
    }


def measured_held_out(key: tuple[str, str, int, int]) -> bool:
    """Return whether fits may not see a measured cell. `key`: gradient, design, aggregators, memory in MB. Raises DataError if it is not
    listed.
    """
    if key not in _measured():
        raise DataError(
            f"{HELD_OUT.name}: measured: {key} is not listed: which side it is on must be said before it is fitted to"
        )
    return _measured()[key]


def is_held_out(row: Row) -> bool:
    """Return whether any figure of the row is held out."""
    return (row.paper, row.table, row.row) in held_out()


def _experiment(
    architecture: str,
    model: str,
    *,
    workers: int = 4,
    memory_mb: int = 2_048,
    batch: int = 512,
    epochs: int = 1,
    **parts: Any,
) -> Experiment:
    """Build the experiment of a printed row; without momentum. `parts`: other sections of the experiment."""
    training = Training(model=model, epochs=epochs, batch_size=batch, momentum=0.0)
    functions = Functions(memory_mb={"default": memory_mb})
    return Experiment(
        name="paper", architecture=architecture, workers=workers, training=training, functions=functions, **parts
    )


def _workload(model: str, *, minibatches: int, batch: int = 512, validation: int = 0) -> Workload:
    """Build a workload of the paper's batches of CIFAR-sized images. `model`: our name; a model in STATED gets the parameters that the 2023
    paper states.
    """
    size = SIZES[model][(3, 32, 32)]
    parameters, buffers = (STATED[model], 0) if model in STATED else (size.parameters, size.buffers)
    return Workload(
        model=model,
        parameters=parameters,
        buffers=buffers,
        macs=size.macs,
        step=size.step,
        samples=(batch,) * minibatches,
        image_bytes=3 * 32 * 32,
        validation_samples=validation,
    )


def _run(experiment: Experiment, workload: Workload, calibration: Calibration) -> Simulated:
    """Simulate the experiment without stragglers."""
    return simulate(experiment, calibration.calm(), workload=workload)


def _stages_s(run: Simulated, step: str, stages: tuple[str, ...] | None = None) -> float:
    """Return a worker's seconds per minibatch in `stages`, by default in all but those that the papers leave out (checkpoint, evaluate)."""
    kept = {name: seconds for name, (seconds, _) in run.steps[step].stages.items()}
    names = stages or tuple(name for name in kept if name not in ("checkpoint", "evaluate"))
    return sum(kept.get(name, 0.0) for name in names) / (run.experiment.workers * run.workload.minibatches)


def function_s(row: Row, calibration: Calibration) -> float:
    """Return the projected figure of a row of the 2025 paper's Table 2: seconds of one function, which computes one batch; for GPUs the
    epoch's seconds.
    """
    figures, architecture = row.figures, row.figures["architecture"]
    model = VARIANT[figures["model"]]
    workload = _workload(model, minibatches=figures["functions_per_worker"])
    if architecture == "gpu":
        gpu = Gpu(instances=4, instance_type=figures["instance_type"])
        return _run(_experiment("gpu", model, gpu=gpu), workload, calibration).epoch_s
    exchange = Exchange(minibatches_per_invocation=1)
    run = _run(
        _experiment(architecture, model, memory_mb=figures["memory_mb"], exchange=exchange), workload, calibration
    )
    return run.steps["compute_gradients"].mean_s if architecture == "spirt" else _stages_s(run, "train")


def communication_s(row: Row, calibration: Calibration) -> float:
    """Return a worker's projected seconds of communication in a round (2025, section 4.2)."""
    model = VARIANT[row.figures["model"]]
    workers = row.figures.get("workers", WORKERS_OF_THE_HIGHEST)
    run = _run(
        _experiment(row.figures["architecture"], model, workers=workers), _workload(model, minibatches=2), calibration
    )
    return _stages_s(run, "train", COMMUNICATION)


def in_database_s(row: Row, calibration: Calibration, compute: str) -> float:
    """Return the projected seconds of averaging or update (2025, section 4.2). `compute`: "fetch_s" for fetching the vectors, else inside
    the database.
    """
    model, step = VARIANT[row.figures["model"]], {"averaging": "average_in_database", "update": "update_model"}
    database = Database(compute="fetch" if compute == "fetch_s" else "in_database")
    run = _run(_experiment("spirt", model, database=database), _workload(model, minibatches=24), calibration)
    stage = "average" if row.figures["stage"] == "averaging" else "update"
    return run.steps[step[row.figures["stage"]]].stage_mean_s(stage)


def peer_s(row: Row, calibration: Calibration, figure: str) -> float:
    """Return a peer's projected seconds of a stage in an epoch (2023, Table I), or per batch for "compute". `figure`: the column."""
    workload = _workload(row.figures["model"], minibatches=30, validation=DATA["cifar10"].test or 0)
    peers = PeerToPeer(instance_type=row.figures["instance_type"])
    run = _run(_experiment("p2p_instance", workload.model, p2p=peers, epochs=AVERAGED_EPOCHS), workload, calibration)
    seconds = run.steps["train_peer"].stage_mean_s(STAGES[row.figures["columns"].index(figure)])
    return seconds / workload.minibatches if figure == "compute" else seconds


def batches_s(row: Row, calibration: Calibration) -> float:
    """Return the projected seconds of computing an epoch's batches (2023, Tables II and III): side by side in functions, or one after
    another.
    """
    figures = row.figures
    batches = figures.get("batches") or next(
        r.figures["batches"] for r in rows(paper=B, table="Table II") if r.row == row.row
    )
    workload = _workload("vgg11", minibatches=batches, batch=figures["batch_size"])
    peers = PeerToPeer(instance_type=figures["instance_type"])
    memory_mb = figures.get("memory_mb", 1_769)
    run = _run(
        _experiment(figures["architecture"], "vgg11", memory_mb=memory_mb, batch=figures["batch_size"], p2p=peers),
        workload,
        calibration,
    )
    if figures["architecture"] == "p2p_serverless":
        return run.steps["compute_gradient"].mean_s
    return run.steps["train_peer"].stage_mean_s("compute gradients")


# --- papers deployments -----------------------------------------------------------------------------------------------
# The papers' deployments, fitted to their rows that are not held out (config/held-out.yaml): a row that is, `_row` refuses.


def _row(paper: str, table: str, name: str) -> Row:
    """Return a row that fits may see. Raises AssertionError if it is held out."""
    found = next(each for each in rows(paper=paper, table=table) if each.row == name)
    assert not is_held_out(found), f"{found.source} is held out"
    return found


def _tensors(latency: bool) -> Callable[[Calibration, float], Calibration]:
    """Return a setter for the database's latency, or for its seconds per byte."""

    def change(calibration: Calibration, value: float) -> Calibration:
        known = calibration.tensors
        tensors = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
        return replace(calibration, tensors=tensors)

    return change


def _rate(seconds_per_byte: float) -> float:
    """Return bytes per second for seconds per byte; infinite for 0."""
    return 1 / seconds_per_byte if seconds_per_byte > 0 else float("inf")


def _set(name: str) -> Callable[[Calibration, float], Calibration]:
    """Return a setter for the calibration's field `name`."""
    return lambda calibration, value: replace(calibration, **{name: value})  # type: ignore[arg-type]


def _inverse(name: str) -> Callable[[Calibration, float], Calibration]:
    """Return a setter for the calibration's field `name` from its inverse, such as bytes per second from seconds per byte."""
    return lambda calibration, value: replace(calibration, **{name: _rate(value)})  # type: ignore[arg-type]


def _computing(calibration: Calibration, value: float) -> Calibration:
    """Set the speed of a function's vCPU. `value`: how many times slower it is than the reference."""
    return replace(calibration, function_speed=_rate(value))


@cache
def lambdaml() -> Calibration:
    """Return the 2025 paper's deployment of AllReduce, ScatterReduce and MLLess, also used for SPIRT's computing. Its store is fitted to
    ScatterReduce in section 4.2, its computing to Table 2.
    """
    base = replace(
        ASSUMED,
        name="2025 paper",
        basis=("fitted to the 2025 paper's rows that are not held out",),
        tensors=Service(latency_s=0.0),
        arithmetic_bytes_s=ASSUMED.arithmetic_bytes_s,
        sample_s=REFERENCE_SAMPLE_S,
    )
    scatter = [_row(A, "Section 4.2", f"ScatterReduce / {model}") for model in ("ResNet-50", "MobileNet")]
    observed = [PrintedFigure(r.figures["communication_s"], lambda c, r=r: communication_s(r, c)) for r in scatter]  # type: ignore[misc]
    stored = fit_unknowns(base, [_tensors(True), _tensors(False)], observed, probe=1e-6)
    functions = [
        _row(A, "Table 2", name) for name in ("MobileNet / SPIRT", "MobileNet / AllReduce", "ResNet-18 / ScatterReduce")
    ]
    timed = [PrintedFigure(r.figures["function_s"], lambda c, r=r: function_s(r, c)) for r in functions]  # type: ignore[misc]
    computed = fit_unknowns(stored, [_set("function_batch_s"), _computing], timed)
    mlless = _row(A, "Table 2", "ResNet-18 / MLLess")
    return fit_unknowns(
        computed, [_set("supervisor_s")], [PrintedFigure(mlless.figures["function_s"], lambda c: function_s(mlless, c))]
    )


@cache
def spirt() -> Calibration:
    """Return the 2025 paper's deployment of SPIRT: `lambdaml` with the time of averaging (section 4.2) fitted, both fetched and inside the
    database.
    """
    averaging = _row(A, "Section 4.2", "SPIRT averaging / ResNet-18")
    naive = PrintedFigure(averaging.figures["fetch_s"], lambda c: in_database_s(averaging, c, "fetch_s"))
    inside = PrintedFigure(averaging.figures["in_database_s"], lambda c: in_database_s(averaging, c, "in_database_s"))
    fetching = fit_unknowns(lambdaml(), [_inverse("arithmetic_bytes_s")], [naive], probe=1e-6)
    return fit_unknowns(fetching, [_inverse("database_bytes_s")], [inside], probe=1e-6)


@cache
def peers() -> Calibration:
    """Return the 2023 paper's deployment of peers, fitted to Table I on MNIST: each model's computing, broker, object store, and a peer's
    own work.
    """
    names = ("SqueezeNet 1.1 / MNIST", "MobileNet V3 Small / MNIST", "VGG-11 / MNIST")
    squeezenet, mobilenet, vgg = table = [_row(B, "Table I", name) for name in names]

    def seen(row: Row, figure: str) -> PrintedFigure:
        """Return a stage's printed time with the function that projects it."""
        printed = row.figures["wall_s"][row.figures["columns"].index(figure)]
        return PrintedFigure(printed, lambda c: peer_s(row, c, figure))

    found = replace(
        ASSUMED, name="2023 paper, Table I", basis=("fitted to the 2023 paper's Table I on MNIST",), instance_bus=FREE
    )
    for row in table:
        model = row.figures["model"]

        def sample(calibration: Calibration, value: float, model: str = model) -> Calibration:
            return replace(calibration, sample_s={**calibration.sample_s, model: value})

        found = fit_unknowns(found, [sample], [seen(row, "compute")])
    found = fit_unknowns(found, [_inverse("arithmetic_bytes_s")], [seen(row, "update") for row in table], probe=1e-9)

    def bus(latency: bool) -> Callable[[Calibration, float], Calibration]:
        def change(calibration: Calibration, value: float) -> Calibration:
            known = calibration.instance_bus
            new = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
            return replace(calibration, instance_bus=new, bus=replace(calibration.bus, host_bytes_s=float("inf")))

        return change

    def objects(calibration: Calibration, value: float) -> Calibration:
        return replace(calibration, instance_objects=replace(calibration.instance_objects, client_bytes_s=_rate(value)))

    small = (squeezenet, mobilenet)  # within the broker's limit; VGG-11 goes through the object store
    found = fit_unknowns(found, [bus(True), bus(False)], [seen(row, "send") for row in small], probe=1e-6)
    found = fit_unknowns(found, [objects], [seen(vgg, "send"), seen(vgg, "receive")], probe=1e-6)
    found = fit_unknowns(found, [_set("mailbox_s")], [seen(row, "receive") for row in small])
    return fit_unknowns(found, [_set("evaluate_share")], [seen(row, "convergence") for row in table])


@cache
def vgg_functions() -> Calibration:
    """Return the 2023 paper's deployment of VGG-11 in functions, fitted to Table II. Every function has one thread, so memory beyond one
    vCPU adds no speed.
    """
    table = [_row(B, "Table II", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED,
        name="2023 paper, Table II",
        basis=("fitted to the 2023 paper's Table II",),
        objects=FREE,
        torch_step_s=0.0,
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fit_unknowns(base, [_set("function_batch_s"), _sample_of_vgg], observed)


@cache
def vgg_instances() -> Calibration:
    """Return the 2023 paper's deployment of VGG-11 on an instance, fitted to Table III."""
    table = [_row(B, "Table III", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED, name="2023 paper, Table III", basis=("fitted to the 2023 paper's Table III",), instance_objects=FREE
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fit_unknowns(base, [_set("instance_batch_s"), _sample_of_vgg], observed)


def _sample_of_vgg(calibration: Calibration, value: float) -> Calibration:
    """Set VGG-11's seconds per sample, and forget those of other models."""
    return replace(calibration, sample_s={"vgg11": value})


@cache
def gpus() -> Calibration:
    """Return the 2025 paper's GPU fleet: seconds per batch fitted to MobileNet's epoch, the object store as for `peers`."""
    row = _row(A, "Table 2", "MobileNet / GPU")
    base = replace(
        ASSUMED,
        name="2025 paper, GPU",
        basis=("fitted to the 2025 paper's MobileNet epoch",),
        instance_objects=peers().instance_objects,
    )
    return fit_unknowns(
        base, [_set("gpu_batch_s")], [PrintedFigure(row.figures["epoch_s"], lambda c: function_s(row, c))]
    )


def calibration(paper: str, architecture: str) -> Calibration:
    """Return the paper's deployment of an architecture. `paper`: one of PAPERS."""
    if paper == B:
        return peers()
    return {"gpu": gpus, "spirt": spirt}.get(architecture, lambdaml)()


# --- judgement --------------------------------------------------------------------------------------------------------
# The simulator judged: every figure that it can know of the papers' rows beside what was printed.
#
# The headline counts rows held out alone.

Figures = Mapping[str, float]


@dataclass(frozen=True)
class JudgedFigure:
    """A printed figure of a row beside its projection. `held_out`: the fits have not seen it."""

    row: Row
    figure: str
    printed: float
    projected: float
    held_out: bool

    @property
    def error(self) -> float:
        """Relative error of the projection, as a positive number."""
        return abs(self.projected / self.printed - 1)


def projections(row: Row) -> Figures:
    """Return the projected figures of a row in seconds, by name; empty if the simulator knows none of them."""
    figures = row.figures
    match (row.paper, row.table):
        case (str(), "Table 2") if row.paper == A:
            name = "epoch_s" if figures["architecture"] == "gpu" else "function_s"
            fleet = {"gpu": gpus}.get(figures["architecture"], lambdaml)()
            return {name: function_s(row, fleet)}
        case (str(), "Section 4.2") if "stage" in figures:
            return {name: in_database_s(row, spirt(), name) for name in ("fetch_s", "in_database_s")}
        case (str(), "Section 4.2") if "communication_s" in figures:
            return {"communication_s": communication_s(row, lambdaml())}
        case (str(), "Table I"):
            return {f"wall_s.{name}": peer_s(row, peers(), name) for name in figures["columns"]}
        case (str(), "Table II"):
            return {"compute_s": batches_s(row, vgg_functions())}
        case (str(), "Table III"):
            return {"compute_s": batches_s(row, vgg_instances())}
    return {}


@cache
def judge_figures() -> tuple[JudgedFigure, ...]:
    """Return every figure that can be projected, in the order of the file, including those that were fitted to."""
    found = []
    for row in rows():
        for figure, value in projections(row).items():
            name, _, part = figure.partition(".")
            printed = row.figures[name]
            if part:
                printed = printed[row.figures["columns"].index(part)]
            found.append(JudgedFigure(row, figure, float(printed), value, is_held_out(row)))
    return tuple(found)


def row_errors(*, held_out_rows: bool = True) -> dict[str, float]:
    """Return the median of each row's errors, by the row's source. `held_out_rows`: over held-out figures, else over the others."""
    errors: dict[str, list[float]] = {}
    for each in judge_figures():
        if each.held_out == held_out_rows:
            errors.setdefault(each.row.source, []).append(each.error)
    return {source: median(found) for source, found in errors.items()}


def median_error() -> float:
    """Return the median error over the rows held out: the headline number."""
    return median(row_errors().values())


def headline() -> str:
    """Return the headline as text: errors over the rows held out and over their figures, with the worst."""
    errors, figures = row_errors(), [each.error for each in judge_figures() if each.held_out]
    off = sum(each > 0.15 for each in figures)
    return (
        f"Error over the {len(errors)} rows held out: {of_errors(list(errors.values()))} (goal: a median of at most 15 %). "
        f"Over their {len(figures)} figures by themselves: {of_errors(figures)}, {off} of them off by more than 15 %."
    )
