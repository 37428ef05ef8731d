"""Fields that are right one by one and impossible together: one function each, with the reason and the way out.

What an architecture alone refuses stands beside it, in the `checks` of its ARCHITECTURE.

`ALWAYS` and `OF_THE_TREE`, which needs the architecture's steps, hold wherever an experiment runs; `DEPLOYMENT` only on AWS.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from crossover.architecture import Architecture, steps
from crossover.architecture.infrastructure import talks
from crossover.errors import ConfigError
from crossover.experiment import OF_TRAINING, Experiment, ImageSize, Metric
from crossover.learning import sizes
from crossover.learning.staging import plan
from crossover.training.baselines import companions
from crossover.validation.documents import did_you_mean, is_import
from crossover.validation.exchanges import (
    OBJECTS,
    attack_has_attackers,
    attackers_exist,
    codec_takes_the_model,
    compressed_gradients_are_averaged,
    compression_has_its_settings,
    compression_sees_what_is_dropped,
    dropping_is_borne,
    errors_are_fed_back,
    krum_has_enough_workers,
    krum_selects_among_honest,
    models_average,
    outer_belongs_to_delta,
    steps_are_exchanged,
    trimmed_mean_leaves_some,
)
from crossover.validation.fine_tuning import adapters_fit_own_models, steps_are_taken_as_asked
from crossover.validation.machines import invocations_fit_a_history, minibatches_fit_a_list

Refusal = Callable[[Experiment], Iterable[str]]
ArchitectureCheck = Callable[[Experiment, Architecture], Iterable[str]]

NAME_LIMIT = 32
FUNCTION_NAME_LIMIT = 64  # AWS Lambda, a state machine may have 80; names are project-experiment-step
LONGEST_STEP = 24
KNOWN_DATASETS = tuple(sizes.DATA)
KNOWN_LOSSES = ("cross_entropy", "mse", "bce_with_logits")
KNOWN_METRICS = ("accuracy", "perplexity", "mean_absolute_error")


def name_fits(e: Experiment) -> Iterator[str]:
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", e.name) or len(e.name) > NAME_LIMIT:
        yield (
            f"name: {e.name!r} is not allowed; expected lower-case letters, digits and single hyphens, a letter first, "
            f"at most {NAME_LIMIT} characters: AWS names are made from it"
        )


def project_fits(e: Experiment) -> Iterator[str]:
    room = FUNCTION_NAME_LIMIT - LONGEST_STEP - 2
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", e.project):
        yield f"project: {e.project!r} is not allowed; expected lower-case letters, digits and single hyphens, a letter first"
    elif len(e.project) + len(e.name) > room:
        yield (
            f"project: {e.project!r} and name {e.name!r} have {len(e.project) + len(e.name)} characters together; at most {room} "
            f"fit, because a function's name holds both and ends at {FUNCTION_NAME_LIMIT}"
        )


def owner_is_a_tag(e: Experiment) -> Iterator[str]:
    if not re.fullmatch(r"[\w +\-=.:/@]{1,256}", e.owner):
        yield f"owner: {e.owner!r} is not allowed; expected 1 to 256 letters, digits, blanks or + - = . _ : / @, as an AWS tag takes them"


def topic_is_an_arn(e: Experiment) -> Iterator[str]:
    if e.lifetime.notify and not re.fullmatch(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w-]{1,256}", e.lifetime.notify):
        yield (
            f"lifetime.notify: {e.lifetime.notify!r} is no SNS topic; expected its ARN, as aws sns create-topic --name NAME prints it "
            "(aws sns subscribe brings an e-mail address to it)"
        )


def dataset_known(e: Experiment) -> Iterator[str]:
    if e.data.dataset not in KNOWN_DATASETS and not is_import(e.data.dataset):
        near = did_you_mean(e.data.dataset, list(KNOWN_DATASETS))
        yield f"data.dataset: {e.data.dataset!r} is unknown; one of {', '.join(KNOWN_DATASETS)}, or package.module:loader{near}"


def digits_have_no_test_split(e: Experiment) -> Iterator[str]:
    if e.data.dataset == "digits" and e.data.validation == "test":
        yield "data.validation: digits comes without a test split; give a share of the training set, for example 0.2"


def loss_known(e: Experiment) -> Iterator[str]:
    loss = e.training.loss
    if loss not in KNOWN_LOSSES and not is_import(loss):
        near = did_you_mean(loss, list(KNOWN_LOSSES))
        yield f"training.loss: {loss!r} is unknown; one of {', '.join(KNOWN_LOSSES)}, or package.module:name{near}"


def smoothing_needs_classes(e: Experiment) -> Iterator[str]:
    if e.training.label_smoothing and e.training.loss != "cross_entropy":
        yield f"training.label_smoothing: belongs to cross_entropy, not to {e.training.loss}; leave it out"


def metric_known(e: Experiment) -> Iterator[str]:
    name = e.training.metric.name
    if name not in KNOWN_METRICS and not is_import(name):
        near = did_you_mean(name, list(KNOWN_METRICS))
        yield f"training.metric.name: {name!r} is unknown; one of {', '.join(KNOWN_METRICS)}, or package.module:name{near}"


def metric_fits_the_loss(e: Experiment) -> Iterator[str]:
    loss, metric = e.training.loss, e.training.metric.name
    if metric == "accuracy" and loss == "mse":
        yield (
            "training.metric.name: accuracy counts right classes, and mse has none; expected mean_absolute_error, or "
            "package.module:name"
        )
    elif metric == "perplexity" and loss != "cross_entropy":
        yield f"training.metric.name: perplexity is exp of cross_entropy, not of {loss}; expected another metric"
    elif metric == "mean_absolute_error" and loss == "cross_entropy":
        yield "training.metric.name: mean_absolute_error is of numbers, cross_entropy has classes; expected accuracy"


def metric_has_its_direction(e: Experiment) -> Iterator[str]:
    metric = e.training.metric
    rises = Metric(name=metric.name).rises
    if metric.name in KNOWN_METRICS and metric.higher_is_better not in (None, rises):
        better = "higher" if rises else "lower"
        yield f"training.metric.higher_is_better: of {metric.name}, {better} is better; leave it out"
    if metric.name not in KNOWN_METRICS and metric.higher_is_better is None:
        yield f"training.metric.higher_is_better: is missing for {metric.name}; expected true or false"


def target_can_be_reached(e: Experiment) -> Iterator[str]:
    target = e.training.target
    if target is not None and (why := e.training.metric.not_reachable(target)):
        yield f"training.target: {why}"


def images_grow(e: Experiment) -> Iterator[str]:
    """Of a data set of one's own, loading says so."""
    begin, known = e.training.image_size.begin, sizes.DATA.get(e.data.dataset)
    if begin is None:
        given, plain = e.training.image_size, ImageSize()
        told = [each.name for each in fields(ImageSize) if getattr(given, each.name) != getattr(plain, each.name)]
        if told:
            yield f"training.image_size.{told[0]}: does nothing without training.image_size.begin; give it, or leave {told[0]} out"
        return
    if known is not None and begin >= known.image[1]:
        yield sizes.not_smaller(begin, e.data.dataset, known.image[1])
    if e.training.early_stopping or e.training.schedule == "plateau":
        yield (
            "training.image_size.begin: early stopping and the plateau schedule would judge epochs on smaller images, whose validation "
            "loss says little of what is to come; expected early_stopping: 0 and another schedule"
        )


def nesterov_needs_momentum(e: Experiment) -> Iterator[str]:
    if e.training.nesterov and e.training.optimizer != "sgd":
        yield f"training.nesterov: belongs to sgd, not to {e.training.optimizer}; set training.optimizer: sgd, or nesterov: false"
    elif e.training.nesterov and e.training.momentum == 0:
        yield "training.nesterov: needs momentum; set training.momentum, for example 0.9, or nesterov: false"


def fp16_needs_a_gpu(e: Experiment, architecture: Architecture) -> Iterator[str]:
    program = architecture.program
    if e.training.precision == "fp16" and (program is None or not program.instances(e).gpu):
        yield f"training.precision: fp16 needs a GPU, and {e.architecture} computes on CPUs; expected fp32 or bf16"


def one_cycle_rises(e: Experiment) -> Iterator[str]:
    if e.training.schedule == "one_cycle" and e.training.warm_up == 0:
        yield "training.warm_up: 0 leaves one_cycle no rise; expected more than 0 and less than 1, for example 0.2"


def plateau_comes_before_stop(e: Experiment) -> Iterator[str]:
    patience, stop = e.training.plateau_patience, e.training.early_stopping
    if e.training.schedule == "plateau" and 0 < stop <= patience:
        yield (
            f"training.early_stopping: {stop} ends the run before the plateau schedule first lowers the learning rate, after {patience} "
            f"epochs; expected more than {patience}, 0 for never, or a smaller training.plateau_patience"
        )


def gpus_are_workers(e: Experiment) -> Iterator[str]:
    gpus = e.gpu.instances * e.gpu.gpus_per_instance
    if "gpu" in (e.module, *e.baselines) and gpus != e.workers:
        yield (
            f"gpu.instances: {e.gpu.instances} x {e.gpu.gpus_per_instance} GPUs are {gpus} workers, but workers is {e.workers}; "
            "expected both equal"
        )


def baseline_has_room_for_its_name(e: Experiment) -> Iterator[str]:
    for companion in companions(e):
        for reason in [*name_fits(companion), *project_fits(companion)][:1]:
            yield f"baseline: {companion.module} deploys {companion.name!r} beside {e.name!r}, which does not fit; {reason}"


def memory_names_steps(e: Experiment, architecture: Architecture) -> Iterator[str]:
    known = ["default", *(step.name for step in steps(architecture))]
    unknown = [name for name in e.functions.memory_mb if name not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        yield f"functions.memory_mb.{unknown[0]}: is no step of {e.architecture}{near}; one of {', '.join(known)}"


def only_training_has(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """What an aggregation has no use for would be written down in vain."""
    usual = Experiment(name=e.name, architecture=e.architecture)
    told = [name for name in OF_TRAINING if getattr(e, name) != getattr(usual, name)]
    if architecture.trains or not told:
        return
    yield f"{told[0]}: {e.architecture} trains nothing: it averages gradients that are made; leave out {' and '.join(told)}"


def workers_share_the_data(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """As staging cuts it; of a data set that only loading would tell, staging says so itself."""
    if not architecture.trains:
        return
    try:
        if found := sizes.split(e):
            plan(architecture.resolve(e), found[0])
    except ConfigError as refused:
        yield str(refused)


def one_worker_is_alone(e: Experiment, architecture: Architecture) -> Iterator[str]:
    if not architecture.alone or e.workers == 1:
        return
    yield (
        f"workers: {e.workers}: {e.architecture} is one worker; expected 1, and exchange.every: {e.workers} where an update is to "
        "have as many minibatches"
    )


def channel_is_a_choice(e: Experiment, architecture: Architecture) -> Iterator[str]:
    keeps = architecture.state == "database"  # which would not be there
    if e.storage.channel == "s3" and (architecture.tensor_hosts != "shared" or keeps or talks(architecture)):
        yield (
            f"storage.channel: s3 is a choice of all-reduce and scatter-reduce; {e.architecture} exchanges in its own way; "
            "leave it out"
        )


def exchange_can_be_had(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Each architecture says what it can exchange, and how compressed; docs/exchange.md says why not the rest."""
    what, kind = e.exchange.what, e.exchange.compression
    if not architecture.trains:
        return
    if (ways := architecture.exchanges.get(what)) is None:
        yield f"exchange.what: {e.architecture} does not exchange {OBJECTS[what]}; expected {' or '.join(architecture.exchanges)}"
    elif kind not in ways:
        if kind in architecture.exchanges.get("delta", ()):
            why = "what models moved by can be compressed, exchange.what: delta, a model itself would be changed everywhere"
        else:
            why = architecture.why_not
        yield (
            f"exchange.compression: {kind}: {e.architecture} does not compress {OBJECTS[what]} so{why and f': {why}'}; "
            f"expected {' or '.join(ways)}. docs/exchange.md says what each can do, and why not the rest"
        )


def snap_start_needs_layers(e: Experiment) -> Iterator[str]:
    if e.functions.snap_start and e.functions.packaging == "image":
        yield "functions.snap_start: AWS offers it for zip packages only; set functions.packaging: layer, or snap_start: false"


def run_ends_before_its_stack(e: Experiment) -> Iterator[str]:
    if e.lifetime.maximum_run_hours > e.lifetime.ttl_hours:
        yield (
            f"lifetime.maximum_run_hours: {e.lifetime.maximum_run_hours:g} is longer than the stack lives; "
            f"expected at most lifetime.ttl_hours, {e.lifetime.ttl_hours:g}"
        )


def lambda_has_no_bf16(e: Experiment, architecture: Architecture) -> Iterator[str]:
    if e.training.precision == "bf16" and any(step.torch for step in steps(architecture)):
        yield "training.precision: bf16 is not native to Lambda's arm64 processors (Graviton2) and would be slower; expected fp32 on AWS"


ALWAYS: tuple[Refusal, ...] = (
    name_fits,
    project_fits,
    owner_is_a_tag,
    topic_is_an_arn,
    dataset_known,
    digits_have_no_test_split,
    loss_known,
    smoothing_needs_classes,
    metric_known,
    metric_fits_the_loss,
    metric_has_its_direction,
    target_can_be_reached,
    images_grow,
    trimmed_mean_leaves_some,
    krum_has_enough_workers,
    krum_selects_among_honest,
    dropping_is_borne,
    models_average,
    outer_belongs_to_delta,
    steps_are_exchanged,
    compression_has_its_settings,
    errors_are_fed_back,
    compressed_gradients_are_averaged,
    compression_sees_what_is_dropped,
    codec_takes_the_model,
    attack_has_attackers,
    attackers_exist,
    nesterov_needs_momentum,
    one_cycle_rises,
    adapters_fit_own_models,
    steps_are_taken_as_asked,
    plateau_comes_before_stop,
    gpus_are_workers,
    baseline_has_room_for_its_name,
    snap_start_needs_layers,
    run_ends_before_its_stack,
)
OF_THE_TREE: tuple[ArchitectureCheck, ...] = (
    memory_names_steps,
    only_training_has,
    one_worker_is_alone,
    workers_share_the_data,
    channel_is_a_choice,
    exchange_can_be_had,
    fp16_needs_a_gpu,
    minibatches_fit_a_list,
)
DEPLOYMENT: tuple[ArchitectureCheck, ...] = (lambda_has_no_bf16, invocations_fit_a_history)
