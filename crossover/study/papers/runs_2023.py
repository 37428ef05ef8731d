"""What is run for "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine Learning" (2023)."""

from collections.abc import Sequence

from crossover.learning import sizes
from crossover.reports import published
from crossover.reports.published import Row
from crossover.study.papers.measurement import Measurement, Overrides, Scale, smaller

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


def rows(table: str) -> list[Row]:
    return published.rows(paper=PAPER, table=table)


def _of(model: str, dataset: str, batch: int) -> Overrides:
    return (
        "training.epochs=1",
        f"training.model={model}",
        f"training.batch_size={batch}",
        f"data.dataset={dataset}",
        "data.drop_last=false",
    )


def stages(row: Row, scale: Scale) -> Measurement:
    """Table I: 4 peers, 30 batches: of 512 images, MNIST's 60,000 give 29.3 for each of 4. VGG-11 on MNIST: the run that Table III wants
    too.
    """
    model, dataset = row.figures["model"], row.figures["dataset"]
    if (model, dataset) == ("vgg11", "mnist"):
        return gradients("p2p_instance", 512 if scale.whole else MEASURED_SIZE)

    def cut(scale: Scale) -> Overrides:
        if model != "vgg11":
            return smaller(batch=512, minibatches=30, dataset=dataset, keep_batch=True)(scale)
        # Four peers of VGG-11 hold and send 515 MB many times over and want 20 GB: one does, with 32 images.
        return ("workers=1", "training.batch_size=32", "data.limit=32", LEAST_HELD)

    key = f"stages-{_hyphens(model)}-{dataset}"
    return Measurement(key=key, config="p2p-instance-cifar10", fixed=_of(model, dataset, 512), cut=cut)


def gradients(architecture: str, size: int) -> Measurement:
    """Tables II and III: VGG-11's gradients on MNIST. Cut down: one peer's, of two batches."""
    memory = {row.figures["batch_size"]: row.figures["memory_mb"] for row in rows("Table II")}
    functions = architecture == "p2p_serverless"
    fixed = (*_of("vgg11", "mnist", size), *([f"functions.memory_mb.default={memory[size]}"] if functions else []))

    return Measurement(
        key=f"gradients-{_hyphens(architecture)}-{size}",
        config=f"{_hyphens(architecture)}-cifar10",
        fixed=fixed,
        cut=lambda scale: ("workers=1", f"data.limit={2 * size}", LEAST_HELD),
    )


def of_gradients(scale: Scale) -> Sequence[Measurement]:
    """Every batch size at the published size; below, one, on the instance and in functions."""
    sizes = BATCH_SIZES if scale.whole else (MEASURED_SIZE,)
    return [gradients(kind, size) for kind in ("p2p_instance", "p2p_serverless") for size in sizes]


def grown(model: str, peers: int) -> Measurement:
    """Figure 4: more peers, batches of 1,024. Cut down: of 256."""
    fixed = (*_of(model, "mnist", 1024), f"workers={peers}")

    def cut(scale: Scale) -> Overrides:
        count = scale.of(MNIST_IMAGES // (1024 * peers))
        return ("training.batch_size=256", f"data.limit={peers * 256 * count}", LEAST_HELD)

    key = f"peers-{_hyphens(model)}-{peers}"
    return Measurement(key=key, config="p2p-instance-cifar10", fixed=fixed, cut=cut)


def of_figure_4(scale: Scale) -> Sequence[Measurement]:
    """VGG-11 at the published size only: twelve peers of it want 40 GB."""
    models = ("mobilenet_v3_small", "vgg11") if scale.whole else ("mobilenet_v3_small",)
    return [grown(model, peers) for model in models for peers in PEER_COUNTS]


def compressed(compression: str, size: int) -> Measurement:
    """Figure 5: VGG-11, 4 peers. Cut down: MobileNet V3 Small in its place."""
    fixed = (*_of("vgg11", "mnist", size), f"exchange.compression={compression}")

    return Measurement(
        key=f"compression-{compression}-{size}",
        config="p2p-instance-cifar10",
        fixed=fixed,
        cut=lambda scale: ("training.model=mobilenet_v3_small", f"data.limit={PEERS * size * 2}", LEAST_HELD),
    )


def of_figure_5(scale: Scale) -> Sequence[Measurement]:
    sizes = BATCH_SIZES if scale.whole else BATCH_SIZES[-1:]
    return [compressed(kind, size) for kind in COMPRESSIONS for size in sizes]


def barrier(mode: str) -> Measurement:
    """Figure 6: MobileNet V3 Small, batches of 64, SGD at 0.001; the text says about 128 epochs."""
    fixed = (
        "recipe=paper",
        "training.batch_size=64",
        "training.early_stopping=0",
        "training.model=mobilenet_v3_small",
        f"p2p.mode={mode}",
    )
    cut = smaller(batch=64, minibatches=195, epochs=128, least_epochs=3, least_minibatches=4, keep_batch=True)
    return Measurement(key=f"barrier-{mode}", config="p2p-instance-cifar10", fixed=fixed, cut=cut)


def of_text(scale: Scale) -> Sequence[Measurement]:
    return [*of_gradients(scale), barrier("synchronous")]


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
