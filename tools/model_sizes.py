"""The sizes of the models that come with the project: `python -m tools.model_sizes` writes config/calibration/models.yaml."""

from dataclasses import asdict
from typing import Any

import torch
import yaml

from crossover.experiment import Training
from crossover.learning import fitness
from crossover.learning.learner import list_shapes
from crossover.learning.sizes import DATA, MODELS
from crossover.learning.zoo import MODEL_FACTORIES
from crossover.simulation import figures
from tools import refuse_arguments

CLASSES = 10


def count_models() -> dict[str, dict[str, dict[str, Any]]]:
    """Count the sizes of the project's models without training them. Return {model: {image, such as `3x32x32`: counts by name}}: numbers of
    parameters, buffers and multiply-accumulates, the counts of a training step (`step`), the bytes that a gradient and an evaluation hold
    for one sample, and the parameters' shapes, such as `32x3x3x3 32`.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for model in sorted(MODEL_FACTORIES):
        for image in sorted({each.image for each in DATA.values()}):
            size = fitness.measure_model(Training(model=model), classes=CLASSES, sample=torch.zeros(image))
            counts = {name: int(value) for name, value in asdict(size.step).items()}
            whole = {"parameters": size.parameters, "buffers": size.buffers, "macs": size.macs, "step": counts}
            whole |= {"kept_bytes": size.kept_bytes, "widest_bytes": size.widest_bytes, "fixed_bytes": size.fixed_bytes}
            whole["shapes"] = " ".join("x".join(map(str, each)) for each in list_shapes(model, CLASSES, image))
            found.setdefault(model, {})["x".join(map(str, image))] = whole
    return found


if __name__ == "__main__":
    refuse_arguments(__doc__)
    head = "# Written by `python -m tools.model_sizes`, not by hand: at 10 classes. A test counts them anew.\n"
    text = yaml.safe_dump({"format": figures.FORMAT, "models": count_models()}, sort_keys=False, width=200)
    MODELS.write_text(head + text, encoding="utf-8")
