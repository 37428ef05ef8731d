"""The runs for "Cost-Performance Analysis" (2025)."""

from collections.abc import Sequence

from crossover.reports import published
from crossover.reports.published import Row
from crossover.study.paper_runs import CONFIG, Measurement, Overrides, Scale, make_cut
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
EXCHANGED_BATCH = 8  # images of a minibatch if only the exchange is timed: the vector's length does not depend on them
FILTER_THRESHOLDS = (0.0, 0.7)


def load_rows(table: str) -> list[Row]:
    """Return the printed rows of one table of the 2025 paper. `table`: its name, such as "Table 2" or "Section 4.2"."""
    return published.rows(paper=PAPER, table=table)


def make_epoch_run(row: Row) -> Measurement:
    """Return the measurement for a row of Table 2: one epoch of 4 workers with 24 minibatches of 512 images each. Cut down, MobileNet keeps
    minibatches of 512; other models have smaller ones. The functions have the paper's memory, unless the file in config/ has more.
    """
    architecture, model = row.figures["architecture"], row.figures["model"]
    config, memory_mb = CONFIGS[architecture], row.figures.get("memory_mb", 0)
    # Memory that our own step needs: the paper's 2,048 MB are less, and Lambda kills a function at its limit.
    least_mb = load(CONFIG / f"{config}.yaml").functions.memory_mb["default"]
    fixed: Overrides = (
        "training.epochs=1",
        *([f"training.model={MODELS[model]}"] if model != "mobilenet" else []),
        *([f"functions.memory_mb.default={memory_mb}"] if memory_mb >= least_mb else []),
    )
    # ResNet-18 computes twelve times as much for an image: of that a quarter is enough to time it.
    light = make_cut(batch=BATCH, minibatches=MINIBATCHES, keep_batch=True)
    heavy = make_cut(batch=BATCH // 4, minibatches=MINIBATCHES, published_batch=BATCH)
    return Measurement(
        key=f"epoch-{_hyphenate(architecture)}-{model}",
        config=config,
        fixed=fixed,
        cut=light if model == "mobilenet" else heavy,
        needs_gpu=architecture == "gpu",
        depends_on_values=architecture == "mlless",  # its filter sends what is large
    )


def make_mobilenet_run(architecture: str) -> Measurement:
    """Return the measurement of Table 2 with MobileNet for an architecture; Table 1 shows the stages of the same run."""
    (row,) = published.rows(paper=PAPER, table="Table 2", architecture=architecture, model="mobilenet")
    return make_epoch_run(row)


def make_averaging_run(compute: str) -> Measurement:
    """Return the measurement for section 4.2 that times SPIRT's averaging and update. `compute`: "in_database" or "fetch" (in functions).
    Cut down, it has small minibatches, because these times do not depend on the number of images.
    """
    fixed = ("training.epochs=1", "training.model=resnet18_cifar", f"database.compute={compute}")

    return Measurement(
        key=f"spirt-resnet18-{_hyphenate(compute)}",
        config="spirt-cifar10",
        fixed=fixed,
        cut=lambda scale: _make_exchange_cut(WORKERS, scale.reduce(MINIBATCHES, least=6)),
    )


def make_filter_run(threshold: float) -> Measurement:
    """Return the measurement for section 4.2 and figure 3: one epoch of MLLess with its filter. `threshold`: the filter's; 0 turns the
    filter off.
    """
    fixed = ("training.epochs=1", f"mlless.threshold={threshold:g}")
    cut = make_cut(batch=BATCH, minibatches=MINIBATCHES, least_minibatches=6)
    key = f"mlless-threshold-{threshold:g}"
    return Measurement(key=key, config="mlless-cifar10", fixed=fixed, cut=cut, depends_on_values=True)


def make_exchange_run(architecture: str, model: str, workers: int) -> Measurement:
    """Return the measurement for section 4.2 and figure 2 that times the communication of an architecture (a key of CONFIGS) with a model
    (a key of MODELS) and a number of workers.
    """
    fixed = ("training.epochs=1", f"workers={workers}", f"training.model={MODELS[model]}")

    return Measurement(
        key=f"exchange-{_hyphenate(architecture)}-{model}-{workers}",
        config=CONFIGS[architecture],
        fixed=fixed,
        cut=lambda scale: _make_exchange_cut(workers, scale.reduce(MINIBATCHES, least=2)),
    )


def _make_exchange_cut(workers: int, minibatches: int) -> Overrides:
    """Return the overrides (`field=value`) for a run that times only the exchange: minibatches of 8 images, `minibatches` per worker."""
    images = workers * EXCHANGED_BATCH * minibatches
    return (f"data.limit={images}", f"training.batch_size={EXCHANGED_BATCH}", "data.validation=0.002")


def list_worker_counts(scale: Scale, model: str) -> tuple[int, ...]:
    """Return the numbers of workers to run for figure 2, ascending. Scales below 0.5 use fewer, and for other models than "mobilenet" only
    4, because 16 workers of ResNet-50 need more than 16 GB. `model`: a key of MODELS.
    """
    if scale.share >= 0.5:
        return (4, 8, 12, 16)
    return (4, 16) if model == "mobilenet" else (4,)


def list_exchange_runs(scale: Scale) -> list[Measurement]:
    """Return the measurements for figure 2: each architecture, model and number of workers."""
    return [
        make_exchange_run(architecture, model, workers)
        for architecture in ("all_reduce", "scatter_reduce")
        for model in ("mobilenet", "resnet50")
        for workers in list_worker_counts(scale, model)
    ]


def make_convergence_run(architecture: str) -> Measurement:
    """Return the measurement for Table 3 and figure 4: a training until the end of the recipe `fast`, which is the same for all
    architectures, so that accuracies can be compared.
    """
    epochs = int(recipes.build_fast_values(dataset="cifar10", samples=WORKERS * BATCH)["training.epochs"])
    cut = make_cut(batch=BATCH, minibatches=MINIBATCHES, epochs=epochs, least_minibatches=4, least_epochs=2)
    key = f"convergence-{_hyphenate(architecture)}"
    return Measurement(key=key, config=CONFIGS[architecture], fixed=("recipe=fast",), cut=cut, depends_on_values=True)


def list_section_4_2_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements for section 4.2: averaging, filter and exchange."""
    return [
        make_averaging_run("fetch"),
        make_averaging_run("in_database"),
        *list_filter_runs(scale),
        *list_exchange_runs(scale),
    ]


def list_filter_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements without and with MLLess's filter; they are the same at every `scale`."""
    return [make_filter_run(threshold) for threshold in FILTER_THRESHOLDS]


def list_table_3_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements for Table 3, one per architecture; they are the same at every `scale`."""
    return [make_convergence_run(row.figures["architecture"]) for row in load_rows("Table 3")]


def _hyphenate(name: str) -> str:
    """Return the name with hyphens instead of underscores."""
    return name.replace("_", "-")
