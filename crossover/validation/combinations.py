"""Fields that are right one by one and impossible together: one function each, with the reason and the way out.

What an architecture alone refuses stands beside it, in the `checks` of its ARCHITECTURE.

`ALWAYS` and `OF_THE_TREE`, which needs the architecture's steps, hold wherever an experiment runs; `DEPLOYMENT` only on AWS.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields

from crossover.algorithms import codecs
from crossover.algorithms.codecs import CODECS
from crossover.algorithms.rules import bears
from crossover.architecture import Architecture, steps
from crossover.architecture.infrastructure import talks
from crossover.errors import ConfigError
from crossover.experiment import OF_TRAINING, Exchange, Experiment, ImageSize, Metric, Outer
from crossover.learning import sizes
from crossover.learning.staging import plan
from crossover.training.baselines import companions
from crossover.validation.documents import did_you_mean
from crossover.validation.machines import invocations_fit_a_history, minibatches_fit_a_list

Check = Callable[[Experiment], Iterable[str]]
ArchitectureCheck = Callable[[Experiment, Architecture], Iterable[str]]

NAME_LIMIT = 32
FUNCTION_NAME_LIMIT = 64  # AWS Lambda, a state machine may have 80; names are project-experiment-step
LONGEST_STEP = 24
KNOWN_DATASETS = tuple(sizes.DATA)
KNOWN_LOSSES = ("cross_entropy", "mse", "bce_with_logits")
KNOWN_METRICS = ("accuracy", "perplexity", "mean_absolute_error")
_OBJECTS = {"gradients": "gradients", "model": "models", "delta": "what models moved by"}


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


def dataset_known(e: Experiment) -> Iterator[str]:
    if e.data.dataset not in KNOWN_DATASETS and not _is_import(e.data.dataset):
        near = did_you_mean(e.data.dataset, list(KNOWN_DATASETS))
        yield f"data.dataset: {e.data.dataset!r} is unknown; one of {', '.join(KNOWN_DATASETS)}, or package.module:loader{near}"


def digits_have_no_test_split(e: Experiment) -> Iterator[str]:
    if e.data.dataset == "digits" and e.data.validation == "test":
        yield "data.validation: digits comes without a test split; give a share of the training set, for example 0.2"


def loss_known(e: Experiment) -> Iterator[str]:
    loss = e.training.loss
    if loss not in KNOWN_LOSSES and not _is_import(loss):
        near = did_you_mean(loss, list(KNOWN_LOSSES))
        yield f"training.loss: {loss!r} is unknown; one of {', '.join(KNOWN_LOSSES)}, or package.module:name{near}"


def smoothing_needs_classes(e: Experiment) -> Iterator[str]:
    if e.training.label_smoothing and e.training.loss != "cross_entropy":
        yield f"training.label_smoothing: belongs to cross_entropy, not to {e.training.loss}; leave it out"


def metric_known(e: Experiment) -> Iterator[str]:
    name = e.training.metric.name
    if name not in KNOWN_METRICS and not _is_import(name):
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
    if target is not None and e.training.metric.is_share and not 0 < target <= 1:
        yield f"training.target: {target:g} is no accuracy; expected a share > 0 and <= 1, such as 0.95"


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


def trimmed_mean_leaves_some(e: Experiment) -> Iterator[str]:
    rule, workers = e.aggregation, e.workers
    if rule.rule == "trimmed_mean" and 2 * rule.trim >= workers:
        yield (
            f"aggregation.trim: {rule.trim} at each end leaves none of {workers} workers; "
            f"expected at most {(workers - 1) // 2}, or at least {2 * rule.trim + 1} workers"
        )


def krum_has_enough_workers(e: Experiment) -> Iterator[str]:
    rule, workers = e.aggregation, e.workers
    if rule.rule == "krum" and workers < 2 * rule.faulty + 3:
        most = (workers - 3) // 2
        lower = f"aggregation.faulty of at most {most}, or " if most >= 0 else ""
        yield f"workers: {workers} are too few for krum with {rule.faulty} faulty; expected {lower}at least {2 * rule.faulty + 3} workers"


def krum_selects_among_honest(e: Experiment) -> Iterator[str]:
    rule, workers = e.aggregation, e.workers
    most = workers - rule.faulty - 2
    if rule.rule == "krum" and rule.select > most:
        yield (
            f"aggregation.select: {rule.select} of {workers} workers could take in a faulty one, with {rule.faulty} faulty; "
            f"expected at most workers - faulty - 2, {max(1, most)}"
        )


def dropping_is_borne(e: Experiment) -> Iterator[str]:
    rule = e.aggregation
    if rule.non_finite == "refuse":
        return
    if rule.rule == "mean":
        yield (
            "aggregation.non_finite: drop leaves out a faulty worker, and mean bears none; "
            "expected refuse, or aggregation.rule: median, trimmed_mean or krum"
        )
    elif bears(rule, e.workers) == 0:
        yield (
            f"aggregation.non_finite: drop could never drop anybody: {rule.rule} of {e.workers} workers bears no faulty one, as it is set; "
            "expected refuse, more workers, or a larger aggregation.trim or aggregation.faulty"
        )


def models_average(e: Experiment) -> Iterator[str]:
    if e.exchange.what != "gradients" and e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} combines gradients, and exchange.what: {e.exchange.what} averages "
            f"{_OBJECTS[e.exchange.what]}; "
            "expected mean, or exchange.what: gradients"
        )


def outer_belongs_to_delta(e: Experiment) -> Iterator[str]:
    outer, usual = e.exchange.outer, Outer()
    told = [field.name for field in fields(Outer) if getattr(outer, field.name) != getattr(usual, field.name)]
    if told and e.exchange.what != "delta":
        yield (
            f"exchange.outer.{told[0]}: belongs to exchange.what: delta, and what is {e.exchange.what}; "
            "leave it out, or set exchange.what: delta"
        )
    if e.exchange.what == "delta" and outer.nesterov and outer.momentum == 0:
        yield (
            "exchange.outer.nesterov: needs momentum; set exchange.outer.momentum, for example 0.9, or nesterov: false"
        )


def compression_has_its_settings(e: Experiment) -> Iterator[str]:
    usual, asked, own = Exchange(), e.exchange, {each.name for each in fields(CODECS[e.exchange.compression])}
    for of, codec in CODECS.items():
        for name in (each.name for each in fields(codec) if each.name not in own):
            if getattr(asked, name) != getattr(usual, name):
                yield (
                    f"exchange.{name}: belongs to exchange.compression: {of}, and compression is {asked.compression}; "
                    f"leave it out, or set exchange.compression: {of}"
                )


def errors_are_fed_back(e: Experiment) -> Iterator[str]:
    kind, kept = e.exchange.compression, e.exchange.error_feedback
    if kept and kind == "none":
        yield "exchange.error_feedback: true, and without compression nothing is left out that could be fed back; leave it out"
    elif kept and (grows := codecs.named(e.exchange).grows):
        yield f"exchange.error_feedback: {grows}"


def compressed_gradients_are_averaged(e: Experiment) -> Iterator[str]:
    kind, rule = e.exchange.compression, e.aggregation.rule
    if rule == "mean" or not (reason := CODECS[kind].only_mean):
        return
    others = " or ".join(name for name, each in CODECS.items() if not each.only_mean)
    yield (
        f"aggregation.rule: {rule} compares the workers' gradients, and with {kind} {reason}; "
        f"expected mean, or exchange.compression: {others}"
    )


def compression_sees_what_is_dropped(e: Experiment) -> Iterator[str]:
    kind, fed_back = e.exchange.compression, e.exchange.error_feedback
    keeps = CODECS[kind].keeps_non_finite
    if e.aggregation.non_finite != "drop" or kind == "none" or (keeps and not fed_back):
        return
    why = "error feedback would keep it for all rounds" if keeps else f"{kind} cannot encode it"
    yield (
        f"aggregation.non_finite: drop must see what is not finite, and {why}; "
        "expected refuse, or exchange.compression: none or fp16 without error feedback"
    )


def codec_takes_the_model(e: Experiment) -> Iterator[str]:
    """Of a model that comes with the project; of one's own, preparing the run says so."""
    size = sizes.DATA.get(e.data.dataset)
    codec = codecs.named(e.exchange)
    if not codec.needs_shapes or _is_import(e.training.model) or size is None:
        return
    from crossover.learning.learner import shapes_of  # torch comes with it, which no other check needs

    try:
        if reason := codec.problem(shapes_of(e.training.model, 10, size.image)):
            yield reason
    except ConfigError:
        return  # the model is unknown: that is told elsewhere


def attack_has_attackers(e: Experiment) -> Iterator[str]:
    if e.faults.attack != "none" and not e.faults.workers:
        yield (
            f"faults.workers: empty, so nobody would carry out {e.faults.attack}; "
            "expected ranks, for example [0], or faults.attack: none"
        )


def attackers_exist(e: Experiment) -> Iterator[str]:
    outside = [rank for rank in e.faults.workers if not 0 <= rank < e.workers]
    if outside:
        yield f"faults.workers: {outside[0]} is not a rank of this run; expected ranks from 0 to {e.workers - 1}"
    elif len(set(e.faults.workers)) < len(e.faults.workers):
        yield f"faults.workers: {list(e.faults.workers)} names a rank twice; expected each once"


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
        yield f"exchange.what: {e.architecture} does not exchange {_OBJECTS[what]}; expected {' or '.join(architecture.exchanges)}"
    elif kind not in ways:
        if kind in architecture.exchanges.get("delta", ()):
            why = "what models moved by can be compressed, exchange.what: delta, a model itself would be changed everywhere"
        else:
            why = architecture.why_not
        yield (
            f"exchange.compression: {kind}: {e.architecture} does not compress {_OBJECTS[what]} so{why and f': {why}'}; "
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


ALWAYS: tuple[Check, ...] = (
    name_fits,
    project_fits,
    owner_is_a_tag,
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
    compression_has_its_settings,
    errors_are_fed_back,
    compressed_gradients_are_averaged,
    compression_sees_what_is_dropped,
    codec_takes_the_model,
    attack_has_attackers,
    attackers_exist,
    nesterov_needs_momentum,
    one_cycle_rises,
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


def _is_import(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon) and attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))
