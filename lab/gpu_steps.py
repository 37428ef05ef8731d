"""The fits of a training step's factors on GPUs to what others measured, judged on models that the fits have not seen.

Whole steps of convolutional networks in fp32: ddps-lab/profet (T4, M60, K80, V100). Matrix products in fp32: sitar-lab/NeuSight (T4,
V100, A100). Whole steps in mixed precision: timm (RTX 3090), transformers among them. Other cards: by their data sheets, corrected by
rates that were printed elsewhere.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.optimize import least_squares

from crossover.learning.sizes import StepCounts
from crossover.learning.step_counts import count_step
from crossover.simulation.figures import FORMAT, GPUS
from crossover.simulation.gpu_steps import OPTIMIZER_BYTES, GpuCard, StepFactors
from lab.gpu_models import MODELS, TIMM

TERMS = ("constant_s", "operation_s", "image_bytes", "matrix_bytes", "convolution", "depthwise", "matrix")
START = (1e-4, 6e-5, 2.5, 1.3, 0.5, 50.0, 1.5)
PROFET = {
    "T4": "g4dn_xlarge_T4_ms_median", "M60": "g3s_xlarge_M60_ms_median", "K80": "p2_xlarge_K80_ms_median",
    "V100": "p3_2xlarge_V100_ms_median",
}  # fmt: skip
NEUSIGHT = {"T4": "Tesla_T4", "V100": "Tesla_V100-PCIE-32GB", "A100": "NVIDIA_A100-PCIE-40GB"}
AMP_CARD = "RTX 3090"
PLAIN_SGD = 12  # bytes of each parameter that profet's optimizer moves: SGD without momentum
COLAB_AMP = 1.83  # times as fast a Wide-ResNet trains in fp16 on a T4
PRINTED = {  # images a second in fp32 training, 224 pixels a side, of batches that are not said: BATCH is taken
    "T4": {"resnet50": 116.0, "vgg16": 83.0, "mobilenetv2_100": 174.0},
    "L4": {"resnet50": 206.0, "vgg16": 148.0, "mobilenetv2_100": 360.0},
    "A10G": {"resnet50": 349.0},
}
BATCH, SIDE = 64, 224
UNSEEN_MATRIX = {"matrix_bytes": 1.3, "matrix": 1.26}  # an A100's in fp32, where a fit has seen no transformer
TESLA_SHEETS = "NVIDIA's data sheets"


@dataclass(frozen=True)
class Sheet:
    """Data sheet of a GPU card. `instances`: families of EC2 instances that have it; `gb_s`: memory bandwidth in GB per second; `fp32`,
    `half`: peak operations per second in fp32 and in half precision; `bf16`: whether it has bf16.
    """

    instances: tuple[str, ...]
    gb_s: float
    fp32: float
    half: float = 0.0
    bf16: bool = False


SHEETS = {
    "T4": Sheet(("g4dn",), 320, 8.1e12, 65e12),
    "V100": Sheet(("p3",), 900, 15.7e12, 125e12),
    "M60": Sheet(("g3", "g3s"), 160, 4.8e12),
    "K80": Sheet(("p2",), 240, 4.1e12),
    "A100": Sheet(("p4d", "p4de"), 1_555, 19.5e12, 312e12, True),
    "A10G": Sheet(("g5",), 600, 31.2e12, 70e12, True),
    "L4": Sheet(("g6", "g6f"), 300, 30.3e12, 121e12, True),
    "L40S": Sheet(("g6e",), 864, 91.6e12, 362e12, True),
    "H100": Sheet(("p5",), 3_350, 66.9e12, 989e12, True),
}


@dataclass(frozen=True)
class MeasuredStep:
    """One measured training step. `model`: its name in the measurements; `counts`: operations, bytes and multiply-accumulates of the
    model's step; `parameters`: number of the model's parameters; `samples`: minibatch size; `seconds`: how long it took.
    """

    model: str
    counts: StepCounts
    parameters: int
    samples: int
    seconds: float


@cache
def count_model_step(models: str, name: str, image: int) -> tuple[StepCounts, int]:
    """Return (counts of a training step, number of parameters) for our own build of a measured model, without computing it; cached for the
    process. `models`: "profet" or "timm"; `name`: the model's name there; `image`: height and width of the input in pixels. Raises KeyError
    for an unknown name.
    """
    with torch.device("meta"):
        module = {"profet": MODELS, "timm": TIMM}[models][name](image).train()
        counts = count_step(module, torch.empty(3, image, image))
    return counts, sum(each.numel() for each in module.parameters())


def load_profet_steps(folder: Path, card: str) -> list[MeasuredStep]:
    """Return the training steps in fp32 that profet measured on a card, from its file in `folder`; rows without a figure for the card are
    left out. `card`: a key of PROFET.
    """
    found = []
    for row in _read_rows(folder / "profet_2021_ec2_gpu_train_ms.csv"):
        if row[PROFET[card]]:
            counts, parameters = count_model_step("profet", row["model"], int(row["image"]))
            found.append(
                MeasuredStep(row["model"], counts, parameters, int(row["batch"]), float(row[PROFET[card]]) / 1e3)
            )
    return found


def load_timm_steps(folder: Path) -> list[MeasuredStep]:
    """Return the training steps in mixed precision on AMP_CARD that timm measured, from its file in `folder`, for the models of TIMM."""
    found = []
    for row in _read_rows(folder / "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv"):
        if row["model"] in TIMM:
            counts, parameters = count_model_step("timm", row["model"], int(row["train_img_size"]))
            seconds = float(row["train_step_time"]) / 1e3
            found.append(MeasuredStep(row["model"], counts, parameters, int(row["train_batch_size"]), seconds))
    return found


def _read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a head, in their order, each as text by column. Raises OSError if the file cannot be read."""
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def name_family(model: str) -> str:
    """Return the family of a model, such as "vgg"; the model's own name if it belongs to none. Models of one family are so similar that
    none of them may be used in a fit that is judged by another.
    """
    for begins in ("VGG", "vgg", "ResNet", "resnet", "wide_resnet", "Inception", "inception", "vit"):
        if model.startswith(begins):
            return begins.lower().removeprefix("wide_")
    return "small" if model in ("LeNet5", "MNIST_CNN", "CIFAR10_CNN") else model


def fit_steps(
    steps: Sequence[MeasuredStep], sheet: Sheet, *, half: bool = False, fixed: Mapping[str, float]
) -> StepFactors:
    """Fit a card's factors to measured steps by least squares of logarithms, with less weight on outliers, and return them. `sheet`: the
    card's data sheet; `half`: whether the steps are in half precision; `fixed`: factors that are not fitted, by their names in TERMS.
    """
    terms = np.array([_compute_terms(each, sheet, half=half) for each in steps])
    measured = np.log([each.seconds for each in steps])
    free = [n for n, name in enumerate(TERMS) if name not in fixed]
    start = np.array([fixed.get(name, value) for name, value in zip(TERMS, START, strict=True)])

    def fill_factors(logs: Any) -> Any:
        """Return all factors in the order of TERMS: the fitted ones from their logarithms `logs`, the fixed ones with their start
        values.
        """
        found = start.copy()
        found[free] = np.exp(logs)
        return found

    solved = least_squares(
        lambda logs: np.log(terms @ fill_factors(logs)) - measured, np.log(start[free]), loss="soft_l1", f_scale=0.3
    )
    return StepFactors(**dict(zip(TERMS, map(float, fill_factors(solved.x)), strict=True)))


def _compute_terms(step: MeasuredStep, sheet: Sheet, *, half: bool) -> list[float]:
    """Return the terms of a step's time in the order of TERMS, by which the factors are multiplied: constant, operations, seconds of the
    bytes of convolutions and of matrix products, and seconds of multiply-accumulates at the card's peak. `half`: whether the step is in
    half precision.
    """
    counts, samples = step.counts, step.samples
    convolution, matrix = counts.of_sample_convolution + counts.of_sample_depthwise, counts.of_sample_matrix
    share = convolution / (convolution + matrix)
    optimizer = (OPTIMIZER_BYTES if half else PLAIN_SGD) * step.parameters
    bytes_s = (counts.bytes + samples * counts.of_sample_bytes + optimizer) / (sheet.gb_s * 1e9)
    of_peak = samples / ((sheet.half if half else sheet.fp32) / 2)
    macs = (counts.of_sample_convolution * of_peak, counts.of_sample_depthwise * of_peak, matrix * of_peak)
    return [1.0, counts.operations, share * bytes_s, (1 - share) * bytes_s, *macs]  # fmt: skip


def cross_validate(
    steps: Sequence[MeasuredStep], sheet: Sheet, *, half: bool, fixed: Mapping[str, float]
) -> dict[str, list[float]]:
    """Return {family of models: logarithms of projected divided by measured seconds, one per step}. Each family is projected by a fit to
    all other families. `sheet`: the card's data sheet; `half`: whether the steps are in half precision; `fixed`: factors that are not
    fitted; for transformers those of UNSEEN_MATRIX.
    """
    found: dict[str, list[float]] = {}
    for name in sorted({name_family(each.model) for each in steps}):
        known = UNSEEN_MATRIX if name == "vit" else fixed  # no other transformer is among the steps
        factors = fit_steps([each for each in steps if name_family(each.model) != name], sheet, half=half, fixed=known)
        weights = [getattr(factors, term) for term in TERMS]
        found[name] = [
            float(np.log(np.dot(_compute_terms(each, sheet, half=half), weights) / each.seconds))
            for each in steps
            if name_family(each.model) == name
        ]
    return found


def fit_products(folder: Path, card: str) -> tuple[float, float, float]:
    """Fit a card's factors to NeuSight's fully connected layers. Return (factor on the seconds that the bytes take, factor on those of the
    multiply-accumulates, standard deviation of the error's natural logarithm). `folder`: with NeuSight's CSV files, of which the card's is
    read; `card`: a key of NEUSIGHT. Raises KeyError for another card, OSError if the file cannot be read.
    """
    sheet, rows = SHEETS[card], _read_rows(folder / f"neusight_linear_{NEUSIGHT[card]}_ms.csv")
    batch, m, n, k = (np.array([float(row[name]) for row in rows]) for name in "BMNK")
    bytes_s = 4 * (batch * m * k + k * n + batch * m * n) / (sheet.gb_s * 1e9)
    terms = np.stack([np.full_like(m, 1e-6), bytes_s, batch * m * n * k / (sheet.fp32 / 2)], 1)
    measured = np.log([float(row["Latency"]) / 1e3 for row in rows])
    solved = least_squares(
        lambda logs: np.log(terms @ np.exp(logs)) - measured, np.log([40.0, 1.3, 1.5]), loss="soft_l1", f_scale=0.3
    )
    return float(np.exp(solved.x[1])), float(np.exp(solved.x[2])), float(np.std(solved.fun))


def _flatten(by_family: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the values of all families in one list."""
    return [each for logs in by_family.values() for each in logs]


def compute_error_factor(logs: Sequence[float], share: float) -> float:
    """Return the quantile `share` of the projections' errors as a factor: 1.5 means too long or too short by 1.5 times. `logs`: logarithms
    of projected divided by measured.
    """
    return float(np.exp(np.quantile(np.abs(logs), share)))


def fit(folder: Path) -> dict[str, Any]:
    """Fit the factors of all cards to the measurements in a folder, and return the content of config/calibration/gpus.yaml; nothing is
    written. Cards whose steps were not measured get factors by their data sheets. Raises OSError if a file is missing, KeyError if a column
    is missing or a model is not known.
    """
    products = {card: fit_products(folder, card) for card in NEUSIGHT}
    middle = {"matrix_bytes": float(np.mean([each[0] for each in products.values()])), "matrix": products["A100"][1]}
    amp_sheet = Sheet((), 936, 35.6e12, 71e12)
    amp_steps = load_timm_steps(folder)
    amp = fit_steps(amp_steps, amp_sheet, half=True, fixed={})
    amp_sigma = float(np.std(_flatten(cross_validate(amp_steps, amp_sheet, half=True, fixed={}))))
    fp32, sigmas, basis = dict[str, StepFactors](), dict[str, dict[str, float]](), dict[str, str]()
    for card in PROFET:
        known = products.get(card, products["T4"])
        fixed = {"matrix_bytes": known[0], "matrix": known[1], "depthwise": 0.0}  # profet's have none
        steps = load_profet_steps(folder, card)
        fp32[card] = fit_steps(steps, SHEETS[card], fixed=fixed)
        left = _flatten(cross_validate(steps, SHEETS[card], half=False, fixed=fixed))
        sigmas[card] = {"convolution": float(np.std(left)), "matrix": WITHOUT_STEPS}
        basis[card] = (
            f"{len(steps)} of Profet's on this card; matrix products by NeuSight's on {'this card' if card in NEUSIGHT else 'a T4'}"
        )
    of_t4 = {name: value for name, value in asdict(fp32["T4"]).items() if name != "depthwise"}
    mobile = [each for each in _load_printed_steps("T4") if each.counts.of_sample_depthwise]
    depthwise = fit_steps(mobile, SHEETS["T4"], fixed=of_t4).depthwise
    fp32 = {card: replace(each, depthwise=depthwise) for card, each in fp32.items()}
    for card, newer in (("L4", dict[str, float]()), ("A10G", {"convolution": 1.0})):
        start = {"constant_s": fp32["T4"].constant_s, "operation_s": fp32["T4"].operation_s, **middle, **newer}
        if card == "A10G":
            start["depthwise"] = fp32["L4"].depthwise
        if card == "L4":
            start["matrix"] = products["T4"][1]  # 72 W, as a T4's 70: neither holds its clock
        fp32[card] = fit_steps(_load_printed_steps(card), SHEETS[card], fixed=start)
        sigmas[card] = {"convolution": WITH_RATES, "matrix": WITHOUT_STEPS}
        teacher = "a T4" if card == "L4" else "an A100"
        basis[card] = (
            f"{len(PRINTED[card])} on this card; matrix products reach the share of the peak that {teacher} reaches"
        )
    for card in ("A100", "L40S", "H100"):
        image_bytes = (fp32["L4"].image_bytes + fp32["A10G"].image_bytes) / 2
        known = products.get(card, products["A100"])
        fp32[card] = StepFactors(
            fp32["T4"].constant_s, fp32["T4"].operation_s, image_bytes, known[0], TF32, fp32["L4"].depthwise, known[1]
        )
        sigmas[card] = {"convolution": BY_SHEET, "matrix": WITHOUT_STEPS if card == "A100" else BY_SHEET}
        basis[card] = "none on this card: by its data sheet, corrected as on L4 and A10G; matrix products as on an A100"
    return {
        "format": FORMAT,
        "as_of": "2026-11",
        "mixed precision": {"card": AMP_CARD, **_round_factors(asdict(amp)), "sigma": round(amp_sigma, 3)},
        "cards": {card: _describe_card(card, fp32[card], amp, sigmas[card], basis[card]) for card in SHEETS},
    }


# Sigmas where no whole step was measured; assumed. From p5 to p95 these are 1.6, 1.8 and 2.3 times either way.
WITH_RATES, WITHOUT_STEPS, BY_SHEET = 0.3, 0.35, 0.5
TF32 = 0.4  # of the fp32 peak's time: PyTorch convolves in TF32 on these cards, eight times the peak; assumed


def _load_printed_steps(card: str) -> list[MeasuredStep]:
    """Return the steps of a card for which PRINTED has a published rate of images per second, as if measured with minibatches of BATCH
    images of SIDE pixels.
    """
    found = []
    for name, rate in PRINTED[card].items():
        counts, parameters = count_model_step("timm", name, SIDE)
        found.append(MeasuredStep(name, counts, parameters, BATCH, BATCH / rate))
    return found


def _describe_card(
    card: str, fp32: StepFactors, amp: StepFactors, sigmas: Mapping[str, float], basis: str
) -> dict[str, Any]:
    """Return a card's entry of config/calibration/gpus.yaml: its data sheet, factors by precision, sigmas and source. `fp32`, `amp`: fitted
    factors in fp32 and in mixed precision; `basis`: what they were fitted to.
    """
    sheet = SHEETS[card]
    macs_s, factors = {"fp32": sheet.fp32 / 2}, {"fp32": _round_factors(asdict(fp32))}
    if sheet.half:
        older = not sheet.bf16  # before Ampere
        half = {
            **asdict(amp), "constant_s": fp32.constant_s, "operation_s": fp32.operation_s,
            **({"image_bytes": fp32.image_bytes / COLAB_AMP, "matrix": fp32.matrix} if older else {}),
        }  # fmt: skip
        macs_s["fp16"], factors["fp16"] = sheet.half / 2, _round_factors(half)
        if sheet.bf16:
            macs_s["bf16"], factors["bf16"] = macs_s["fp16"], factors["fp16"]
    return {
        "instances": list(sheet.instances),
        "bytes_s": sheet.gb_s * 1e9,
        "macs_s": macs_s,
        "factors": factors,
        "sigmas": {name: round(each, 3) for name, each in sigmas.items()},
        "basis": basis,
    }


def _round_factors(plain: Mapping[str, float]) -> dict[str, float]:
    """Return the factors rounded to four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in plain.items()}


HEAD = ["card", "family", "steps", "median factor", "p90", "projected / measured"]


def judge_cards(folder: Path) -> list[list[str]]:
    """Return table rows with the columns of HEAD: for each card and family of models the errors of predicting this family by a fit to all
    other families, and a row for all families together. `folder`: folder of the measured steps and matrix products.
    """
    products, rows = {card: fit_products(folder, card) for card in NEUSIGHT}, []
    for card in PROFET:
        known = products.get(card, products["T4"])
        found = cross_validate(
            load_profet_steps(folder, card),
            SHEETS[card],
            half=False,
            fixed={"matrix_bytes": known[0], "matrix": known[1], "depthwise": 0.0},
        )
        rows += _tabulate_errors(f"{card}, fp32", found)
    rows += _tabulate_errors(
        f"{AMP_CARD}, mixed",
        cross_validate(load_timm_steps(folder), Sheet((), 936, 35.6e12, 71e12), half=True, fixed={}),
    )
    return rows


def _tabulate_errors(card: str, found: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Return one table row for each family of models and one for all, in the order of HEAD: number of steps, median and p90 of the error
    factor, median ratio of projected to measured. `card`: name for the first column; `found`: logarithms of projected divided by measured,
    by family.
    """
    every = _flatten(found)
    return [
        [
            card,
            name,
            str(len(logs)),
            f"{compute_error_factor(logs, 0.5):.2f}",
            f"{compute_error_factor(logs, 0.9):.2f}",
            f"{float(np.exp(np.median(logs))):.2f}",
        ]
        for name, logs in (*found.items(), ("all", every))
    ]


PRINTED_HEAD = ["card", "model", "printed, images/s", "projected", "seen by the fit"]


def tabulate_printed(cards: Mapping[str, GpuCard]) -> list[list[str]]:
    """Return table rows of published rates in images per second beside projected ones, with the columns of PRINTED_HEAD. `cards`: fitted
    cards by name, with those of PRINTED.
    """
    rows = []
    for card in PRINTED:
        for step in _load_printed_steps(card):
            rate = step.samples / cards[card].step_s(step.counts, step.samples, parameters=step.parameters)
            rows.append(
                [
                    card,
                    step.model,
                    f"{step.samples / step.seconds:.0f}",
                    f"{rate:.0f}",
                    "no" if card == "T4" and not step.counts.of_sample_depthwise else "yes",
                ]
            )
    return rows


def write_factors(found: Mapping[str, Any], path: Path = GPUS) -> None:
    """Write the result of `fit` to the file `path`, by default config/calibration/gpus.yaml, as YAML with a comment on its origin."""
    text = yaml.dump(dict(found), Dumper=_WithoutAliases, sort_keys=False, width=140)
    head = (
        "# Written by `python -m lab gpus FOLDER`, not by hand: lab/gpu_steps.py says from what. Peaks and bandwidths: "
        + TESLA_SHEETS
        + ".\n"
    )
    path.write_text(head + text, encoding="utf-8")


class _WithoutAliases(yaml.SafeDumper):
    """A YAML dumper that writes a repeated mapping out in full in place of a reference to its first occurrence."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True, so that no value is written as a reference."""
        return True
