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
from crossover.reports.display import describe_error_spread
from crossover.reports.published import Row, rows
from crossover.simulation.calibration import ASSUMED, FREE, REFERENCE_SAMPLE_S, Calibration, Service
from crossover.simulation.simulate import Simulated, simulate
from crossover.simulation.workload import MODEL_SIZES, Workload

# --- fitting ----------------------------------------------------------------------------------------------------------

Setter = Callable[[Calibration, float], Calibration]


@dataclass(frozen=True)
class PrintedFigure:
    """A figure that a paper prints, in seconds (`printed`). `project`: function that returns the simulator's value of it for
    a calibration.
    """

    printed: float
    project: Callable[[Calibration], float]


@dataclass(frozen=True)
class FittedFigure:
    """A field of the calibration whose value was fitted to measurements. `figure`: dotted name of the field; `value`, `unit`: what was
    fitted; `source`: the measurements.
    """

    figure: str
    value: float
    unit: str
    source: str

    def as_json(self) -> dict[str, Any]:
        """Return this figure as {figure, value, unit, source}, with its value rounded to four significant digits."""
        return {"figure": self.figure, "value": float(f"{self.value:.4g}"), "unit": self.unit, "source": self.source}


@dataclass(frozen=True)
class FitResidual:
    """A measured time beside the time that the fitted figures predict for it, `measured_s` and `fitted_s`. `part`: what was timed;
    `session`, `level`: the measurement's session and row; `functions`: how many ran at the same time.
    """

    part: str
    session: str
    level: str
    functions: int
    measured_s: float
    fitted_s: float

    def as_json(self) -> dict[str, Any]:
        """Return this residual as a dictionary, with the relative error of the fitted time."""
        return {
            **asdict(self),
            "measured_s": float(f"{self.measured_s:.4g}"),
            "fitted_s": float(f"{self.fitted_s:.4g}"),
            "error": round(self.fitted_s / self.measured_s - 1, 3),
        }


def fit_unknowns(
    base: Calibration, unknowns: Sequence[Setter], observed: Sequence[PrintedFigure], *, probe: float = 1.0
) -> Calibration:
    """Return `base` with its unknown figures set to the values that fit the observed figures best. No value is negative.

    `unknowns`: functions, each of which takes a calibration and a value, and returns the calibration with one figure set to it; `observed`:
    printed figures to fit to; `probe`: change of an unknown from 0 by which its slope is measured, because the observed figures are assumed
    to be linear in the unknowns.
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
    values = (
        _solve_for_one(slopes, left)
        if len(unknowns) == 1
        else _solve_for_several(slopes, left, [each.printed for each in observed])
    )
    for unknown, value in zip(unknowns, values, strict=True):
        found = unknown(found, value)
    return found


def _solve_for_one(slopes: Sequence[Sequence[float]], left: Sequence[float]) -> list[float]:
    """Return the value of a single unknown in a list: the median over the figures, at least 0. `slopes`: for each figure its growth per
    unit of the unknown; `left`: the part of each figure that is not explained with the unknown at 0.
    """
    return [max(0.0, median(rest / slope[0] for slope, rest in zip(slopes, left, strict=True)))]


def _solve_for_several(
    slopes: Sequence[Sequence[float]], left: Sequence[float], printed: Sequence[float]
) -> list[float]:
    """Return the values of several unknowns by least squares of relative errors. Negative values are set to 0 and the rest is fitted again.
    `slopes`: for each figure its growth per unit of each unknown; `left`: the part of each figure that is not explained with the unknowns
    at 0; `printed`: the printed figures.
    """
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
# The papers' rows as runs: the experiment of a printed row, and the simulated seconds to compare with its figures.

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
def load_held_out_figures() -> Mapping[tuple[str, str, str], tuple[str, ...]]:
    """Return, from config/held-out.yaml, the printed figures that fits must not use: names of figures by (paper, table, row). Read at the
    first call; every caller gets the same mapping.
    """
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {(each["paper"], each["table"], each["row"]): tuple(each["figures"]) for each in plain["held_out"]}


@cache
def _load_held_out_cells() -> Mapping[tuple[str, str, int, int], bool]:
    """Return, from config/held-out.yaml, whether each measured experiment is held out from the fits, by (gradient, design, aggregators,
    memory in MB).
    """
    plain: dict[str, Any] = yaml.safe_load(HELD_OUT.read_text(encoding="utf-8"))
    return {
        (each["gradient"], each["design"], each["aggregators"], each["memory_mb"]): each["held_out"]
        for each in plain["measured"]
    }


def is_cell_held_out(key: tuple[str, str, int, int]) -> bool:
    """Return True if fits must not use a measured experiment. `key`: its (gradient, design, aggregators, memory in MB). Raises DataError if
    config/held-out.yaml does not list it.
    """
    if key not in _load_held_out_cells():
        raise DataError(
            f"{HELD_OUT.name}: measured: {key} is not listed: which side it is on must be said before it is fitted to"
        )
    return _load_held_out_cells()[key]


def is_held_out(row: Row) -> bool:
    """Return True if config/held-out.yaml lists the paper's row, so that fits must not use it."""
    return (row.paper, row.table, row.row) in load_held_out_figures()


def _build_experiment(
    architecture: str,
    model: str,
    *,
    workers: int = 4,
    memory_mb: int = 2_048,
    batch: int = 512,
    epochs: int = 1,
    **parts: Any,
) -> Experiment:
    """Build the experiment behind a printed row: `workers` workers, plain SGD without momentum, minibatches of `batch` samples. `parts`:
    further sections of the experiment.
    """
    training = Training(model=model, epochs=epochs, batch_size=batch, momentum=0.0)
    functions = Functions(memory_mb={"default": memory_mb})
    return Experiment(
        name="paper", architecture=architecture, workers=workers, training=training, functions=functions, **parts
    )


def _build_workload(model: str, *, minibatches: int, batch: int = 512, validation: int = 0) -> Workload:
    """Build a workload of the papers' batches of CIFAR-sized images. `model`: the project's name of the model; a model in STATED gets the
    parameters that the 2023 paper states. `validation`: number of validation samples.
    """
    size = MODEL_SIZES[model][(3, 32, 32)]
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


def _simulate_calm(experiment: Experiment, workload: Workload, calibration: Calibration) -> Simulated:
    """Simulate the experiment without random stragglers, and return the simulated run."""
    return simulate(experiment, calibration.without_stragglers(), workload=workload)


def _stages_s(run: Simulated, step: str, stages: tuple[str, ...] | None = None) -> float:
    """Return the seconds per worker and minibatch that a simulated run spent in `stages` of a step; by default in all stages except those
    that the papers leave out (checkpoint, evaluate).
    """
    kept = {name: seconds for name, (seconds, _) in run.steps[step].stages.items()}
    names = stages or tuple(name for name in kept if name not in ("checkpoint", "evaluate"))
    return sum(kept.get(name, 0.0) for name in names) / (run.experiment.workers * run.workload.minibatches)


def function_s(row: Row, calibration: Calibration) -> float:
    """Return the simulated seconds of one function for a row of the 2025 paper's Table 2, which computes one batch; if the row is on GPUs,
    the seconds of an epoch instead.
    """
    figures, architecture = row.figures, row.figures["architecture"]
    model = VARIANT[figures["model"]]
    workload = _build_workload(model, minibatches=figures["functions_per_worker"])
    if architecture == "gpu":
        gpu = Gpu(instances=4, instance_type=figures["instance_type"])
        return _simulate_calm(_build_experiment("gpu", model, gpu=gpu), workload, calibration).epoch_s
    exchange = Exchange(minibatches_per_invocation=1)
    run = _simulate_calm(
        _build_experiment(architecture, model, memory_mb=figures["memory_mb"], exchange=exchange), workload, calibration
    )
    return run.steps["compute_gradients"].mean_s if architecture == "spirt" else _stages_s(run, "train")


def communication_s(row: Row, calibration: Calibration) -> float:
    """Return the simulated seconds that a worker communicates in a round, for a row of the 2025 paper's section 4.2."""
    model = VARIANT[row.figures["model"]]
    workers = row.figures.get("workers", WORKERS_OF_THE_HIGHEST)
    run = _simulate_calm(
        _build_experiment(row.figures["architecture"], model, workers=workers),
        _build_workload(model, minibatches=2),
        calibration,
    )
    return _stages_s(run, "train", COMMUNICATION)


def in_database_s(row: Row, calibration: Calibration, compute: str) -> float:
    """Return the simulated mean seconds of the averaging or of the model update, whichever `row` is about (2025 paper, section 4.2).
    `compute`: "fetch_s" if functions fetch the vectors and compute; otherwise the database computes.
    """
    model, step = VARIANT[row.figures["model"]], {"averaging": "average_in_database", "update": "update_model"}
    database = Database(compute="fetch" if compute == "fetch_s" else "in_database")
    run = _simulate_calm(
        _build_experiment("spirt", model, database=database), _build_workload(model, minibatches=24), calibration
    )
    stage = "average" if row.figures["stage"] == "averaging" else "update"
    return run.steps[step[row.figures["stage"]]].stage_mean_s(stage)


def peer_s(row: Row, calibration: Calibration, figure: str) -> float:
    """Return the simulated seconds of one stage of a peer in an epoch, in the setting of `row` (2023 paper, Table I); for the stage
    "compute" the seconds per batch. `figure`: column of the table that names the stage.
    """
    workload = _build_workload(row.figures["model"], minibatches=30, validation=DATA["cifar10"].test or 0)
    peers = PeerToPeer(instance_type=row.figures["instance_type"])
    run = _simulate_calm(
        _build_experiment("p2p_instance", workload.model, p2p=peers, epochs=AVERAGED_EPOCHS), workload, calibration
    )
    seconds = run.steps["train_peer"].stage_mean_s(STAGES[row.figures["columns"].index(figure)])
    return seconds / workload.minibatches if figure == "compute" else seconds


def batches_s(row: Row, calibration: Calibration) -> float:
    """Return the simulated seconds in which a peer's batches of an epoch are computed (2023 paper, Tables II and III): at the same time in
    functions, or one after another on an instance, as the row says.
    """
    figures = row.figures
    batches = figures.get("batches") or next(
        r.figures["batches"] for r in rows(paper=B, table="Table II") if r.row == row.row
    )
    workload = _build_workload("vgg11", minibatches=batches, batch=figures["batch_size"])
    peers = PeerToPeer(instance_type=figures["instance_type"])
    memory_mb = figures.get("memory_mb", 1_769)
    run = _simulate_calm(
        _build_experiment(
            figures["architecture"], "vgg11", memory_mb=memory_mb, batch=figures["batch_size"], p2p=peers
        ),
        workload,
        calibration,
    )
    if figures["architecture"] == "p2p_serverless":
        return run.steps["compute_gradient"].mean_s
    return run.steps["train_peer"].stage_mean_s("compute gradients")


# --- papers deployments -----------------------------------------------------------------------------------------------
# The papers' deployments, fitted to rows that are not held out (config/held-out.yaml); `_find_fit_row` refuses the others.


def _find_fit_row(paper: str, table: str, name: str) -> Row:
    """Return the row called `name` of a paper's table, to be used in a fit. Raises AssertionError if the row is held out from fits,
    StopIteration if there is none of that name.
    """
    found = next(each for each in rows(paper=paper, table=table) if each.row == name)
    assert not is_held_out(found), f"{found.source} is held out"
    return found


def _make_tensor_setter(latency: bool) -> Callable[[Calibration, float], Calibration]:
    """Return a function that sets the tensor database's latency in a calibration, or its seconds per byte if `latency` is false. That
    function takes a calibration and the value, and returns the changed copy.
    """

    def change(calibration: Calibration, value: float) -> Calibration:
        """Return the calibration with the database's latency, or if not `latency` (of the outer call) its seconds per byte, set
        to `value`.
        """
        known = calibration.tensors
        tensors = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_invert(value))
        return replace(calibration, tensors=tensors)

    return change


def _invert(seconds_per_byte: float) -> float:
    """Return bytes per second for `seconds_per_byte`; infinite for 0."""
    return 1 / seconds_per_byte if seconds_per_byte > 0 else float("inf")


def _make_field_setter(name: str) -> Callable[[Calibration, float], Calibration]:
    """Return a function that sets the field `name` of a calibration to a value: it takes both and returns the changed copy."""
    return lambda calibration, value: replace(calibration, **{name: value})  # type: ignore[arg-type]


def _make_inverse_setter(name: str) -> Callable[[Calibration, float], Calibration]:
    """Return a function that sets the field `name` of a calibration to the inverse of a value: bytes per second from seconds per byte."""
    return lambda calibration, value: replace(calibration, **{name: _invert(value)})  # type: ignore[arg-type]


def _set_function_speed(calibration: Calibration, value: float) -> Calibration:
    """Return the calibration with another speed of a function's vCPU. `value`: how many times slower the vCPU is than the reference."""
    return replace(calibration, function_speed=_invert(value))


@cache
def fit_lambdaml() -> Calibration:
    """Return the calibration of the 2025 paper's AllReduce, ScatterReduce and MLLess, also used for SPIRT's computing. Its store is fitted
    to ScatterReduce in section 4.2, its computing to Table 2. Fitted at the first call, then kept.
    """
    base = replace(
        ASSUMED,
        name="2025 paper",
        basis=("fitted to the 2025 paper's rows that are not held out",),
        tensors=Service(latency_s=0.0),
        arithmetic_bytes_s=ASSUMED.arithmetic_bytes_s,
        sample_s=REFERENCE_SAMPLE_S,
    )
    scatter = [_find_fit_row(A, "Section 4.2", f"ScatterReduce / {model}") for model in ("ResNet-50", "MobileNet")]
    observed = [PrintedFigure(r.figures["communication_s"], lambda c, r=r: communication_s(r, c)) for r in scatter]  # type: ignore[misc]
    stored = fit_unknowns(base, [_make_tensor_setter(True), _make_tensor_setter(False)], observed, probe=1e-6)
    functions = [
        _find_fit_row(A, "Table 2", name)
        for name in ("MobileNet / SPIRT", "MobileNet / AllReduce", "ResNet-18 / ScatterReduce")
    ]
    timed = [PrintedFigure(r.figures["function_s"], lambda c, r=r: function_s(r, c)) for r in functions]  # type: ignore[misc]
    computed = fit_unknowns(stored, [_make_field_setter("function_batch_s"), _set_function_speed], timed)
    mlless = _find_fit_row(A, "Table 2", "ResNet-18 / MLLess")
    return fit_unknowns(
        computed,
        [_make_field_setter("supervisor_s")],
        [PrintedFigure(mlless.figures["function_s"], lambda c: function_s(mlless, c))],
    )


@cache
def fit_spirt() -> Calibration:
    """Return the calibration of the 2025 paper's SPIRT: that of `fit_lambdaml`, with the speed of averaging fitted to section 4.2, once in
    functions that fetch the vectors and once inside the database. Fitted at the first call, then kept.
    """
    averaging = _find_fit_row(A, "Section 4.2", "SPIRT averaging / ResNet-18")
    naive = PrintedFigure(averaging.figures["fetch_s"], lambda c: in_database_s(averaging, c, "fetch_s"))
    inside = PrintedFigure(averaging.figures["in_database_s"], lambda c: in_database_s(averaging, c, "in_database_s"))
    fetching = fit_unknowns(fit_lambdaml(), [_make_inverse_setter("arithmetic_bytes_s")], [naive], probe=1e-6)
    return fit_unknowns(fetching, [_make_inverse_setter("database_bytes_s")], [inside], probe=1e-6)


@cache
def fit_peers() -> Calibration:
    """Return the calibration of the 2023 paper's peers, fitted to Table I on MNIST: computing of each model, broker, object store, and a
    peer's own work on a message. Fitted at the first call, then kept.
    """
    names = ("SqueezeNet 1.1 / MNIST", "MobileNet V3 Small / MNIST", "VGG-11 / MNIST")
    squeezenet, mobilenet, vgg = table = [_find_fit_row(B, "Table I", name) for name in names]

    def build_printed_figure(row: Row, figure: str) -> PrintedFigure:
        """Return the printed seconds of one stage, together with a function that simulates them. `figure`: column of Table I."""
        printed = row.figures["wall_s"][row.figures["columns"].index(figure)]
        return PrintedFigure(printed, lambda c: peer_s(row, c, figure))

    found = replace(
        ASSUMED, name="2023 paper, Table I", basis=("fitted to the 2023 paper's Table I on MNIST",), instance_bus=FREE
    )
    for row in table:
        model = row.figures["model"]

        def set_sample_s(calibration: Calibration, value: float, model: str = model) -> Calibration:
            """Return the calibration with the seconds per sample of the model `model` set to `value`."""
            return replace(calibration, sample_s={**calibration.sample_s, model: value})

        found = fit_unknowns(found, [set_sample_s], [build_printed_figure(row, "compute")])
    found = fit_unknowns(
        found,
        [_make_inverse_setter("arithmetic_bytes_s")],
        [build_printed_figure(row, "update") for row in table],
        probe=1e-9,
    )

    def make_bus_setter(latency: bool) -> Callable[[Calibration, float], Calibration]:
        """Return a function that sets the message broker's latency in a calibration, or its seconds per byte if `latency` is false. That
        function takes a calibration and the value, and returns the changed copy.
        """

        def change(calibration: Calibration, value: float) -> Calibration:
            """Return the calibration with the broker's latency, or if not `latency` (of the outer call) its seconds per byte, set to
            `value`, and with no limit of its host.
            """
            known = calibration.instance_bus
            new = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_invert(value))
            return replace(calibration, instance_bus=new, bus=replace(calibration.bus, host_bytes_s=float("inf")))

        return change

    def set_object_speed(calibration: Calibration, value: float) -> Calibration:
        """Return the calibration with the object store's speed set so that a byte takes `value` seconds."""
        return replace(
            calibration, instance_objects=replace(calibration.instance_objects, client_bytes_s=_invert(value))
        )

    small = (squeezenet, mobilenet)  # within the broker's limit; VGG-11 goes through the object store
    found = fit_unknowns(
        found,
        [make_bus_setter(True), make_bus_setter(False)],
        [build_printed_figure(row, "send") for row in small],
        probe=1e-6,
    )
    found = fit_unknowns(
        found, [set_object_speed], [build_printed_figure(vgg, "send"), build_printed_figure(vgg, "receive")], probe=1e-6
    )
    found = fit_unknowns(
        found, [_make_field_setter("mailbox_s")], [build_printed_figure(row, "receive") for row in small]
    )
    return fit_unknowns(
        found, [_make_field_setter("evaluate_share")], [build_printed_figure(row, "convergence") for row in table]
    )


@cache
def fit_vgg_functions() -> Calibration:
    """Return the calibration of the 2023 paper's VGG-11 in functions, fitted to Table II. Every function has one thread, so memory beyond
    one vCPU adds no speed. Fitted at the first call, then kept.
    """
    table = [_find_fit_row(B, "Table II", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED,
        name="2023 paper, Table II",
        basis=("fitted to the 2023 paper's Table II",),
        objects=FREE,
        torch_step_s=0.0,
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fit_unknowns(base, [_make_field_setter("function_batch_s"), _set_vgg_sample_s], observed)


@cache
def fit_vgg_instances() -> Calibration:
    """Return the calibration of the 2023 paper's VGG-11 on an instance, fitted to Table III. Fitted at the first call, then kept."""
    table = [_find_fit_row(B, "Table III", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED, name="2023 paper, Table III", basis=("fitted to the 2023 paper's Table III",), instance_objects=FREE
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fit_unknowns(base, [_make_field_setter("instance_batch_s"), _set_vgg_sample_s], observed)


def _set_vgg_sample_s(calibration: Calibration, value: float) -> Calibration:
    """Return the calibration with VGG-11's seconds per sample set to `value`, and without those of other models."""
    return replace(calibration, sample_s={"vgg11": value})


@cache
def fit_gpus() -> Calibration:
    """Return the calibration of the 2025 paper's GPU fleet. Its seconds per batch are fitted to MobileNet's epoch; its object store is that
    of `fit_peers`. Fitted at the first call, then kept.
    """
    row = _find_fit_row(A, "Table 2", "MobileNet / GPU")
    base = replace(
        ASSUMED,
        name="2025 paper, GPU",
        basis=("fitted to the 2025 paper's MobileNet epoch",),
        instance_objects=fit_peers().instance_objects,
    )
    return fit_unknowns(
        base, [_make_field_setter("gpu_batch_s")], [PrintedFigure(row.figures["epoch_s"], lambda c: function_s(row, c))]
    )


def calibration_of(paper: str, architecture: str) -> Calibration:
    """Return the calibration fitted to an architecture of one paper. `paper`: one of PAPERS; for the 2023 paper it is the same for all
    architectures.
    """
    if paper == B:
        return fit_peers()
    return {"gpu": fit_gpus, "spirt": fit_spirt}.get(architecture, fit_lambdaml)()


# --- judgement --------------------------------------------------------------------------------------------------------
# Every printed figure that the simulator can project, beside its projection. The published error counts only rows that are held out.

Figures = Mapping[str, float]


@dataclass(frozen=True)
class ComparedFigure:
    """A printed figure of a paper's row beside the simulator's value for it. `row`: the paper's row; `figure`: the figure's name in it;
    `printed`, `projected`: both values, in seconds; `held_out`: True if no fit has used the row.
    """

    row: Row
    figure: str
    printed: float
    projected: float
    held_out: bool

    @property
    def error(self) -> float:
        """Relative error of the projection, as a positive number."""
        return abs(self.projected / self.printed - 1)


def project_row(row: Row) -> Figures:
    """Return the simulator's values for a paper's row in seconds, by name of the figure; {} if it can project none of them."""
    figures = row.figures
    match (row.paper, row.table):
        case (str(), "Table 2") if row.paper == A:
            name = "epoch_s" if figures["architecture"] == "gpu" else "function_s"
            fleet = {"gpu": fit_gpus}.get(figures["architecture"], fit_lambdaml)()
            return {name: function_s(row, fleet)}
        case (str(), "Section 4.2") if "stage" in figures:
            return {name: in_database_s(row, fit_spirt(), name) for name in ("fetch_s", "in_database_s")}
        case (str(), "Section 4.2") if "communication_s" in figures:
            return {"communication_s": communication_s(row, fit_lambdaml())}
        case (str(), "Table I"):
            return {f"wall_s.{name}": peer_s(row, fit_peers(), name) for name in figures["columns"]}
        case (str(), "Table II"):
            return {"compute_s": batches_s(row, fit_vgg_functions())}
        case (str(), "Table III"):
            return {"compute_s": batches_s(row, fit_vgg_instances())}
    return {}


@cache
def compare_figures() -> tuple[ComparedFigure, ...]:
    """Return all printed figures that the simulator can project, each beside its projection, in the order of the papers' file, including
    those that were used in fits. Fitted and simulated at the first call, then kept.
    """
    found = []
    for row in rows():
        for figure, value in project_row(row).items():
            name, _, part = figure.partition(".")
            printed = row.figures[name]
            if part:
                printed = printed[row.figures["columns"].index(part)]
            found.append(ComparedFigure(row, figure, float(printed), value, is_held_out(row)))
    return tuple(found)


def row_errors(*, held_out_rows: bool = True) -> dict[str, float]:
    """Return the relative errors of the simulator by row of the papers' tables (the row's source), as the median over the row's figures.
    `held_out_rows`: True for the rows that no fit has used, False for the rows used in fits.
    """
    errors: dict[str, list[float]] = {}
    for each in compare_figures():
        if each.held_out == held_out_rows:
            errors.setdefault(each.row.source, []).append(each.error)
    return {source: median(found) for source, found in errors.items()}


def median_error() -> float:
    """Return the median, over all held-out rows, of the rows' relative errors."""
    return median(row_errors().values())


def describe_errors() -> str:
    """Return one paragraph for people about the simulator's relative errors over the held-out rows and over their single figures."""
    errors, figures = row_errors(), [each.error for each in compare_figures() if each.held_out]
    off = sum(each > 0.15 for each in figures)
    return (
        f"Error over the {len(errors)} rows held out: {describe_error_spread(list(errors.values()))} (goal: a median of at most 15 %). "
        f"Over their {len(figures)} figures by themselves: {describe_error_spread(figures)}, {off} of them off by more than 15 %."
    )
