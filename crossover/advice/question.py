"""The question of an advice: the experiment, its constraints, its sizes, and the memory that it needs."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossover import bundling
from crossover.advice import own_speed
from crossover.advice.candidates import Candidate, list_instance_types
from crossover.advice.evaluation import Question
from crossover.advice.own_speed import Probe
from crossover.errors import ConfigError, DataError, NoProjection, OwnCodeError
from crossover.experiment import MAX_MEMORY_MB, Experiment, Training
from crossover.learning import sizes as data_sizes
from crossover.learning.sizes import GPU_VECTORS, HELD_VECTORS, RUNTIME_MB, SAMPLES_OF_EVALUATION
from crossover.reports import display, prices
from crossover.reports.display import Band
from crossover.reports.prices import Prices
from crossover.simulation import figures, measured_steps
from crossover.simulation.calibration import AWS, Calibration
from crossover.simulation.figures import UNKNOWN_INSTANCE
from crossover.simulation.gpu_steps import Precision, card_of
from crossover.simulation.measured_steps import MeasuredSteps
from crossover.simulation.workload import MODEL_SIZES, ModelSize, Workload

if TYPE_CHECKING:
    from crossover.learning.fitness import Footprint

# --- needs ------------------------------------------------------------------------------------------------------------

ON_HAND = ("lambda", "ec2", "gpu", "spot")
NEW_ACCOUNT_MB = 3_008  # of a function, until an account has been granted more
NEW_ACCOUNT_VCPUS = (
    5  # of standard instances (L-1216C47A), until an account has been granted more or has been billed for a while
)

# Peaks of this project's own steps, in Linux with glibc: what is freed stays with the process and fragments (learning/memory.py).
OF_KEPT = 2.5  # of a step's activations: MobileNet's 512 keep 820 MB and peaked at 1.7 to 2.3 GB
OF_EVALUATION = 3.5  # of the widest layer's 256 samples: 443 MB for 128
STEP_MB = 64  # between two sizes of function that are told apart
HOST_SHARE = 0.7  # of a database host's memory that vectors may fill


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the user's model in bytes, from which the memory that a candidate needs follows. `vector_bytes`: size of a gradient;
    `kept_bytes`: activations that are kept for one sample; `evaluation_bytes`: forward pass of an evaluation; `fixed_bytes`: other memory
    of the model, which does not depend on the minibatch.
    """

    vector_bytes: int
    kept_bytes: float
    evaluation_bytes: int
    fixed_bytes: int = 0

    def step_mb(self, batch_size: int, *, vectors: int = HELD_VECTORS) -> float:
        """Return the estimated peak memory, in MB, of a process that computes the gradient of `batch_size` samples. `vectors`: number of
        vectors as long as the gradient that it holds.
        """
        computing = max(OF_KEPT * batch_size * self.kept_bytes, OF_EVALUATION * self.evaluation_bytes)
        return RUNTIME_MB + (vectors * self.vector_bytes + self.fixed_bytes + computing) / 2**20

    def least_mb(self, batch_size: int) -> int:
        """Return the memory size, in MB, of the smallest Lambda function that can compute a minibatch of `batch_size` samples; that of the
        largest function if none can.
        """
        return min(MAX_MEMORY_MB, STEP_MB * ceil(self.step_mb(batch_size) / STEP_MB))


def find_problem(
    candidate: Candidate, sizes: Sizes, on_hand: Collection[str], *, precision: Precision = "fp32"
) -> tuple[str, str]:
    """Return (kind, sentence) on why the candidate cannot run, two empty texts if it can. `kind` is "not on hand", "precision" or "memory":
    the resources on hand, the precision of its GPU, and the memory of workers and of database hosts are checked, in this order. `sizes`:
    sizes of the model; `on_hand`: resources of ON_HAND that may be used; `precision`: training.precision of the experiment.
    """
    lacking = find_missing_resource(candidate, on_hand)
    if lacking:
        return "not on hand", f"needs {lacking}, which is not on hand"
    if candidate.gpu and (words := card_of(candidate.instance).precision_problem(precision)):
        return "precision", words
    steps_on_gpu = candidate.gpu and candidate.architecture == "single"
    needed = sizes.step_mb(candidate.batch_size, vectors=GPU_VECTORS if steps_on_gpu else HELD_VECTORS)
    where, given = _available_memory(candidate)
    if needed > given:
        return (
            "memory",
            f"a gradient of {candidate.batch_size:,} samples needs {needed:,.0f} MB at its peak, and {where} has {given:,.0f}",
        )
    return _check_host_memory(candidate, sizes)


def find_missing_resource(candidate: Candidate, on_hand: Collection[str]) -> str:
    """Return the first of the candidate's resources (lambda, gpu, ec2, spot) that is not in `on_hand`; "" if all are. Database hosts need
    ec2.
    """
    needs = [
        *(["lambda"] if candidate.memory_mb else []),
        *(["gpu"] if candidate.gpu else []),
        *(["ec2"] if (candidate.instance and not candidate.gpu) or candidate.host else []),
        *(["spot"] if candidate.spot else []),
    ]
    return next((each for each in needs if each not in on_hand), "")


def _available_memory(candidate: Candidate) -> tuple[str, float]:
    """Return (words, MB): the function or instance on which the candidate computes gradients, and its memory (that of the GPU if it has
    one), infinite if unknown.
    """
    if candidate.memory_mb:
        return f"the function of {candidate.memory_mb:,} MB", float(candidate.memory_mb)
    known = figures.load_instances().get(candidate.instance)
    if known is None or known.memory_gb is None:
        return candidate.instance, float("inf")
    return candidate.instance, 1_024 * (known.gpu_gb or known.memory_gb)


def _check_host_memory(candidate: Candidate, sizes: Sizes) -> tuple[str, str]:
    """Return ("memory", sentence) if the candidate's database host has too little memory for the vectors of two rounds, otherwise two empty
    texts.
    """
    known = figures.load_instances().get(candidate.host)
    if known is None or known.memory_gb is None:
        return "", ""
    every = 64 if candidate.every == "epoch" else candidate.every
    vectors = 2 * (2 * candidate.workers + (every if candidate.memory_mb else 0) + HELD_VECTORS)
    needed, given = vectors * sizes.vector_bytes / 2**30, HOST_SHARE * known.memory_gb
    if needed <= given:
        return "", ""
    return (
        "memory",
        f"a database host holds up to {needed:,.1f} GB of vectors, and {candidate.host} has {known.memory_gb:g}",
    )


def describe_needed_quota(candidate: Candidate, gpu_quota: int = 0) -> str:
    """Return a sentence on which AWS quota must be raised before the account can start the candidate, the first one found; "" if none.
    Argument `gpu_quota`: see `find_needed_quota`.
    """
    return find_needed_quota(candidate, gpu_quota)[1]


def find_needed_quota(candidate: Candidate, gpu_quota: int = 0) -> tuple[str, str]:
    """Return (quota, sentence): the AWS quota that the candidate needs, such as `a quota of 4 vCPUs for G instances`, and how it exceeds
    the account's, for the first quota that must be raised before the account can start it; two empty texts if none.

    `gpu_quota`: vCPUs of GPU instances that the account may run; 0 for a new account, which often has few vCPUs of other instances too.
    """
    spot = "spot " if candidate.spot else ""
    if candidate.gpu:
        vcpus = candidate.workers * figures.load_instances().get(candidate.instance, UNKNOWN_INSTANCE).vcpus
        if vcpus <= gpu_quota:
            return "", ""
        may = (
            f"may run {gpu_quota} vCPUs of GPU instances"
            if gpu_quota
            else "may start no GPU instance unless it was granted some"
        )
        return (
            f"a quota of {vcpus} vCPUs for {spot}G instances",
            f"{candidate.words} needs {vcpus} vCPUs, and the account {may}: ask for a quota first (crossover doctor names it)",
        )
    if candidate.memory_mb > NEW_ACCOUNT_MB:
        return (
            f"functions of {candidate.memory_mb:,} MB",
            f"functions of more than {NEW_ACCOUNT_MB:,} MB need an account that was granted them (at most {MAX_MEMORY_MB:,})",
        )
    if candidate.memory_mb and candidate.workers > 10:
        return (
            f"a quota of {candidate.workers} functions at once",
            "a new account runs ten functions at once: ask for more first (crossover doctor names it)",
        )
    if not gpu_quota and (vcpus := count_standard_vcpus(candidate)) > NEW_ACCOUNT_VCPUS:
        return (
            f"a quota of {vcpus} vCPUs for {spot}standard instances",
            f"{candidate.words} needs {vcpus} vCPUs of standard instances, and new accounts often have {NEW_ACCOUNT_VCPUS}: ask for a "
            "quota first (crossover doctor names it)",
        )
    return "", ""


def count_standard_vcpus(candidate: Candidate) -> int:
    """Return the number of vCPUs of the candidate's instances without GPUs: those of its programs and its database hosts."""
    known = figures.load_instances()
    programs = 0 if candidate.gpu else candidate.workers * known.get(candidate.instance, UNKNOWN_INSTANCE).vcpus
    hosts = candidate.workers if candidate.form.tensor_hosts == "per_worker" else 1
    return (programs if candidate.instance else 0) + (
        hosts * known[candidate.host].vcpus if candidate.host in known else 0
    )


# --- constraints ------------------------------------------------------------------------------------------------------
# The user's constraints: by when, for how much, with what is on hand; and whether a candidate keeps to them, in 19 of 20 repetitions.

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
DURATION = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(s|m|min|h|d)\s*")
MOST_VCPUS = 1_000_000
LONGEST_S = 720 * 3_600.0  # lifetime.ttl_hours: no stack lives longer


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Limits and resources that the user gives. `deadline_s`: seconds until the model must be ready; `budget_usd`: most dollars for one
    run; `target`: value of the metric to reach; each None if not given. `on_hand`: resources that may be used; `gpu_quota`: vCPUs of GPU
    instances that the account may run, 0 if none or not known.
    """

    deadline_s: float | None = None
    budget_usd: float | None = None
    target: float | None = None
    on_hand: tuple[str, ...] = ON_HAND
    gpu_quota: int = 0  # vCPUs of GPU instances that the account may run; 0: none, or not known

    def short_by(self, seconds: Band, usd: Band) -> float:
        """Return the largest ratio of a 95th percentile to its constraint: at most 1 if deadline and budget hold, 0 if neither is given.
        `seconds`, `usd`: percentiles of a candidate's time (start-up included) and dollars.
        """
        times = [0.0]
        if self.deadline_s is not None:
            times.append(seconds.p95 / self.deadline_s)
        if self.budget_usd is not None:
            times.append(usd.p95 / self.budget_usd)
        return max(times)

    @property
    def ask_for_soonest(self) -> bool:
        """True if only a budget is given: the answer is then the soonest candidate that keeps to it, otherwise the cheapest."""
        return self.budget_usd is not None and self.deadline_s is None

    @property
    def words(self) -> str:
        """The constraints without the GPU quota as a part of a sentence, such as `within 45 min, for at most $5`; never empty."""
        parts = [
            *([f"within {display.seconds(self.deadline_s)}"] if self.deadline_s is not None else []),
            *([f"for at most {display.usd(self.budget_usd)}"] if self.budget_usd is not None else []),
            *([f"to {self.target:g}"] if self.target is not None else []),
        ]
        hand = "" if set(self.on_hand) == set(ON_HAND) else f"with {', '.join(self.on_hand)} on hand"
        return ", ".join([*parts, *([hand] if hand else [])]) or "the fewest dollars on AWS, however long it takes"


def parse_constraints(
    deadline: str | None, budget: str | None, target: float | None, on_hand: str | None, gpu_quota: str | None = None
) -> Constraints:
    """Return the constraints from the values of the command line's options --deadline, --budget, --target, --on-hand (`on_hand`) and
    --gpu-quota (`gpu_quota`), each None if not given. Raises ConfigError, which says what is expected.
    """
    return Constraints(
        deadline_s=None if deadline is None else _parse_deadline(deadline),
        budget_usd=None if budget is None else _parse_budget(budget),
        target=target,
        on_hand=ON_HAND if on_hand is None else _parse_resources(on_hand.split(",")),
        gpu_quota=0 if gpu_quota is None else _parse_gpu_quota(gpu_quota),
    )


def _parse_gpu_quota(text: str) -> int:
    """Return the number of vCPUs that `--gpu-quota` gives; 0 for `none`. Raises ConfigError for anything but `none` and whole numbers up to
    MOST_VCPUS.
    """
    if text == "none":
        return 0
    if not text.isdecimal() or int(text) > MOST_VCPUS:
        raise ConfigError(
            f"--gpu-quota: {text!r} is not a quota; expected none, or the vCPUs that the account may run as G instances, such as 8"
        )
    return int(text)


def _parse_deadline(text: str) -> float:
    """Return the seconds that `--deadline` gives, such as 2700 for `45min`. Raises ConfigError if the text is no time with a unit, if it is
    0, or if it is longer than 30 days.
    """
    if not (found := DURATION.fullmatch(text)):
        raise ConfigError(
            f"--deadline: {text!r} is not a time; expected a number and a unit, such as 45min, 2h or 1.5d"
        )
    seconds = float(found[1]) * UNITS[found[2]]
    if not 0 < seconds <= LONGEST_S:
        raise ConfigError(
            f"--deadline: {text!r} is {display.seconds(seconds)}; expected more than nothing and at most 30 days: no stack lives longer"
        )
    return seconds


def _parse_budget(text: str) -> float:
    """Return the dollars that `--budget` gives, with or without a `$` before the number. Raises ConfigError unless the text is a number
    above 0 and below 10^9.
    """
    try:
        usd = float(text.removeprefix("$"))
    except ValueError:
        usd = 0.0
    if not 0 < usd < 1e9:
        raise ConfigError(
            f"--budget: {text!r} is not an amount in dollars; expected a number above 0, such as 5 or 0.25"
        )
    return usd


def _parse_resources(names: Sequence[str]) -> tuple[str, ...]:
    """Return the resources that `--on-hand` lists, in the order of ON_HAND. Raises ConfigError for unknown resources, for none, and for
    spot alone.
    """
    given = [name.strip() for name in names if name.strip()]
    unknown = [name for name in given if name not in ON_HAND]
    if unknown or not given:
        raise ConfigError(
            f"--on-hand: {', '.join(unknown) or 'nothing'} is unknown; expected some of {', '.join(ON_HAND)}"
        )
    if set(given) == {"spot"}:
        raise ConfigError("--on-hand: spot is a price of instances, not a place to compute; add ec2 or gpu")
    return tuple(name for name in ON_HAND if name in given)


# --- subject ----------------------------------------------------------------------------------------------------------
# What is to be trained, as sizes: of the models and data sets that come with the project, and of the user's own.

PEAK_MARGIN = 1.3  # than a peak that was measured here: another allocator, another processor; assumed
# Settings on which a model's counts depend; MODEL_SIZES has them for the defaults.
COUNTED_SETTINGS = ("weights", "adapters", "trainable", "image_size", "memory_format")


def build_question(
    experiment: Experiment,
    calibration: Calibration = AWS,
    *,
    measured: Probe | None = None,
    gpu_row: Path | None = None,
) -> tuple[Question, Sizes, list[str]]:
    """Return (question, sizes, notes): the question for which candidates are evaluated, whose `base` is the experiment with `baseline:
    none`; the sizes of the model; and sentences on how the model's speed is known. The model and data are loaded, unless both come with the
    project and the model is trained as it was counted.

    `calibration`: speeds of AWS; `measured`: result of measuring the model on this machine, if that was done now, otherwise one that is
    kept beside the model's file is used (`own_speed`); `gpu_row`: file that `crossover probe` wrote on a GPU. Raises ConfigError if data
    set, weights or price list are missing or not valid, if `gpu_row` is no such file or of another model, precision or GPU, or if a kept
    speed is damaged; OwnCodeError if the user's model or loader fails.
    """
    workload, size, training = _count_known(experiment) or _count_loaded(experiment)
    measured = measured or own_speed.find_speed(experiment, workload)
    if measured is not None:
        calibration = measured.apply(calibration, workload.model)
    model, known = workload.model, workload.model in calibration.sample_s
    note = (
        measured.words
        if measured is not None
        else (
            f"{model}'s gradient takes as long as was measured on one core, and on a GPU what measured steps say"
            if known
            else f"{model}'s gradient is taken for {workload.macs:,} multiply-accumulates a sample forward; --probe would measure it"
        )
    )
    bounds = Sizes(
        vector_bytes=workload.vector_bytes,
        kept_bytes=max(size.kept_bytes, PEAK_MARGIN * measured.sample_bytes / OF_KEPT if measured else 0.0),
        evaluation_bytes=SAMPLES_OF_EVALUATION * size.widest_bytes,
        fixed_bytes=size.fixed_bytes,
    )
    calibration = calibration.with_uncertainty_of(workload.model)
    price_list, notes = prices.load(), [note]
    if gpu_row is not None:
        steps = measured_steps.read_measured_steps(gpu_row, workload, experiment.training.precision)
        _check_card(steps, gpu_row, price_list)
        said = measured_steps.describe(steps, workload)
        calibration = calibration.with_facts(*said, gpu_measured=steps, name=f"{calibration.name}, {steps.source}")
        notes += said
    return Question(_without_baseline(experiment), workload, training, calibration, price_list), bounds, notes


def _check_card(steps: MeasuredSteps, path: Path, price_list: Prices) -> None:
    """Raise ConfigError if no instance type in the price list has the GPU on which the steps were measured. `path`: file with the steps,
    for the message.
    """
    cards = sorted({card_of(each).name for each in list_instance_types(price_list, gpu=True)})
    if steps.card not in cards:
        raise ConfigError(
            f"--measured: {path}: measured on {steps.device}, which no candidate has; expected a row of {', '.join(cards)}"
        )


def make_sizes_function(experiment: Experiment) -> Callable[[Experiment], Workload]:
    """Return a function that takes an experiment with the model and data of `experiment`, and returns the sizes of its work. A user's model
    and data are loaded in this call to find out their sizes; it raises the errors of `build_question`.
    """
    try:
        Workload.from_experiment(experiment)
    except NoProjection:
        return build_question(experiment)[0].sizes
    return Workload.from_experiment


def size_run(experiment: Experiment) -> tuple[Workload, Calibration]:
    """Return (sizes, speeds) with which every command projects a run of the experiment: the sizes of its model and data, which are loaded
    if they are the user's own, and the speeds of AWS, with that of the user's model if it was measured and kept (`own_speed`). Raises
    NoProjection if the sizes stay unknown, also because the user's code fails; ConfigError if the data set is not available.
    """
    try:
        workload = Workload.from_experiment(experiment)
    except NoProjection as unknown:
        if not bundling.list_user_code_with_loader(experiment):
            raise
        try:
            workload = make_sizes_function(experiment)(experiment)
        except OwnCodeError as unusable:
            raise unknown from unusable
    return workload, own_speed.adopt_kept_speed(AWS, experiment, workload)


def _without_baseline(experiment: Experiment) -> Experiment:
    """Return the experiment with `baseline: none`, because a baseline would be a second deployment."""
    return replace(experiment, baseline="none")


def _count_known(experiment: Experiment) -> tuple[Workload, ModelSize, int] | None:
    """Return (sizes of the work, sizes of the model, number of training samples) of the experiment's model and data without loading torch.
    `samples` in the sizes of the work is a placeholder. None unless both come with the project and the model is trained as MODEL_SIZES
    counts it.
    """
    training, split = experiment.training, data_sizes.count_split(experiment)
    as_counted = Training(model=training.model)
    usual = all(getattr(training, each) == getattr(as_counted, each) for each in COUNTED_SETTINGS)
    if split is None or training.model not in MODEL_SIZES or not usual:
        return None
    samples, validation = split
    image = data_sizes.DATA[experiment.data.dataset].image
    size = MODEL_SIZES[training.model][image]
    workload = Workload(
        model=training.model,
        parameters=size.parameters,
        buffers=size.buffers,
        macs=size.macs,
        step=size.step,
        samples=(1,),  # each candidate has its own
        image_bytes=prod(image),
        validation_samples=validation,
    )
    return workload, size, samples


def _count_loaded(experiment: Experiment) -> "tuple[Workload, Footprint, int]":
    """Return (sizes of the work, sizes of the model, number of training samples) of the experiment's model and data, which are loaded.
    `samples` in the sizes of the work is a placeholder. Raises ConfigError if the data set or the weights are missing or not valid,
    OwnCodeError if the user's model or loader fails.
    """
    from crossover.learning import fitness, weights
    from crossover.learning.learner import explain_input_errors

    training = experiment.training
    sample, sample_bytes, classes, samples, validation = _describe_data(experiment)
    with explain_input_errors(sample, experiment.data.preprocess):
        found = fitness.measure_model(training, classes=classes, sample=sample)
    workload = Workload(
        model=training.model,
        parameters=found.parameters,
        buffers=found.buffers,
        macs=found.macs,
        step=found.step,
        samples=(1,),  # each candidate has its own
        image_bytes=sample_bytes,
        validation_samples=validation,
        training_share=fitness.compute_training_share(training, classes=classes, shape=tuple(sample.shape)),
        base_bytes=weights.get_file_size(training.weights),
    )
    return workload, found, samples


def _describe_data(experiment: Experiment) -> tuple[Any, int, int | None, int, int]:
    """Return (one input as a tensor, its bytes as stored, number of classes, number of training samples, number of validation samples) of
    the experiment's data. The number of classes is None if labels are numbers. The input is all zeros for data that comes with the project;
    another data set is loaded. Raises ConfigError if it is not available.
    """
    import torch

    known = data_sizes.count_split(experiment)
    if known is not None:
        training, validation = known
        image = data_sizes.DATA[experiment.data.dataset].image
        return torch.zeros(image), prod(image), 10, training, validation
    from crossover.learning.datasets import load
    from crossover.learning.samples import is_measured

    try:
        dataset = load(experiment)
    except DataError as missing:
        raise ConfigError(
            f"data.dataset: {experiment.data.dataset} is not available, so neither its samples nor their shape are known: {missing}"
        ) from missing
    staged = dataset.train_inputs[0]
    sample = staged.float() if is_measured(staged) else staged  # as it reaches the model
    return sample, staged.nbytes, dataset.classes, len(dataset.train_labels), len(dataset.validation_labels)
