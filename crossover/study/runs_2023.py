"""The runs for "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine Learning" (2023)."""

from collections.abc import Sequence

from crossover.learning import sizes
from crossover.reports import published
from crossover.reports.published import Row
from crossover.study.paper_runs import Measurement, Overrides, Scale, make_cut

PAPER = "p2p-2023"
PEERS = 4
MNIST_IMAGES = sizes.DATA["mnist"].training
BATCH_SIZES = (1024, 512, 128, 64)  # of Tables II and III
MEASURED_SIZE = 128  # below the published size; computing is taken as proportional to the images
PEER_COUNTS = (4, 8, 12)
COMPRESSIONS = ("none", "qsgd")
MODES = ("synchronous", "asynchronous")
STAGES = ("compute gradients", "send", "receive", "model update", "convergence detection")  # in Table I's order
LEAST_HELD = "data.validation=0.002"  # about 100 images


def load_rows(table: str) -> list[Row]:
    """Return the printed rows of one table of the 2023 paper. `table`: its name, such as "Table I"."""
    return published.rows(paper=PAPER, table=table)


def _make_overrides(model: str, dataset: str, batch: int) -> Overrides:
    """Return the overrides (`field=value`) for one epoch of a model on a data set, the last incomplete minibatch included. `batch`:
    minibatch size.
    """
    return (
        "training.epochs=1",
        f"training.model={model}",
        f"training.batch_size={batch}",
        f"data.dataset={dataset}",
        "data.drop_last=false",
    )


def make_stages_run(row: Row, scale: Scale) -> Measurement:
    """Return the measurement for a row of Table I: one epoch of 4 peers with batches of 512 images. Cut down: fewer batches; VGG-11 one
    peer with one batch of 32. VGG-11 on MNIST shares the measurement of Table III. `row`: gives model and data set; `scale`: if below the
    published size, that shared measurement has smaller batches.
    """
    model, dataset = row.figures["model"], row.figures["dataset"]
    if (model, dataset) == ("vgg11", "mnist"):
        return make_gradients_run("p2p_instance", 512 if scale.whole else MEASURED_SIZE)

    def cut(scale: Scale) -> Overrides:
        """Return the overrides (`field=value`) to add below the published size; at that size this is not called. VGG-11 is cut to one peer
        and one batch of 32 images at any scale; other models to the scale's share of the 30 batches, each of 512 images.
        """
        if model != "vgg11":
            return make_cut(batch=512, minibatches=30, dataset=dataset, keep_batch=True)(scale)
        # Four peers of VGG-11 hold and send 515 MB many times and need 20 GB: one peer with 32 images is enough.
        return ("workers=1", "training.batch_size=32", "data.limit=32", LEAST_HELD)

    key = f"stages-{_hyphenate(model)}-{dataset}"
    return Measurement(key=key, config="p2p-instance-cifar10", fixed=_make_overrides(model, dataset, 512), cut=cut)


def make_gradients_run(architecture: str, size: int) -> Measurement:
    """Return the measurement for Tables II and III: one epoch of VGG-11 on MNIST. Cut down: one peer and two batches. `architecture`:
    "p2p_instance" or "p2p_serverless"; `size`: images in a batch, for functions one of BATCH_SIZES, because Table II gives their memory.
    """
    memory = {row.figures["batch_size"]: row.figures["memory_mb"] for row in load_rows("Table II")}
    functions = architecture == "p2p_serverless"
    fixed = (
        *_make_overrides("vgg11", "mnist", size),
        *([f"functions.memory_mb.default={memory[size]}"] if functions else []),
    )

    return Measurement(
        key=f"gradients-{_hyphenate(architecture)}-{size}",
        config=f"{_hyphenate(architecture)}-cifar10",
        fixed=fixed,
        cut=lambda scale: ("workers=1", f"data.limit={2 * size}", LEAST_HELD),
    )


def list_gradient_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements of gradients on the instance and in functions: for every batch size if at the published size, otherwise for
    one.
    """
    sizes = BATCH_SIZES if scale.whole else (MEASURED_SIZE,)
    return [make_gradients_run(kind, size) for kind in ("p2p_instance", "p2p_serverless") for size in sizes]


def make_peers_run(model: str, peers: int) -> Measurement:
    """Return the measurement for figure 4: one epoch on MNIST with `peers` peers and batches of 1,024 images. Cut down: fewer batches, of
    256 images. `model`: name of a built-in model.
    """
    fixed = (*_make_overrides(model, "mnist", 1024), f"workers={peers}")

    def cut(scale: Scale) -> Overrides:
        """Return the overrides (`field=value`) to add below the published size, at which this is not called: minibatches of 256 images, and
        as many of them per peer as the scale leaves.
        """
        count = scale.reduce(MNIST_IMAGES // (1024 * peers))
        return ("training.batch_size=256", f"data.limit={peers * 256 * count}", LEAST_HELD)

    key = f"peers-{_hyphenate(model)}-{peers}"
    return Measurement(key=key, config="p2p-instance-cifar10", fixed=fixed, cut=cut)


def list_figure_4_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements for figure 4, for each model and number of peers. VGG-11 is included only at the published size, because
    twelve peers of it need 40 GB.
    """
    models = ("mobilenet_v3_small", "vgg11") if scale.whole else ("mobilenet_v3_small",)
    return [make_peers_run(model, peers) for model in models for peers in PEER_COUNTS]


def make_compression_run(compression: str, size: int) -> Measurement:
    """Return the measurement for figure 5: one epoch of VGG-11 on MNIST with 4 peers. A run below the published size trains MobileNet V3
    Small, with two batches per peer. `compression`: "none" or "qsgd"; `size`: images in a batch.
    """
    fixed = (*_make_overrides("vgg11", "mnist", size), f"exchange.compression={compression}")

    return Measurement(
        key=f"compression-{compression}-{size}",
        config="p2p-instance-cifar10",
        fixed=fixed,
        cut=lambda scale: ("training.model=mobilenet_v3_small", f"data.limit={PEERS * size * 2}", LEAST_HELD),
    )


def list_figure_5_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements for figure 5, with and without compression: for every batch size if at the published size, otherwise for the
    smallest.
    """
    sizes = BATCH_SIZES if scale.whole else BATCH_SIZES[-1:]
    return [make_compression_run(kind, size) for kind in COMPRESSIONS for size in sizes]


def make_barrier_run(mode: str) -> Measurement:
    """Return the measurement for figure 6: 128 epochs of MobileNet V3 Small with batches of 64, as the text says, without early stopping;
    cut down, fewer epochs and images. `mode`: "synchronous" (with a barrier) or "asynchronous".
    """
    fixed = (
        "recipe=paper",
        "training.batch_size=64",
        "training.early_stopping=0",
        "training.model=mobilenet_v3_small",
        f"p2p.mode={mode}",
    )
    cut = make_cut(batch=64, minibatches=195, epochs=128, least_epochs=3, least_minibatches=4, keep_batch=True)
    key = f"barrier-{mode}"
    return Measurement(key=key, config="p2p-instance-cifar10", fixed=fixed, cut=cut, depends_on_values=True)


def list_text_runs(scale: Scale) -> Sequence[Measurement]:
    """Return the measurements for the figures that the paper's text states."""
    return [*list_gradient_runs(scale), make_barrier_run("synchronous")]


def _hyphenate(name: str) -> str:
    """Return the name with hyphens instead of underscores."""
    return name.replace("_", "-")
