"""Recipes: the training settings of an experiment under one name, the same for every architecture, so that accuracies can be compared.

    recipe: none     the file's own values and the defaults
    recipe: paper    as the papers print it; what they do not print is plain, and said below
    recipe: fast     what trains soonest: one cycle, Nesterov, label smoothing, crop and flip, bfloat16

Who wins, for the fields that a recipe settles:

1. `--set training.epochs=3`: a field set on the command line, before or after the recipe.
2. `--set recipe=fast`: a recipe chosen on the command line replaces what the file says.
3. `recipe: fast` in the file. A file that also gives one of its fields another value is refused: nobody can know which
   of the two was meant.
4. Without a recipe: the file's values, then the defaults.

`training.precision` is the exception, for it belongs to the processor as much as to the training: a file's own value wins over any recipe
(Lambda's arm64 processors have no bfloat16; write `precision: fp32` beside `recipe: fast`).
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from crossover.errors import ConfigError

Recipe = Literal["none", "paper", "fast"]
RECIPES: tuple[str, ...] = get_args(Recipe)

DEFAULT_WORKERS, DEFAULT_BATCH = 4, 60  # of an experiment that does not say; a test holds them to its dataclasses
PAPERS_DATASETS = ("cifar10", "mnist")  # the embedded digits have too few images for the papers' batches
PHOTOGRAPHS = ("cifar10",)  # a mirrored digit is not a digit
FAST_BATCH = 2_048  # images per update that the rate below was chosen for: 4 workers x 512
FAST_RATE = 1.0  # peak, per FAST_BATCH images
FILE_MAY_DIFFER = frozenset({"training.precision"})

Values = dict[str, Any]  # by dotted field


def build_paper_values(*, dataset: str) -> Values:
    """Return the training settings of the papers, {dotted field name: value}. `dataset`: value of `data.dataset`; cifar10 and mnist also
    get the papers' batch size.

    They are SGD at 0.001 with ReduceLROnPlateau and early stopping, "approximately 128 epochs" (2023, sections III-B7 and V-D); batches of
    512 (2025, section 4.1), except for data sets that are too small. The 2025 paper prints no rate. Neither paper prints momentum, weight
    decay or the two patiences: here they are 0, 0, PyTorch's 10 epochs for the plateau, and 15 epochs for early stopping.
    """
    batch = {"training.batch_size": 512} if dataset in PAPERS_DATASETS else {}
    return {
        **batch,
        "training.epochs": 128,
        "training.optimizer": "sgd",
        "training.learning_rate": 0.001,
        "training.momentum": 0.0,
        "training.nesterov": False,
        "training.weight_decay": 0.0,
        "training.label_smoothing": 0.0,
        "training.precision": "fp32",
        "training.threads": 1,
        "training.schedule": "plateau",
        "training.plateau_factor": 0.1,
        "training.plateau_patience": 10,
        "training.early_stopping": 15,
        "exchange.every": None,  # the architecture's own: SPIRT and P2P accumulate a whole epoch
        "data.augment": "none",
    }


def build_fast_values(*, dataset: str, samples: int) -> Values:
    """Return the training settings that train fastest, {dotted field name: value}. `dataset`: value of `data.dataset`; images of cifar10
    are also cropped and flipped. `samples`: images per update over all workers; the peak learning rate is proportional to them.

    Every architecture updates after each minibatch, because a single update per epoch is too slow in so few epochs.
    """
    return {
        "training.epochs": 16,
        "training.optimizer": "sgd",
        "training.learning_rate": FAST_RATE * samples / FAST_BATCH,
        "training.momentum": 0.9,
        "training.nesterov": True,
        "training.weight_decay": 5e-4,
        "training.label_smoothing": 0.1,
        "training.precision": "bf16",
        "training.schedule": "one_cycle",
        "training.warm_up": 0.25,
        "training.early_stopping": 0,
        "exchange.every": 1,
        "data.augment": "crop_flip" if dataset in PHOTOGRAPHS else "none",
    }


def apply_recipe(plain: Mapping[str, Any], *, commanded: Collection[str] = ()) -> dict[str, Any]:
    """Return a copy of `plain`, an experiment's YAML content, with the values of its `recipe` filled in; unchanged without a recipe. Raises
    ConfigError, one field a line, if the recipe and the file's own values differ; only the file's training.precision wins over a recipe.

    `commanded`: dotted names of the fields that the command line has set, which win over the recipe; if it has set `recipe` itself, that
    wins over the file's values. Unknown recipes, and sections that are no mapping, are left to the later check of all fields.
    """
    name = plain.get("recipe") or "none"
    if name not in RECIPES or name == "none":
        return dict(plain)
    values = _build_values(name, plain)
    if not all(isinstance(plain.get(section) or {}, Mapping) for section in ("training", "data", "exchange")):
        return dict(plain)
    result, differing = dict(plain), []
    for field, value in values.items():
        section, _, key = field.partition(".")
        given = result.get(section) or {}
        if field in commanded or (key in given and (section in commanded or field in FILE_MAY_DIFFER)):
            continue
        if key in given and given[key] != value and "recipe" not in commanded:
            differing.append(
                f"{field}: the file says {_format_value(given[key])}, its recipe {name} {_format_value(value)}"
            )
            continue
        result[section] = {**given, key: value}
    if differing:
        differing[-1] += (
            f"; leave one of the two out of the file, or choose the recipe with --set recipe={name}, which replaces the "
            "file's values"
        )
        raise ConfigError("\n".join(differing))
    return result


def _build_values(name: str, plain: Mapping[str, Any]) -> Values:
    """Return the values of the recipe `name`, by dotted field name, for the data set, batch size and number of workers that the YAML
    content `plain` states. Each name but `paper` means `fast`. Unusable content is ignored: other checks report it.
    """
    training, data = plain.get("training") or {}, plain.get("data") or {}
    dataset = str(data.get("dataset", "digits")) if isinstance(data, Mapping) else ""
    if name == "paper":
        return build_paper_values(dataset=dataset)
    batch = training.get("batch_size", DEFAULT_BATCH) if isinstance(training, Mapping) else DEFAULT_BATCH
    workers = plain.get("workers", DEFAULT_WORKERS)
    countable = isinstance(batch, int) and isinstance(workers, int)  # else the check of all fields will say so
    return build_fast_values(dataset=dataset, samples=batch * workers if countable else FAST_BATCH)


def _format_value(value: Any) -> str:
    """Return `value` as YAML writes it, for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
    return str(value)
