"""What is run for "Cost-Performance Analysis" (2025)."""

from collections.abc import Sequence

from crossover.reports import published
from crossover.reports.published import Row
from crossover.study.papers.measurement import CONFIG, Measurement, Overrides, Scale, smaller
from crossover.validation import load, recipes

PAPER = "comparison-2025"
CONFIGS = {
    "spirt": "spirt-cifar10",
    "mlless": "mlless-cifar10",
    "scatter_reduce": "scatter-reduce-cifar10",
    "all_reduce": "all-reduce-cifar10",
    "gpu": "gpu-cifar10",
}
MODELS = {"mobilenet": "mobilenet", "resnet18": "resnet18_cifar", "resnet50": "resnet50"}  # by our registry's names
BATCH, MINIBATCHES, WORKERS = 512, 24, 4
EXCHANGED_BATCH = 8  # images of a minibatch where the exchange alone is timed: the vector is as long with any number
FILTER_THRESHOLDS = (0.0, 0.7)


def rows(table: str) -> list[Row]:
    return published.rows(paper=PAPER, table=table)


def epoch(row: Row) -> Measurement:
    """Table 2: one epoch of 4 workers x 24 minibatches of 512. Cut down, MobileNet keeps its minibatches of 512."""
    architecture, model = row.figures["architecture"], row.figures["model"]
    config, memory_mb = CONFIGS[architecture], row.figures.get("memory_mb", 0)
    # What our own step needs: the paper's 2,048 MB are fewer, and Lambda ends what passes its limit.
    least_mb = load(CONFIG / f"{config}.yaml").functions.memory_mb["default"]
    fixed: Overrides = (
        "training.epochs=1",
        *([f"training.model={MODELS[model]}"] if model != "mobilenet" else []),
        *([f"functions.memory_mb.default={memory_mb}"] if memory_mb >= least_mb else []),
    )
    # ResNet-18 computes twelve times as much for an image: of that a quarter is enough to time it.
    light = smaller(batch=BATCH, minibatches=MINIBATCHES, keep_batch=True)
    heavy = smaller(batch=BATCH // 4, minibatches=MINIBATCHES, published_batch=BATCH)
    return Measurement(
        key=f"epoch-{_hyphens(architecture)}-{model}",
        config=config,
        fixed=fixed,
        cut=light if model == "mobilenet" else heavy,
        needs_gpu=architecture == "gpu",
    )


def mobilenet_epoch(architecture: str) -> Measurement:
    """Table 2's run of MobileNet, whose stages Table 1 names."""
    (row,) = published.rows(paper=PAPER, table="Table 2", architecture=architecture, model="mobilenet")
    return epoch(row)


def in_database(compute: str) -> Measurement:
    """Section 4.2: SPIRT's averaging and update, `in_database` or `fetch`; neither asks how many images a gradient is of."""
    fixed = ("training.epochs=1", "training.model=resnet18_cifar", f"database.compute={compute}")

    return Measurement(
        key=f"spirt-resnet18-{_hyphens(compute)}",
        config="spirt-cifar10",
        fixed=fixed,
        cut=lambda scale: _exchanged(WORKERS, scale.of(MINIBATCHES, least=6)),
    )


def filtered(threshold: float) -> Measurement:
    """Section 4.2, figure 3: MLLess with its filter, and with a threshold of 0 without."""
    fixed = ("training.epochs=1", f"mlless.threshold={threshold:g}")
    cut = smaller(batch=BATCH, minibatches=MINIBATCHES, least_minibatches=6)
    return Measurement(key=f"mlless-threshold-{threshold:g}", config="mlless-cifar10", fixed=fixed, cut=cut)


def exchange(architecture: str, model: str, workers: int) -> Measurement:
    """Section 4.2, figure 2: communication against workers."""
    fixed = ("training.epochs=1", f"workers={workers}", f"training.model={MODELS[model]}")

    return Measurement(
        key=f"exchange-{_hyphens(architecture)}-{model}-{workers}",
        config=CONFIGS[architecture],
        fixed=fixed,
        cut=lambda scale: _exchanged(workers, scale.of(MINIBATCHES, least=2)),
    )


def _exchanged(workers: int, minibatches: int) -> Overrides:
    images = workers * EXCHANGED_BATCH * minibatches
    return (f"data.limit={images}", f"training.batch_size={EXCHANGED_BATCH}", "data.validation=0.002")


def worker_counts(scale: Scale, model: str) -> tuple[int, ...]:
    """Numbers of workers that figure 2 is measured with: 16 of ResNet-50 want more than 16 GB."""
    if scale.share >= 0.5:
        return (4, 8, 12, 16)
    return (4, 16) if model == "mobilenet" else (4,)


def exchanges(scale: Scale) -> list[Measurement]:
    return [
        exchange(architecture, model, workers)
        for architecture in ("all_reduce", "scatter_reduce")
        for model in ("mobilenet", "resnet50")
        for workers in worker_counts(scale, model)
    ]


def convergence(architecture: str) -> Measurement:
    """Table 3, figure 4: the same recipe for all, so that accuracies can be compared; the test split validates."""
    epochs = int(recipes.fast(dataset="cifar10", samples=WORKERS * BATCH)["training.epochs"])
    cut = smaller(batch=BATCH, minibatches=MINIBATCHES, epochs=epochs, least_minibatches=4, least_epochs=2)
    key = f"convergence-{_hyphens(architecture)}"
    return Measurement(key=key, config=CONFIGS[architecture], fixed=("recipe=fast",), cut=cut)


def of_section_4_2(scale: Scale) -> Sequence[Measurement]:
    return [in_database("fetch"), in_database("in_database"), *of_the_filter(scale), *exchanges(scale)]


def of_the_filter(scale: Scale) -> Sequence[Measurement]:
    return [filtered(threshold) for threshold in FILTER_THRESHOLDS]


def of_table_3(scale: Scale) -> Sequence[Measurement]:
    return [convergence(row.figures["architecture"]) for row in rows("Table 3")]


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
