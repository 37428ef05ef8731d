"""The papers' deployments, fitted to their rows that are not held out (config/held-out.yaml): a row that is, `_row` refuses."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from crossover.calibration.fitting import PrintedFigure, fitted
from crossover.calibration.papers import (
    PAPERS,
    batches_s,
    communication_s,
    function_s,
    in_database_s,
    is_held_out,
    peer_s,
)
from crossover.reports.published import Row, rows
from crossover.simulation.calibration import ASSUMED, FREE, REFERENCE_SAMPLE_S, Calibration
from crossover.simulation.services import Service

A, B = PAPERS


def _row(paper: str, table: str, name: str) -> Row:
    """A calibration row. AssertionError for one that is held out: a fit must not see it."""
    found = next(each for each in rows(paper=paper, table=table) if each.row == name)
    assert not is_held_out(found), f"{found.source} is held out"
    return found


def _tensors(latency: bool) -> Callable[[Calibration, float], Calibration]:
    def change(calibration: Calibration, value: float) -> Calibration:
        known = calibration.tensors
        tensors = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
        return replace(calibration, tensors=tensors)

    return change


def _rate(seconds_per_byte: float) -> float:
    return 1 / seconds_per_byte if seconds_per_byte > 0 else float("inf")


def _set(name: str) -> Callable[[Calibration, float], Calibration]:
    return lambda calibration, value: replace(calibration, **{name: value})  # type: ignore[arg-type]


def _inverse(name: str) -> Callable[[Calibration, float], Calibration]:
    return lambda calibration, value: replace(calibration, **{name: _rate(value)})  # type: ignore[arg-type]


def _computing(calibration: Calibration, value: float) -> Calibration:
    """`value`: how much slower a function's vCPU is than the reference."""
    return replace(calibration, function_speed=_rate(value))


@cache
def lambdaml() -> Calibration:
    """2025: AllReduce, ScatterReduce, MLLess and SPIRT's computing. The store from ScatterReduce in section 4.2, computing from Table 2."""
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
    stored = fitted(base, [_tensors(True), _tensors(False)], observed, probe=1e-6)
    functions = [
        _row(A, "Table 2", name) for name in ("MobileNet / SPIRT", "MobileNet / AllReduce", "ResNet-18 / ScatterReduce")
    ]
    timed = [PrintedFigure(r.figures["function_s"], lambda c, r=r: function_s(r, c)) for r in functions]  # type: ignore[misc]
    computed = fitted(stored, [_set("function_batch_s"), _computing], timed)
    mlless = _row(A, "Table 2", "ResNet-18 / MLLess")
    return fitted(
        computed, [_set("supervisor_s")], [PrintedFigure(mlless.figures["function_s"], lambda c: function_s(mlless, c))]
    )


@cache
def spirt() -> Calibration:
    """2025: SPIRT's database, naive and inside, from the averaging of section 4.2; else as `lambdaml`."""
    averaging = _row(A, "Section 4.2", "SPIRT averaging / ResNet-18")
    naive = PrintedFigure(averaging.figures["fetch_s"], lambda c: in_database_s(averaging, c, "fetch_s"))
    inside = PrintedFigure(averaging.figures["in_database_s"], lambda c: in_database_s(averaging, c, "in_database_s"))
    fetching = fitted(lambdaml(), [_inverse("arithmetic_bytes_s")], [naive], probe=1e-6)
    return fitted(fetching, [_inverse("database_bytes_s")], [inside], probe=1e-6)


@cache
def peers() -> Calibration:
    """2023, Table I, on MNIST: each model's computing, broker and object store, a peer's own work."""
    names = ("SqueezeNet 1.1 / MNIST", "MobileNet V3 Small / MNIST", "VGG-11 / MNIST")
    squeezenet, mobilenet, vgg = table = [_row(B, "Table I", name) for name in names]

    def seen(row: Row, figure: str) -> PrintedFigure:
        printed = row.figures["wall_s"][row.figures["columns"].index(figure)]
        return PrintedFigure(printed, lambda c: peer_s(row, c, figure))

    found = replace(
        ASSUMED, name="2023 paper, Table I", basis=("fitted to the 2023 paper's Table I on MNIST",), instance_bus=FREE
    )
    for row in table:
        model = row.figures["model"]

        def sample(calibration: Calibration, value: float, model: str = model) -> Calibration:
            return replace(calibration, sample_s={**calibration.sample_s, model: value})

        found = fitted(found, [sample], [seen(row, "compute")])
    found = fitted(found, [_inverse("arithmetic_bytes_s")], [seen(row, "update") for row in table], probe=1e-9)

    def bus(latency: bool) -> Callable[[Calibration, float], Calibration]:
        def change(calibration: Calibration, value: float) -> Calibration:
            known = calibration.instance_bus
            new = replace(known, latency_s=value) if latency else replace(known, client_bytes_s=_rate(value))
            return replace(calibration, instance_bus=new, bus=replace(calibration.bus, host_bytes_s=float("inf")))

        return change

    def objects(calibration: Calibration, value: float) -> Calibration:
        return replace(calibration, instance_objects=replace(calibration.instance_objects, client_bytes_s=_rate(value)))

    small = (squeezenet, mobilenet)  # within the broker's limit; VGG-11 goes through the object store
    found = fitted(found, [bus(True), bus(False)], [seen(row, "send") for row in small], probe=1e-6)
    found = fitted(found, [objects], [seen(vgg, "send"), seen(vgg, "receive")], probe=1e-6)
    found = fitted(found, [_set("mailbox_s")], [seen(row, "receive") for row in small])
    return fitted(found, [_set("evaluate_share")], [seen(row, "convergence") for row in table])


@cache
def vgg_functions() -> Calibration:
    """2023, Table II: VGG-11 in functions. One thread, as everywhere here: memory above a vCPU's worth adds nothing."""
    table = [_row(B, "Table II", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED,
        name="2023 paper, Table II",
        basis=("fitted to the 2023 paper's Table II",),
        objects=FREE,
        torch_step_s=0.0,
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fitted(base, [_set("function_batch_s"), _sample_of_vgg], observed)


@cache
def vgg_instances() -> Calibration:
    """2023, Table III: VGG-11 on the instance."""
    table = [_row(B, "Table III", name) for name in ("batch 1024", "batch 128")]
    base = replace(
        ASSUMED, name="2023 paper, Table III", basis=("fitted to the 2023 paper's Table III",), instance_objects=FREE
    )
    observed = [PrintedFigure(r.figures["compute_s"], lambda c, r=r: batches_s(r, c)) for r in table]  # type: ignore[misc]
    return fitted(base, [_set("instance_batch_s"), _sample_of_vgg], observed)


def _sample_of_vgg(calibration: Calibration, value: float) -> Calibration:
    return replace(calibration, sample_s={"vgg11": value})


@cache
def gpus() -> Calibration:
    """2025: the GPU fleet. The object store as peers see it (2023, Table I), the rest per batch from MobileNet's epoch."""
    row = _row(A, "Table 2", "MobileNet / GPU")
    base = replace(
        ASSUMED,
        name="2025 paper, GPU",
        basis=("fitted to the 2025 paper's MobileNet epoch",),
        instance_objects=peers().instance_objects,
    )
    return fitted(base, [_set("gpu_batch_s")], [PrintedFigure(row.figures["epoch_s"], lambda c: function_s(row, c))])


def calibration(paper: str, architecture: str) -> Calibration:
    """The paper's deployment of an architecture."""
    if paper == B:
        return peers()
    return {"gpu": gpus, "spirt": spirt}.get(architecture, lambdaml)()
