"""Rules that refuse combinations of fields: each field is right by itself, but together they are impossible. One function per rule; each
yields a message per problem.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace

from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.outer import OUTER
from crossover.algorithms.rules import RULES
from crossover.errors import ConfigError
from crossover.experiment import BROKER_VERSION, Adapters, Experiment, ImageSize, Metric, Training
from crossover.learning import sizes
from crossover.learning.staging import plan_staging
from crossover.training.gradients import build_baselines
from crossover.validation.documents import did_you_mean, is_import
from crossover.validation.exchanges import (
    OBJECTS,
    attack_has_attackers,
    attackers_exist,
    codec_supports_error_feedback,
    codec_takes_the_model,
    compressed_gradients_are_averaged,
    compression_has_its_settings,
    compression_sees_what_is_dropped,
    dropping_is_borne,
    krum_has_enough_workers,
    krum_selects_among_honest,
    models_average,
    outer_belongs_to_delta,
    steps_need_exchanged_gradients,
    trimmed_mean_leaves_some,
)
from crossover.workflow import Child, Repeat, walk
from crossover.workflow.architecture import Architecture, steps, trees
from crossover.workflow.infrastructure import (
    database_hosts,
    has_invocation_loop,
    has_minibatch_map,
    most_minibatches,
    uses_bus,
)
from crossover.workflow.state_machines import ARRAY_LIMIT, HISTORY_LIMIT

# --- fine tuning ------------------------------------------------------------------------------------------------------


def adapters_fit_own_models(e: Experiment) -> Iterator[str]:
    """Yield an error message for each setting of fine-tuning (adapters, weights, trainable parameters, what is saved) that needs a model
    of the user's own and does not have one, or that has no effect.
    """
    training, usual = e.training, Adapters()
    asked, told = (
        training.adapters,
        [name for name in ("rank", "alpha") if getattr(training.adapters, name) != getattr(usual, name)],
    )
    if told and not asked.targets:
        yield f"training.adapters.{told[0]}: does nothing without training.adapters.targets; give them, or leave {told[0]} out"
    for name, given in (
        ("weights.file", training.weights.file),
        ("adapters.targets", asked.targets),
        ("trainable", training.trainable),
    ):
        if given and not is_import(training.model):
            yield f"training.{name}: belongs to a model of your own, package.module:factory; one that returns {training.model} will do"
    if training.weights.sha256 and not training.weights.file:
        yield "training.weights.sha256: does nothing without training.weights.file; give it, or leave sha256 out"
    if training.trainable == () and not asked.targets:
        yield "training.trainable: empty, so that everything would be frozen; expected names or patterns of parameters, or leave it out"
    if training.save != "all" and not asked.targets and training.trainable is None:
        yield f"training.save: {training.save} belongs to training.adapters or training.trainable; expected all"


def optimizer_settings_have_effect(e: Experiment) -> Iterator[str]:
    """Yield an error message for each setting of the optimizer or of the learning-rate schedule that has no effect with the others."""
    training, usual = e.training, Training()
    if training.betas != usual.betas and training.optimizer not in ("adam", "adamw"):
        yield f"training.betas: belongs to adam and adamw, not to {training.optimizer}; leave it out"
    if training.no_decay and not training.weight_decay:
        yield "training.no_decay: does nothing without training.weight_decay; give it, or leave no_decay out"
    if training.floor and training.schedule != "cosine":
        yield f"training.floor: belongs to cosine, not to {training.schedule}; leave it out, or set training.schedule: cosine"


# --- machines ---------------------------------------------------------------------------------------------------------
# What Step Functions cannot do for a tree: lists too long, histories too short.

_EVENTS = 7  # of an invocation and the question whether another one follows
_EVENTS_OF_A_CHILD = 8  # and that question
_OTHER_EVENTS = 1_000


def minibatches_fit_a_list(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if a worker has more minibatches in a round than Step Functions can list for a Map that runs them side by
    side. Nothing is yielded if the number is known only after the data set is loaded, or the architecture has no such Map.
    """
    most = most_minibatches(e)
    if most is None or most <= ARRAY_LIMIT or not has_minibatch_map(architecture):
        return
    yield explain_too_many_minibatches(e, most)


def explain_too_many_minibatches(e: Experiment, minibatches: int) -> str:
    """Return the error message for a worker that has `minibatches` minibatches in a round, more than Step Functions can list. It names the
    smallest batch size that would do. Whether there are too many is not checked.
    """
    fewest = -(-minibatches * e.training.batch_size // ARRAY_LIMIT)
    return (
        f"training.batch_size: {e.training.batch_size} gives a worker {minibatches:,} minibatches in a round, and Step Functions lists at "
        f"most {ARRAY_LIMIT:,} side by side; expected at least {fewest}, more workers, or exchange.every of at most {ARRAY_LIMIT}"
    )


def invocations_fit_a_history(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the longest allowed run (`lifetime.maximum_run_hours`) has more invocations, each lasting 90 % of
    `functions.timeout_s`, than the history of one execution of Step Functions holds.

    Only for architectures whose step is invoked again and again.
    """
    if not has_invocation_loop(architecture):
        return
    turn_s = 0.9 * e.functions.timeout_s
    turns = (HISTORY_LIMIT - _OTHER_EVENTS) / _EVENTS
    most_hours = turns * turn_s / 3_600
    if e.lifetime.maximum_run_hours <= most_hours:
        return
    timeout_s = -(-e.lifetime.maximum_run_hours * 3_600 // (0.9 * turns))
    other = f", or functions.timeout_s of at least {timeout_s:.0f}" if timeout_s <= 900 else ""
    yield (
        f"lifetime.maximum_run_hours: {e.lifetime.maximum_run_hours:g} hours of invocations of {e.functions.timeout_s} s leave more than "
        f"the {HISTORY_LIMIT:,} events that Step Functions keeps of one execution; expected at most {most_hours:.1f}{other}"
    )


def loops_fit_a_history(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if an execution of Step Functions starts more child executions (one for every epoch, or one for every round
    of an epoch) than its history holds. Rounds are checked only for data sets whose size is known without loading them.
    """
    most = (HISTORY_LIMIT - _OTHER_EVENTS) // _EVENTS_OF_A_CHILD
    loops = {
        node.until
        for tree in trees(architecture)
        for node in walk(tree)
        if isinstance(node, Repeat) and isinstance(node.body, Child)
    }
    if "finished" in loops and e.training.epochs > most:
        yield (
            f"training.epochs: {e.training.epochs:,}: a worker's execution starts one for each, and the {HISTORY_LIMIT:,} events that Step "
            f"Functions keeps of it last for {most:,}; expected at most {most:,} on AWS"
        )
    found, asked = sizes.count_split(e), architecture.resolve(e)
    every = asked.exchange.every
    if "epoch_finished" in loops and found is not None and isinstance(every, int):
        minibatches = plan_staging(asked, found[0]).minibatches
        if (rounds := -(-minibatches // every)) > most:
            yield (
                f"exchange.every: {every}: an epoch has {rounds:,} rounds, its execution starts one for each, and the "
                f"{HISTORY_LIMIT:,} events that Step Functions keeps of it last for {most:,}; expected at least "
                f"{-(-minibatches // most)} on AWS"
            )


# --- instances --------------------------------------------------------------------------------------------------------
# Types that a template takes and AWS then refuses, when the network and the broker have been paid for.

# Source: docs.aws.amazon.com/ec2/latest/instancetypes, "EBS specifications" of current and previous generations.
WITHOUT_EBS_OPTIMIZATION = re.compile(
    r"t[12]\..*|c1\.medium|m1\.(small|medium)|m2\.xlarge|m3\.(medium|large)|[cr]3\.large|(c3|i2|r3)\.8xlarge"
)


def hosts_have_optimized_disks(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the experiment needs database hosts and their instance type has no EBS-optimized disks."""
    kind = e.database.instance_type
    if database_hosts(e, architecture) and WITHOUT_EBS_OPTIMIZATION.fullmatch(kind):
        yield (
            f"database.instance_type: {kind!r}: its disks cannot be EBS-optimized, as every database host's are, so EC2 would refuse to "
            "start it; expected a newer type, for example t3.small or m7g.large"
        )


def broker_type_has_the_version(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the experiment needs the broker and Amazon MQ does not offer the project's RabbitMQ version on the broker's
    instance type.

    Source: docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-4.html.
    """
    kind = e.network.broker_instance_type
    if uses_bus(architecture) and not re.fullmatch(r"mq\.m7g\.(medium|large|([248]|1[26])?xlarge)", kind):
        yield (
            f"network.broker_instance_type: {kind!r}: Amazon MQ runs RabbitMQ {BROKER_VERSION} on the family mq.m7g alone; expected "
            "mq.m7g.medium, large, xlarge, 2xlarge, 4xlarge, 8xlarge, 12xlarge or 16xlarge"
        )


# --- placement --------------------------------------------------------------------------------------------------------
# Where arithmetic runs: in the tensor database, unless it lacks a command for the experiment's optimizer or rule.


def list_missing_commands(e: Experiment) -> list[str]:
    """Return the names of those settings for which the tensor database has no command; empty if it can compute everything. If workers
    exchange gradients, they are of the optimizer, the aggregation rule, training.clip and training.no_decay; otherwise of the outer
    optimizer and the rule alone, because functions take the local steps.
    """
    optimizer = e.training.optimizer if e.exchange.what == "gradients" else OUTER  # functions take local steps
    commands = {
        optimizer: OPTIMIZERS[optimizer].command,
        e.aggregation.rule: RULES[e.aggregation.rule].command,
    }
    asked = {
        "training.clip": e.training.clip.norm,
        "training.no_decay": e.training.no_decay,
    }  # which its commands do not take
    ours = [name for name, given in asked.items() if given and e.exchange.what == "gradients"]
    return [*(name for name, command in commands.items() if command is None), *ours]


def choose_compute(e: Experiment) -> Experiment:
    """Return the experiment, with `database.compute: fetch` if the tensor database lacks a command that the experiment needs; otherwise
    unchanged.

    Functions then fetch the vectors and compute themselves, which `plan` reports. All computations move together, because a run that
    computes in two places compares nothing.
    """
    return replace(e, database=replace(e.database, compute="fetch")) if list_missing_commands(e) else e


# --- combinations -----------------------------------------------------------------------------------------------------
# Fields that are right one by one and impossible together: one function each, with the reason and the way out.
#
# Refusals of one architecture are beside it, in the `checks` of its ARCHITECTURE.
#
# `ALWAYS`, and `OF_THE_TREE`, which needs the architecture's steps, apply to every run; `DEPLOYMENT` only to runs on AWS.

Refusal = Callable[[Experiment], Iterable[str]]
ArchitectureCheck = Callable[[Experiment, Architecture], Iterable[str]]

NAME_LIMIT = 32
FUNCTION_NAME_LIMIT = 64  # AWS Lambda, a state machine may have 80; names are project-experiment-step
LONGEST_STEP = 24
PROJECT_AND_NAME_LIMIT = FUNCTION_NAME_LIMIT - LONGEST_STEP - 2  # characters of both together
KNOWN_DATASETS = tuple(sizes.DATA)
KNOWN_LOSSES = ("cross_entropy", "mse", "bce_with_logits")
KNOWN_METRICS = ("accuracy", "perplexity", "mean_absolute_error")


def name_fits(e: Experiment) -> Iterator[str]:
    """Yield an error message if the experiment's name cannot be part of AWS names, or is too long."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", e.name) or len(e.name) > NAME_LIMIT:
        yield (
            f"name: {e.name!r} is not allowed; expected lower-case letters, digits and single hyphens, a letter first, "
            f"at most {NAME_LIMIT} characters: AWS names are made from it"
        )


def project_fits(e: Experiment) -> Iterator[str]:
    """Yield an error message if the project's name cannot be part of AWS names, or if it is too long together with the experiment's
    name.
    """
    room = PROJECT_AND_NAME_LIMIT
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", e.project):
        yield f"project: {e.project!r} is not allowed; expected lower-case letters, digits and single hyphens, a letter first"
    elif len(e.project) + len(e.name) > room:
        yield (
            f"project: {e.project!r} and name {e.name!r} have {len(e.project) + len(e.name)} characters together; at most {room} "
            f"fit, because a function's name holds both and ends at {FUNCTION_NAME_LIMIT}"
        )


def owner_is_a_tag(e: Experiment) -> Iterator[str]:
    """Yield an error message if `owner` has characters, or a length, that the value of an AWS tag cannot have."""
    if not re.fullmatch(r"[\w +\-=.:/@]{1,256}", e.owner):
        yield f"owner: {e.owner!r} is not allowed; expected 1 to 256 letters, digits, blanks or + - = . _ : / @, as an AWS tag takes them"


def topic_is_an_arn(e: Experiment) -> Iterator[str]:
    """Yield an error message if `lifetime.notify` is set and is not the ARN of an SNS topic."""
    if e.lifetime.notify and not re.fullmatch(r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w-]{1,256}", e.lifetime.notify):
        yield (
            f"lifetime.notify: {e.lifetime.notify!r} is no SNS topic; expected its ARN, as aws sns create-topic --name NAME prints it "
            "(aws sns subscribe brings an e-mail address to it)"
        )


def dataset_known(e: Experiment) -> Iterator[str]:
    """Yield an error message if `data.dataset` is neither one of the project's data sets nor an import path (`package.module:name`)."""
    if e.data.dataset not in KNOWN_DATASETS and not is_import(e.data.dataset):
        near = did_you_mean(e.data.dataset, list(KNOWN_DATASETS))
        yield f"data.dataset: {e.data.dataset!r} is unknown; one of {', '.join(KNOWN_DATASETS)}, or package.module:loader{near}"


def digits_have_no_test_split(e: Experiment) -> Iterator[str]:
    """Yield an error message if the data set digits is to be validated on its test split, which it does not have."""
    if e.data.dataset == "digits" and e.data.validation == "test":
        yield "data.validation: digits comes without a test split; give a share of the training set, for example 0.2"


def loss_known(e: Experiment) -> Iterator[str]:
    """Yield an error message if `training.loss` is neither one of the project's losses nor an import path (`package.module:name`)."""
    loss = e.training.loss
    if loss not in KNOWN_LOSSES and not is_import(loss):
        near = did_you_mean(loss, list(KNOWN_LOSSES))
        yield f"training.loss: {loss!r} is unknown; one of {', '.join(KNOWN_LOSSES)}, or package.module:name{near}"


def smoothing_needs_classes(e: Experiment) -> Iterator[str]:
    """Yield an error message if `training.label_smoothing` is set with another loss than cross_entropy."""
    if e.training.label_smoothing and e.training.loss != "cross_entropy":
        yield f"training.label_smoothing: belongs to cross_entropy, not to {e.training.loss}; leave it out"


def scaled_labels_are_numbers(e: Experiment) -> Iterator[str]:
    """Yield an error message if labels are always to be scaled, but the loss takes them as classes."""
    if e.data.scale_labels == "always" and e.training.loss in ("cross_entropy", "bce_with_logits"):
        yield (
            f"data.scale_labels: always: labels of {e.training.loss} are no numbers to scale; expected auto, or training.loss: mse or one "
            "of your own"
        )


def metric_known(e: Experiment) -> Iterator[str]:
    """Yield an error message if the metric is neither one of the project's nor an import path (`package.module:name`)."""
    name = e.training.metric.name
    if name not in KNOWN_METRICS and not is_import(name):
        near = did_you_mean(name, list(KNOWN_METRICS))
        yield f"training.metric.name: {name!r} is unknown; one of {', '.join(KNOWN_METRICS)}, or package.module:name{near}"


def metric_fits_the_loss(e: Experiment) -> Iterator[str]:
    """Yield an error message if one of the project's metrics cannot be computed from a model trained with one of the project's losses."""
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
    """Yield an error message if `higher_is_better` is wrong for a known metric, or missing for an unknown one."""
    metric = e.training.metric
    rises = Metric(name=metric.name).higher_wins
    if metric.name in KNOWN_METRICS and metric.higher_is_better not in (None, rises):
        better = "higher" if rises else "lower"
        yield f"training.metric.higher_is_better: of {metric.name}, {better} is better; leave it out"
    if metric.name not in KNOWN_METRICS and metric.higher_is_better is None:
        yield f"training.metric.higher_is_better: is missing for {metric.name}; expected true or false"


def target_can_be_reached(e: Experiment) -> Iterator[str]:
    """Yield an error message if `training.target` is a value that the metric can never reach."""
    target = e.training.target
    if target is not None and (why := e.training.metric.explain_unreachable(target)):
        yield f"training.target: {why}"


def images_grow(e: Experiment) -> Iterator[str]:
    """Yield an error message if the settings of a growing image size (`training.image_size`) have no effect, or do not fit the data set,
    early stopping or the schedule. A user's data set is checked when it is loaded.
    """
    begin, known = e.training.image_size.begin, sizes.DATA.get(e.data.dataset)
    if begin is None:
        given, plain = e.training.image_size, ImageSize()
        told = [each.name for each in fields(ImageSize) if getattr(given, each.name) != getattr(plain, each.name)]
        if told:
            yield f"training.image_size.{told[0]}: does nothing without training.image_size.begin; give it, or leave {told[0]} out"
        return
    if known is not None and begin >= known.image[1]:
        yield sizes.explain_too_large(begin, e.data.dataset, known.image[1])
    if e.training.early_stopping or e.training.schedule == "plateau":
        yield (
            "training.image_size.begin: early stopping and the plateau schedule would judge epochs on smaller images, whose validation "
            "loss says little of what is to come; expected early_stopping: 0 and another schedule"
        )


def nesterov_needs_momentum(e: Experiment) -> Iterator[str]:
    """Yield an error message if `training.nesterov` is set without SGD or without momentum."""
    if e.training.nesterov and e.training.optimizer != "sgd":
        yield f"training.nesterov: belongs to sgd, not to {e.training.optimizer}; set training.optimizer: sgd, or nesterov: false"
    elif e.training.nesterov and e.training.momentum == 0:
        yield "training.nesterov: needs momentum; set training.momentum, for example 0.9, or nesterov: false"


def fp16_needs_a_gpu(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if `training.precision` is fp16 and the architecture computes on CPUs."""
    program = architecture.program
    if e.training.precision == "fp16" and (program is None or not program.instances(e).gpu):
        yield f"training.precision: fp16 needs a GPU, and {e.architecture} computes on CPUs; expected fp32 or bf16"


def one_cycle_rises(e: Experiment) -> Iterator[str]:
    """Yield an error message if the schedule one_cycle is set without a warm-up (`training.warm_up` is 0)."""
    if e.training.schedule == "one_cycle" and e.training.warm_up == 0:
        yield "training.warm_up: 0 leaves one_cycle no rise; expected more than 0 and less than 1, for example 0.2"


def plateau_comes_before_stop(e: Experiment) -> Iterator[str]:
    """Yield an error message if early stopping ends the run before the plateau schedule can lower the learning rate."""
    patience, stop = e.training.plateau_patience, e.training.early_stopping
    if e.training.schedule == "plateau" and 0 < stop <= patience:
        yield (
            f"training.early_stopping: {stop} ends the run before the plateau schedule first lowers the learning rate, after {patience} "
            f"epochs; expected more than {patience}, 0 for never, or a smaller training.plateau_patience"
        )


def gpus_are_workers(e: Experiment) -> Iterator[str]:
    """Yield an error message if the number of GPUs differs from the number of workers, for an experiment on GPUs or one with a GPU
    baseline.
    """
    gpus = e.gpu.instances * e.gpu.gpus_per_instance
    if "gpu" in (e.module, *e.baselines) and gpus != e.workers:
        yield (
            f"gpu.instances: {e.gpu.instances} x {e.gpu.gpus_per_instance} GPUs are {gpus} workers, but workers is {e.workers}; "
            "expected both equal"
        )


def baseline_has_room_for_its_name(e: Experiment) -> Iterator[str]:
    """Yield an error message if the name of a baseline's experiment, which is longer than the experiment's own, is not allowed."""
    for companion in build_baselines(e):
        for reason in [*name_fits(companion), *project_fits(companion)][:1]:
            yield f"baseline: {companion.module} deploys {companion.name!r} beside {e.name!r}, which does not fit; {reason}"


def memory_names_steps(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if `functions.memory_mb` names a step that the architecture does not have; only the first is named."""
    known = ["default", *(step.name for step in steps(architecture))]
    unknown = [name for name in e.functions.memory_mb if name not in known]
    if unknown:
        near = did_you_mean(unknown[0], known)
        yield f"functions.memory_mb.{unknown[0]}: is no step of {e.architecture}{near}; one of {', '.join(known)}"


def workers_share_the_data(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the data set cannot be divided among the workers. Nothing is yielded if its size is known only after
    loading; preparing the run then reports the problem.
    """
    try:
        if found := sizes.count_split(e):
            plan_staging(architecture.resolve(e), found[0])
    except ConfigError as refused:
        yield str(refused)


def one_worker_is_alone(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the architecture has a single worker, but `workers` is more than 1."""
    if not architecture.alone or e.workers == 1:
        return
    yield (
        f"workers: {e.workers}: {e.architecture} has one worker; expected 1. For updates of as many minibatches set exchange.every: "
        f"{e.workers}"
    )


def channel_is_a_choice(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if `storage.channel` is s3, but the architecture cannot exchange through the bucket."""
    keeps = architecture.state == "database"  # which would not be there
    if e.storage.channel == "s3" and (architecture.tensor_hosts != "shared" or keeps or uses_bus(architecture)):
        yield (
            f"storage.channel: s3 is a choice of all-reduce and scatter-reduce; {e.architecture} exchanges in its own way; "
            "leave it out"
        )


def exchange_can_be_had(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the architecture does not support `exchange.what`, or not `exchange.compression` with it; docs/exchange.md
    explains why.
    """
    what, kind = e.exchange.what, e.exchange.compression
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
    """Yield an error message if SnapStart is set for functions that are packaged as container images."""
    if e.functions.snap_start and e.functions.packaging == "image":
        yield "functions.snap_start: AWS offers it for zip packages only; set functions.packaging: layer, or snap_start: false"


def run_ends_before_its_stack(e: Experiment) -> Iterator[str]:
    """Yield an error message if a run may last longer than its stack exists (`lifetime.ttl_hours`)."""
    if e.lifetime.maximum_run_hours > e.lifetime.ttl_hours:
        yield (
            f"lifetime.maximum_run_hours: {e.lifetime.maximum_run_hours:g} is longer than the stack lives; "
            f"expected at most lifetime.ttl_hours, {e.lifetime.ttl_hours:g}"
        )


def lambda_has_no_bf16(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if Lambda functions would compute in bf16: Lambda's ARM processors do not support it natively."""
    if e.training.precision == "bf16" and any(step.torch for step in steps(architecture)):
        yield "training.precision: bf16 is not native to Lambda's arm64 processors (Graviton2) and would be slower; expected fp32 on AWS"


_WITHOUT_BF16 = re.compile(r"(g2|g3s?|g4dn|g5g|p2|p3(dn)?)\.")  # families whose GPUs are older than Ampere


def card_has_bf16(e: Experiment, architecture: Architecture) -> Iterator[str]:
    """Yield an error message if the experiment computes in bf16 on instances whose GPU does not support it."""
    program = architecture.program
    if e.training.precision != "bf16" or program is None:
        return
    asked = program.instances(e)
    if asked.gpu and _WITHOUT_BF16.match(asked.instance_type):
        yield (
            f"training.precision: the GPU of {asked.instance_type} has no bfloat16; expected fp16 or fp32, or a type of g5, g6 or g6e as "
            f"{asked.setting}"
        )


ALWAYS: tuple[Refusal, ...] = (
    name_fits,
    project_fits,
    owner_is_a_tag,
    topic_is_an_arn,
    dataset_known,
    digits_have_no_test_split,
    loss_known,
    smoothing_needs_classes,
    scaled_labels_are_numbers,
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
    steps_need_exchanged_gradients,
    compression_has_its_settings,
    codec_supports_error_feedback,
    compressed_gradients_are_averaged,
    compression_sees_what_is_dropped,
    codec_takes_the_model,
    attack_has_attackers,
    attackers_exist,
    nesterov_needs_momentum,
    one_cycle_rises,
    adapters_fit_own_models,
    optimizer_settings_have_effect,
    plateau_comes_before_stop,
    gpus_are_workers,
    baseline_has_room_for_its_name,
    snap_start_needs_layers,
    run_ends_before_its_stack,
)
OF_THE_TREE: tuple[ArchitectureCheck, ...] = (
    memory_names_steps,
    one_worker_is_alone,
    workers_share_the_data,
    channel_is_a_choice,
    exchange_can_be_had,
    fp16_needs_a_gpu,
    minibatches_fit_a_list,
)
DEPLOYMENT: tuple[ArchitectureCheck, ...] = (
    lambda_has_no_bf16,
    card_has_bf16,
    invocations_fit_a_history,
    loops_fit_a_history,
    hosts_have_optimized_disks,
    broker_type_has_the_version,
)
