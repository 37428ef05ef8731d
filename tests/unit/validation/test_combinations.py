"""Every impossible combination is refused with its reason, and just inside the border it is accepted."""

import re
from dataclasses import replace
from typing import Any, get_type_hints

import pytest
from annotated_types import Le
from moto.ec2.models.instance_types import INSTANCE_TYPES

from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.simulation.gpu_steps import load_cards
from crossover.validation import check_deployment, combinations, fields, validate
from crossover.workflow import step
from crossover.workflow.architecture import Architecture, architectures, load
from crossover.workflow.state_machines import ARRAY_LIMIT


@step(torch=True)
def compute(ctx: Any, event: Any) -> None:
    """Do nothing."""


TREE = Architecture("tree", run=compute, tensor_hosts="per_worker")
WITHOUT_STEPS = Architecture("program", tensor_hosts="none")


def experiment(plain: dict[str, Any]) -> Experiment:
    """Build an experiment from fields as a YAML file has them, with name and architecture given."""
    return fields.build_experiment({"name": "x", "architecture": "spirt", **plain})


def told_by(check: Any, *asked: Any) -> str | None:
    """Return the only problem that the check finds, or None if it finds none; fail if it finds more."""
    problems = [*check(*asked)]
    assert len(problems) <= 1
    return problems[0] if problems else None


CASES: list[tuple[combinations.Refusal, dict[str, Any], dict[str, Any], str]] = [
    # check, refused, accepted, what the message says
    (combinations.name_fits, {"name": "Spirt"}, {"name": "spirt-2-b"}, "name: 'Spirt'"),
    (combinations.name_fits, {"name": "a" * 33}, {"name": "a" * 32}, "at most 32"),
    (combinations.name_fits, {"name": "a--b"}, {"name": "a-b"}, "single hyphens"),
    (combinations.name_fits, {"name": "a-"}, {"name": "a"}, "single hyphens"),
    (combinations.project_fits, {"project": "Mine"}, {"project": "mine"}, "project: 'Mine'"),
    (
        combinations.project_fits,
        {"project": "p" * 7, "name": "n" * 32},
        {"project": "p" * 6, "name": "n" * 32},
        "39 characters together; at most 38",
    ),
    (combinations.owner_is_a_tag, {"owner": "a;b"}, {"owner": "Ada L. ada@example.org"}, "owner: 'a;b'"),
    (
        combinations.topic_is_an_arn,
        {"lifetime": {"notify": "ada@example.org"}},
        {"lifetime": {"notify": "arn:aws:sns:us-east-1:123456789012:ends"}},
        "lifetime.notify: 'ada@example.org' is no SNS topic",
    ),
    (
        combinations.dataset_known,
        {"data": {"dataset": "cifar"}},
        {"data": {"dataset": "my.module:load"}},
        "did you mean cifar10?",
    ),
    (
        combinations.dataset_known,
        {"data": {"dataset": "my module:load"}},
        {"data": {"dataset": "mnist"}},
        "package.module:loader",
    ),
    (
        combinations.digits_have_no_test_split,
        {"data": {"validation": "test"}},
        {"data": {"validation": "test", "dataset": "mnist"}},
        "for example 0.2",
    ),
    (
        combinations.loss_known,
        {"training": {"loss": "mae"}},
        {"training": {"loss": "my.module:loss"}},
        "did you mean mse?",
    ),
    (
        combinations.adapters_fit_own_models,
        {"training": {"model": "my:model", "adapters": {"rank": 4}}},
        {"training": {"model": "my:model", "adapters": {"rank": 4, "targets": ["*"]}}},
        "training.adapters.rank: does nothing without training.adapters.targets",
    ),
    (
        combinations.adapters_fit_own_models,
        {"training": {"adapters": {"targets": ["*"]}}},
        {"training": {"model": "my:model", "adapters": {"targets": ["*"]}, "save": "merged"}},
        "training.adapters.targets: belongs to a model of your own",
    ),
    (
        combinations.adapters_fit_own_models,
        {"training": {"model": "my:model", "trainable": []}},
        {"training": {"model": "my:model", "trainable": ["head.*"], "save": "adapters"}},
        "everything would be frozen",
    ),
    (
        combinations.adapters_fit_own_models,
        {"training": {"model": "my:model", "save": "merged"}},
        {"training": {"model": "my:model", "trainable": [], "adapters": {"targets": ["*"]}}},
        "training.save: merged belongs to",
    ),
    (
        combinations.optimizer_settings_have_effect,
        {"training": {"betas": [0.8, 0.99]}},
        {"training": {"betas": [0.8, 0.99], "optimizer": "adamw"}},
        "training.betas: belongs to adam and adamw, not to sgd",
    ),
    (
        combinations.optimizer_settings_have_effect,
        {"training": {"no_decay": ["*.bias"]}},
        {"training": {"no_decay": ["*.bias"], "weight_decay": 0.1}},
        "training.no_decay: does nothing without training.weight_decay",
    ),
    (
        combinations.optimizer_settings_have_effect,
        {"training": {"floor": 0.1}},
        {"training": {"floor": 0.1, "schedule": "cosine"}},
        "training.floor: belongs to cosine, not to constant",
    ),
    (
        combinations.smoothing_needs_classes,
        {"training": {"loss": "mse", "label_smoothing": 0.1}},
        {"training": {"label_smoothing": 0.1}},
        "belongs to cross_entropy, not to mse",
    ),
    (
        combinations.scaled_labels_are_numbers,
        {"data": {"scale_labels": "always"}},
        {"data": {"scale_labels": "always"}, "training": {"loss": "mse", "metric": {"name": "mean_absolute_error"}}},
        "labels of cross_entropy are no numbers to scale",
    ),
    (
        combinations.metric_fits_the_loss,
        {"training": {"loss": "mse"}},
        {"training": {"loss": "mse", "metric": {"name": "mean_absolute_error"}}},
        "expected mean_absolute_error",
    ),
    (
        combinations.metric_fits_the_loss,
        {"training": {"metric": {"name": "mean_absolute_error"}}},
        {"training": {"loss": "my:loss", "metric": {"name": "mean_absolute_error"}}},
        "expected accuracy",
    ),
    (
        combinations.metric_has_its_direction,
        {"training": {"metric": {"name": "my:metric"}}},
        {"training": {"metric": {"name": "my:metric", "higher_is_better": False}}},
        "is missing for my:metric; expected true or false",
    ),
    (
        combinations.metric_known,
        {"training": {"metric": {"name": "acuracy"}}},
        {"training": {"metric": {"name": "accuracy"}}},
        "did you mean accuracy?",
    ),
    (
        combinations.metric_has_its_direction,
        {"training": {"metric": {"name": "accuracy", "higher_is_better": False}}},
        {"training": {"metric": {"name": "accuracy", "higher_is_better": True}}},
        "of accuracy, higher is better; leave it out",
    ),
    (
        combinations.target_can_be_reached,
        {"training": {"target": 95}},
        {"training": {"target": 1}},
        "training.target: 95 is no accuracy",
    ),
    (
        combinations.images_grow,
        {"training": {"image_size": {"begin": 8}}},
        {"training": {"image_size": {"begin": 4}}},
        "training.image_size.begin: 8 is not smaller than the images of digits, which have 8 pixels a side",
    ),
    (
        combinations.images_grow,
        {"training": {"image_size": {"step": 4}}},
        {"training": {"image_size": {"step": 8}}},
        "training.image_size.step: does nothing without training.image_size.begin",
    ),
    (
        combinations.images_grow,
        {"training": {"image_size": {"begin": 4}, "early_stopping": 3}},
        {"training": {"image_size": {"begin": 4}, "schedule": "one_cycle"}},
        "training.image_size.begin: early stopping and the plateau schedule would judge",
    ),
    (
        combinations.trimmed_mean_leaves_some,
        {"workers": 4, "aggregation": {"rule": "trimmed_mean", "trim": 2}},
        {"workers": 5, "aggregation": {"rule": "trimmed_mean", "trim": 2}},
        "expected at most 1, or at least 5 workers",
    ),
    (
        combinations.krum_has_enough_workers,
        {"workers": 4, "aggregation": {"rule": "krum"}},
        {"workers": 5, "aggregation": {"rule": "krum"}},
        "aggregation.faulty of at most 0, or at least 5 workers",
    ),
    (
        combinations.krum_selects_among_honest,
        {"workers": 5, "aggregation": {"rule": "krum", "select": 3}},
        {"workers": 5, "aggregation": {"rule": "krum", "select": 2}},
        "expected at most workers - faulty - 2, 2",
    ),
    (
        combinations.dropping_is_borne,
        {"aggregation": {"non_finite": "drop"}},
        {"aggregation": {"non_finite": "drop", "rule": "median"}},
        "mean bears none",
    ),
    (
        combinations.dropping_is_borne,
        {"workers": 3, "aggregation": {"non_finite": "drop", "rule": "trimmed_mean", "trim": 0}},
        {"workers": 3, "aggregation": {"non_finite": "drop", "rule": "trimmed_mean", "trim": 1}},
        "could never drop a worker",
    ),
    (
        combinations.models_average,
        {"architecture": "all-reduce", "aggregation": {"rule": "median"}, "exchange": {"what": "model"}},
        {"architecture": "all-reduce", "aggregation": {"rule": "median"}},
        "averages models",
    ),
    (
        combinations.attack_has_attackers,
        {"faults": {"attack": "sign_flip"}},
        {"faults": {"attack": "sign_flip", "workers": [0]}},
        "faults.workers: empty",
    ),
    (combinations.attackers_exist, {"faults": {"workers": [4]}}, {"faults": {"workers": [3]}}, "ranks from 0 to 3"),
    (combinations.attackers_exist, {"faults": {"workers": [-1]}}, {"faults": {"workers": [0]}}, "-1 is not a rank"),
    (combinations.attackers_exist, {"faults": {"workers": [1, 1]}}, {"faults": {"workers": [1, 2]}}, "twice"),
    (
        combinations.baseline_has_room_for_its_name,
        {"name": "n" * 29, "baseline": "gpu"},
        {"name": "n" * 28, "project": "p", "baseline": "gpu"},
        "beside",
    ),
    (
        combinations.nesterov_needs_momentum,
        {"training": {"nesterov": True, "momentum": 0}},
        {"training": {"nesterov": True, "momentum": 0.9}},
        "needs momentum",
    ),
    (
        combinations.nesterov_needs_momentum,
        {"training": {"nesterov": True, "optimizer": "adam"}},
        {"training": {"nesterov": False, "optimizer": "adam"}},
        "belongs to sgd",
    ),
    (
        combinations.one_cycle_rises,
        {"training": {"schedule": "one_cycle", "warm_up": 0}},
        {"training": {"schedule": "one_cycle", "warm_up": 0.1}},
        "no rise",
    ),
    (
        combinations.plateau_comes_before_stop,
        {"training": {"schedule": "plateau", "early_stopping": 10}},
        {"training": {"schedule": "plateau", "early_stopping": 11}},
        "expected more than 10",
    ),
    (
        combinations.gpus_are_workers,
        {"architecture": "gpu", "workers": 3},
        {"architecture": "gpu", "workers": 4},
        "4 x 1 GPUs are 4 workers, but workers is 3",
    ),
    (
        combinations.gpus_are_workers,
        {"baseline": "gpu", "workers": 3},
        {"workers": 3},
        "GPUs are 4 workers",
    ),
    (
        combinations.outer_belongs_to_delta,
        {"exchange": {"what": "model", "outer": {"learning_rate": 1.0}}},
        {"exchange": {"what": "delta", "outer": {"learning_rate": 1.0}}},
        "exchange.outer.learning_rate: belongs to exchange.what: delta",
    ),
    (
        combinations.outer_belongs_to_delta,
        {"exchange": {"what": "delta", "outer": {"momentum": 0}}},
        {"exchange": {"what": "delta", "outer": {"momentum": 0, "nesterov": False}}},
        "exchange.outer.nesterov: needs momentum",
    ),
    (
        combinations.steps_need_exchanged_gradients,
        {"training": {"steps": 5}, "exchange": {"what": "delta"}},
        {"training": {"steps": 5}},
        "training.steps: counts updates of one model",
    ),
    (
        combinations.compression_has_its_settings,
        {"exchange": {"compression": "fp16", "bits": 4}},
        {"exchange": {"compression": "qsgd", "bits": 4}},
        "exchange.bits: belongs to exchange.compression: qsgd",
    ),
    (
        combinations.codec_supports_error_feedback,
        {"exchange": {"error_feedback": True}},
        {"exchange": {"error_feedback": False}},
        "without compression nothing is left out",
    ),
    (
        combinations.codec_supports_error_feedback,
        {"exchange": {"compression": "qsgd", "error_feedback": True, "bits": 4, "bucket": 196}},
        {"exchange": {"compression": "qsgd", "error_feedback": True, "bits": 4, "bucket": 195}},
        "4 bits in buckets of 196 may leave out more than there was",
    ),
    (
        combinations.codec_supports_error_feedback,
        {"exchange": {"compression": "qsgd", "error_feedback": True, "bits": 5, "bucket": 225, "norm": "l2"}},
        {"exchange": {"compression": "qsgd", "error_feedback": True, "bits": 5, "bucket": 224, "norm": "l2"}},
        "expected more exchange.bits",
    ),
    (
        combinations.compressed_gradients_are_averaged,
        {"exchange": {"compression": "powersgd"}, "aggregation": {"rule": "median"}},
        {"exchange": {"compression": "qsgd"}, "aggregation": {"rule": "median"}},
        "factors of them, which mean nothing one by one",
    ),
    (
        combinations.compressed_gradients_are_averaged,
        {"exchange": {"compression": "top_k"}, "aggregation": {"rule": "median"}},
        {"exchange": {"compression": "top_k"}},
        "with top_k most of each is zero",
    ),
    (
        combinations.compression_sees_what_is_dropped,
        {"exchange": {"compression": "qsgd"}, "aggregation": {"non_finite": "drop", "rule": "median"}},
        {"exchange": {"compression": "fp16"}, "aggregation": {"non_finite": "drop", "rule": "median"}},
        "qsgd cannot encode it",
    ),
    (
        combinations.compression_sees_what_is_dropped,
        {
            "exchange": {"compression": "fp16", "error_feedback": True},
            "aggregation": {"non_finite": "drop", "rule": "median"},
        },
        {"exchange": {"compression": "fp16", "error_feedback": True}, "aggregation": {"rule": "median"}},
        "would keep it for all rounds",
    ),
    (
        combinations.codec_takes_the_model,
        {
            "exchange": {"compression": "powersgd", "rank": 53},
            "training": {"model": "small_cnn"},
            "data": {"dataset": "digits"},
        },
        {
            "exchange": {"compression": "powersgd", "rank": 52},
            "training": {"model": "small_cnn"},
            "data": {"dataset": "digits"},
        },
        "exchange.rank: 53 makes none of the model's matrices smaller; expected at most 52",
    ),
    (
        combinations.snap_start_needs_layers,
        {"functions": {"snap_start": True, "packaging": "image"}},
        {"functions": {"snap_start": True}},
        "zip packages only",
    ),
    (
        combinations.run_ends_before_its_stack,
        {"lifetime": {"ttl_hours": 5}},
        {"lifetime": {"ttl_hours": 6}},
        "at most lifetime.ttl_hours, 5",
    ),
]
OWN: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    # refused by the architecture's own checks, accepted, what the message says
    (
        {"architecture": "mlless", "training": {"optimizer": "adam"}},
        {"architecture": "spirt", "training": {"optimizer": "adam"}},
        "expected sgd",
    ),
    (
        {"architecture": "mlless", "aggregation": {"rule": "median"}},
        {"architecture": "mlless"},
        "expected mean",
    ),
    (
        {"architecture": "scatter-reduce", "aggregation": {"rule": "krum"}},
        {"architecture": "scatter-reduce", "aggregation": {"rule": "median"}},
        "chunks",
    ),
    (
        {"architecture": "mlless", "mlless": {"min_workers": 5}},
        {"architecture": "mlless", "mlless": {"min_workers": 4}},
        "expected at most 4",
    ),
    (
        {"architecture": "mlless", "mlless": {"slack": 3}, "functions": {"checkpoint_every": 3}},
        {"architecture": "mlless", "mlless": {"slack": 3}, "functions": {"checkpoint_every": 4}},
        "no worker is behind at a checkpoint; expected at most 2",
    ),
    (
        {"architecture": "p2p_instance", "p2p": {"mode": "asynchronous", "min_gradients": 5}},
        {"architecture": "p2p_instance", "p2p": {"mode": "asynchronous", "min_gradients": 4}},
        "expected at most 4",
    ),
    (
        {"architecture": "p2p-serverless", "p2p": {"mode": "asynchronous"}, "aggregation": {"rule": "median"}},
        {"architecture": "p2p-serverless", "aggregation": {"rule": "median"}},
        "or p2p.mode: synchronous",
    ),
    (
        {"architecture": "gpu", "gpu": {"exchange": "distributed"}, "aggregation": {"rule": "median"}},
        {"architecture": "gpu", "aggregation": {"rule": "median"}},
        "or gpu.exchange: s3",
    ),
    (
        {"architecture": "p2p-instance", "p2p": {"mode": "asynchronous"}, "exchange": {"what": "delta"}},
        {"architecture": "p2p-instance", "exchange": {"what": "delta"}},
        "or p2p.mode: synchronous",
    ),
    (
        {"architecture": "p2p-serverless", "p2p": {"average_in": "lambda"}, "exchange": {"what": "model"}},
        {"architecture": "p2p-serverless", "exchange": {"what": "model"}},
        "expected peer, or exchange.what: gradients",
    ),
    (
        {"architecture": "gpu", "gpu": {"exchange": "distributed"}, "exchange": {"compression": "powersgd"}},
        {"architecture": "gpu", "exchange": {"compression": "powersgd"}},
        "exchange.compression: powersgd makes bytes of a gradient, an all-reduce sums float32",
    ),
    (
        {"architecture": "gpu", "gpu": {"instance_type": "p2.xlarge"}},
        {"architecture": "gpu", "gpu": {"instance_type": "p4d.24xlarge"}},
        "gpu.instance_type: p2.xlarge cannot boot the image with PyTorch",
    ),
    (
        {"architecture": "gpu", "gpu": {"instance_type": "p3.2xlarge"}},
        {"architecture": "gpu", "gpu": {"instance_type": "p4d.24xlarge"}},
        "gpu.instance_type: p3.2xlarge cannot boot the image with PyTorch",
    ),
    (
        {"architecture": "gpu", "gpu": {"instance_type": "g3s.xlarge"}},
        {"architecture": "gpu", "gpu": {"instance_type": "p4d.24xlarge"}},
        "gpu.instance_type: g3s.xlarge cannot boot the image with PyTorch",
    ),
    (
        {"architecture": "gpu", "gpu": {"instance_type": "g5g.xlarge"}},
        {"architecture": "gpu", "gpu": {"instance_type": "p4d.24xlarge"}},
        "gpu.instance_type: g5g.xlarge cannot boot the image with PyTorch",
    ),
    (
        {"architecture": "gpu", "gpu": {"instance_type": "g4ad.xlarge"}},
        {"architecture": "gpu", "gpu": {"instance_type": "p4d.24xlarge"}},
        "gpu.instance_type: g4ad.xlarge has no NVIDIA GPU; expected a type of a family that has, for example g4dn.xlarge",
    ),
    (
        {"architecture": "single", "single": {"on": "gpu", "instance_type": "c7g.xlarge"}},
        {"architecture": "single", "single": {"on": "instance", "instance_type": "c7g.xlarge"}},
        "single.instance_type: c7g.xlarge has no NVIDIA GPU",
    ),
    (
        {"architecture": "p2p-instance", "p2p": {"mode": "asynchronous"}, "exchange": {"compression": "powersgd"}},
        {"architecture": "p2p-instance", "exchange": {"compression": "powersgd"}},
        "powersgd takes two exchanges in which all peers see the same mean",
    ),
    (
        {"architecture": "p2p-instance", "p2p": {"mode": "asynchronous"}, "exchange": {"compression": "top_k"}},
        {
            "architecture": "p2p-instance",
            "p2p": {"mode": "asynchronous"},
            "exchange": {"compression": "top_k", "error_feedback": False},
        },
        "exchange.compression: top_k counts what was sent as received",
    ),
]


@pytest.mark.parametrize(("check", "refused", "accepted", "says"), CASES)
def test_refused_beyond_the_border_and_accepted_inside(
    check: combinations.Refusal, refused: dict[str, Any], accepted: dict[str, Any], says: str
) -> None:
    """A check refuses the settings `refused` in one line that has `says`, and accepts the settings `accepted`."""
    message = told_by(check, experiment(refused))
    assert message is not None
    assert says in message
    assert "\n" not in message
    assert told_by(check, experiment(accepted)) is None


@pytest.mark.parametrize(("refused", "accepted", "says"), OWN)
def test_an_architecture_refuses_what_it_alone_cannot_do(
    refused: dict[str, Any], accepted: dict[str, Any], says: str
) -> None:
    """An architecture's own checks refuse the settings `refused`, and accept the settings `accepted`. `says`: part of the message."""
    (message,) = load(refused["architecture"]).checks(experiment(refused))
    assert says in message
    assert "\n" not in message
    assert not [*load(accepted["architecture"]).checks(experiment(accepted))]
    with pytest.raises(ConfigError, match=re.escape(message)):
        validate({"name": "x", **refused})


@pytest.mark.parametrize(
    ("check", "precision", "words", "refuse", "accepts"),
    [
        (combinations.fp16_needs_a_gpu, "fp16", "needs a GPU", (load("spirt"), load("p2p_instance")), load("gpu")),
        (combinations.lambda_has_no_bf16, "bf16", "Graviton2", (TREE,), WITHOUT_STEPS),
    ],
)
def test_half_precisions_are_refused_where_nothing_computes_in_them(
    check: Any, precision: str, words: str, refuse: tuple[Architecture, ...], accepts: Architecture
) -> None:
    """A half precision is refused for architectures without hardware for it. `words`: part of the message; `refuse`, `accepts`:
    architectures.
    """
    half = experiment({"training": {"precision": precision}})
    assert all(words in str(told_by(check, half, each)) for each in refuse)
    assert told_by(check, half, accepts) is None
    assert told_by(check, experiment({}), refuse[0]) is None


def test_bf16_is_refused_on_the_instance_types_whose_card_has_none() -> None:
    """bf16 is refused on exactly those instance families whose GPU lacks it according to the calibration, and accepted without a GPU."""
    for card in load_cards().values():
        for family in card.instances:
            asked = experiment(
                {
                    "architecture": "gpu",
                    "training": {"precision": "bf16"},
                    "gpu": {"instance_type": f"{family}.xlarge"},
                }
            )
            told = told_by(combinations.card_has_bf16, asked, load("gpu"))
            assert (told is None) is ("bf16" in card.factors), family
            if told:
                assert f"the GPU of {family}.xlarge has no bfloat16; expected fp16 or fp32" in told
    on_processor = experiment({"architecture": "p2p_instance", "training": {"precision": "bf16"}})
    assert told_by(combinations.card_has_bf16, on_processor, load("p2p_instance")) is None


def test_every_check_has_a_case() -> None:
    """Every check of settings has a case in CASES."""
    assert {check for check, *_ in CASES} == set(combinations.ALWAYS)


def test_what_an_architecture_cannot_exchange_is_refused() -> None:
    """An exchange or compression that an architecture does not support raises ConfigError, once, with the reason."""
    for asked, says in (
        ({"what": "model"}, "exchange.what: mlless does not exchange models; expected gradients"),
        (
            {"compression": "top_k"},
            "exchange.compression: top_k: mlless does not compress gradients so: its filter chooses",
        ),
    ):
        with pytest.raises(ConfigError, match=re.escape(says)):
            validate({"name": "x", "architecture": "mlless", "exchange": asked})
    for architecture, workers, way, why in (
        (
            "spirt",
            4,
            "qsgd",
            "qsgd: spirt does not compress gradients so: its databases average float32 in place; expected none",
        ),
        ("scatter_reduce", 4, "powersgd", "so: cut into chunks, powersgd's factors, a few percent of a gradient"),
        ("single", 1, "fp16", "so: a single worker sends no contributions"),
    ):
        with pytest.raises(ConfigError, match=why) as refused:
            validate({"name": "x", "architecture": architecture, "workers": workers, "exchange": {"compression": way}})
        assert str(refused.value).count("exchange.compression") == 1  # said once
    assert validate({"name": "x", "architecture": "all_reduce", "exchange": {"what": "model"}})
    with pytest.raises(ConfigError, match=r"fp16: all_reduce does not compress models so: .*exchange\.what: delta"):
        validate({"name": "x", "architecture": "all_reduce", "exchange": {"what": "model", "compression": "fp16"}})


def test_a_bucket_as_small_as_it_can_be_is_not_to_be_smaller() -> None:
    """The message on error feedback proposes a smaller bucket only if there is one."""
    for bucket, told in ((256, True), (128, False)):
        asked = {"compression": "qsgd", "bits": 3, "bucket": bucket, "norm": "l2", "error_feedback": True}
        refused = str(told_by(combinations.codec_supports_error_feedback, experiment({"exchange": asked})))
        assert "more exchange.bits" in refused and ("a smaller exchange.bucket" in refused) is told


def test_memory_is_given_to_steps_that_exist() -> None:
    """A memory size for an unknown step is refused with the nearest name and all names."""
    wrong = experiment({"functions": {"memory_mb": {"default": 512, "comput": 1_024}}})
    message = told_by(combinations.memory_names_steps, wrong, TREE)
    assert message == "functions.memory_mb.comput: is no step of spirt; did you mean compute?; one of default, compute"
    assert (
        told_by(combinations.memory_names_steps, experiment({"functions": {"memory_mb": {"compute": 512}}}), TREE)
        is None
    )


def test_the_bucket_is_a_channel_where_an_architecture_lets_one_choose() -> None:
    """S3 as the channel is accepted for architectures that let users choose, and refused for the others."""
    through_s3 = experiment({"storage": {"channel": "s3"}})
    accepted = {
        name for name in architectures() if told_by(combinations.channel_is_a_choice, through_s3, load(name)) is None
    }
    assert accepted >= {"all_reduce", "scatter_reduce"}
    assert accepted.isdisjoint({"spirt", "mlless", "p2p_serverless", "p2p_instance", "gpu"})
    assert all(
        told_by(combinations.channel_is_a_choice, experiment({}), load(name)) is None for name in architectures()
    )


def test_more_minibatches_than_a_map_is_given_are_refused_before_anything_is_made() -> None:
    """More than 1,000 minibatches in a round are refused for architectures whose Map lists them, with a minibatch size that fits."""
    many = {"data": {"dataset": "mnist", "validation": "test"}, "workers": 4}
    spirt, p2p, other = load("spirt"), load("p2p_serverless"), load("all_reduce")
    found = experiment({**many, "training": {"batch_size": 14}})  # 15,000 samples of a worker
    for architecture in (spirt, p2p):
        told = str(told_by(combinations.minibatches_fit_a_list, found, architecture))
        assert told.startswith("training.batch_size: 14 gives a worker 1,072 minibatches") and "at most 1,000" in told
        assert "at least 16" in told
        for batch, every in ((15, None), (14, 1_000)):
            fitting = {**many, "training": {"batch_size": batch}, "exchange": {"every": every}}
            assert told_by(combinations.minibatches_fit_a_list, experiment(fitting), architecture) is None
    assert (
        told_by(combinations.minibatches_fit_a_list, found, other) is None
    )  # its workers compute theirs one after another
    with pytest.raises(ConfigError, match=r"training\.batch_size: 14"):
        validate({"name": "x", "architecture": "spirt", **many, "training": {"batch_size": 14}})


def test_a_round_that_is_longer_than_an_epoch_is_refused_with_what_would_do() -> None:
    """A round of more minibatches than an epoch has is refused with the largest that fits; for unknown data nothing is refused."""
    many = {"name": "x", "architecture": "all-reduce"}
    assert validate({**many, "exchange": {"every": 6}}).exchange.every == 6
    with pytest.raises(ConfigError, match=r"exchange\.every: 7 is more than the 6 minibatches .* at most 6 is exp"):
        validate({**many, "exchange": {"every": 7}})
    own = replace(load("all_reduce"), sync_every=8)  # where the YAML leaves it to the architecture
    assert "exchange.every: 8" in str(told_by(combinations.workers_share_the_data, experiment({}), own))
    unknown = {"data": {"dataset": "mine:rows"}, "exchange": {"every": 7}}
    assert (
        told_by(combinations.workers_share_the_data, experiment(unknown), load("all_reduce")) is None
    )  # staging refuses it


def test_data_that_the_workers_cannot_share_are_refused_before_anything_starts() -> None:
    """Too few samples for the workers, or for validation, raise ConfigError."""
    for data, said in (({"limit": 30}, "training.batch_size: 60"), ({"validation": 1e-5}, "leaves one part empty")):
        with pytest.raises(ConfigError, match=said):
            validate({"name": "x", "architecture": "spirt", "data": data})


def test_as_many_workers_as_an_experiment_may_have_fit_into_a_map() -> None:
    """The most workers of an experiment are within a Map's limit."""
    bound = next(
        each.le
        for each in get_type_hints(Experiment, include_extras=True)["workers"].__metadata__
        if isinstance(each, Le)
    )
    assert bound <= ARRAY_LIMIT


def test_more_invocations_than_a_history_holds_are_refused_on_aws() -> None:
    """More invocations than an execution's history holds are refused if workers go on in further invocations, with a timeout that fits,
    if one does.
    """
    hours = {"lifetime": {"ttl_hours": 720, "maximum_run_hours": 20}}
    for name in ("all_reduce", "scatter_reduce", "mlless"):
        short = experiment({**hours, "functions": {"timeout_s": 20}})
        told = str(told_by(combinations.invocations_fit_a_history, short, load(name)))
        assert "lifetime.maximum_run_hours: 20" in told and "functions.timeout_s of at least 24" in told
        long = experiment({**hours, "functions": {"timeout_s": 24}})
        assert told_by(combinations.invocations_fit_a_history, long, load(name)) is None
        assert "functions.timeout_s of" not in str(
            told_by(
                combinations.invocations_fit_a_history, experiment({"lifetime": {"maximum_run_hours": 800}}), load(name)
            )
        )
    assert (
        told_by(
            combinations.invocations_fit_a_history, experiment({"functions": {"timeout_s": 10}, **hours}), load("spirt")
        )
        is None
    )


def test_more_epochs_or_rounds_than_a_history_holds_are_refused_on_aws() -> None:
    """More than 3,000 epochs, or rounds in an epoch, are refused for architectures whose state machines loop over them."""
    check, spirt = combinations.loops_fit_a_history, load("spirt")
    told = str(told_by(check, experiment({"training": {"epochs": 3_001}}), spirt))
    assert "training.epochs: 3,001" in told and "expected at most 3,000 on AWS" in told
    assert told_by(check, experiment({"training": {"epochs": 3_000}}), spirt) is None
    assert "training.epochs" in str(told_by(check, experiment({"training": {"epochs": 3_001}}), load("all_reduce")))
    assert (
        told_by(check, experiment({"training": {"epochs": 100_000}}), load("p2p_instance")) is None
    )  # a program's own loop
    for limit, refused in ((12_000, False), (12_004, True)):
        small = {"training": {"batch_size": 1}, "data": {"dataset": "cifar10", "limit": limit}}
        told = told_by(check, experiment({**small, "workers": 4, "exchange": {"every": 1}}), spirt)
        assert (told is not None) is refused
    assert "exchange.every: 1: an epoch has 3,001 rounds" in str(told) and "expected at least 2 on AWS" in str(told)


def test_hosts_that_ec2_would_not_start_are_refused_on_aws() -> None:
    """Database hosts without EBS optimisation are refused, according to Moto's copy of EC2's types, and all others accepted."""
    check, unsupported, others = combinations.hosts_have_optimized_disks, set[str](), set[str]()
    for kind, described in INSTANCE_TYPES.items():
        optimized = described["EbsInfo"]["EbsOptimizedSupport"]
        (unsupported if optimized == "unsupported" else others).add(kind)
    assert len(unsupported) > 10 and len(others) > 1_000
    for kinds, refused in ((unsupported, True), (others, False)):
        for kind in kinds:
            told = told_by(check, experiment({"database": {"instance_type": kind}}), load("spirt"))
            assert (told is not None) is refused, (kind, told)
    t2 = experiment({"database": {"instance_type": "t2.small"}})
    assert str(told_by(check, t2, load("mlless"))).startswith("database.instance_type: 't2.small'")
    assert told_by(check, t2, load("gpu")) is None  # no database


@pytest.mark.parametrize("kind", ["mq.t3.micro", "mq.m5.large", "mq.m7g.huge", "mq.m7g.1xlarge"])
def test_brokers_that_amazon_mq_would_not_make_are_refused_on_aws(kind: str) -> None:
    """A broker type without RabbitMQ 4.2 is refused, unless the architecture has no broker."""
    check, asked = combinations.broker_type_has_the_version, experiment({"network": {"broker_instance_type": kind}})
    assert f"network.broker_instance_type: '{kind}': Amazon MQ runs RabbitMQ 4.2" in str(
        told_by(check, asked, load("spirt"))
    )
    assert told_by(check, asked, load("all_reduce")) is None  # no broker


@pytest.mark.parametrize("size", ["medium", "large", "xlarge", "2xlarge", "16xlarge"])
def test_brokers_of_the_family_are_taken(size: str) -> None:
    """Every size of the broker family mq.m7g is accepted."""
    asked = experiment({"network": {"broker_instance_type": f"mq.m7g.{size}"}})
    assert told_by(combinations.broker_type_has_the_version, asked, load("spirt")) is None


def test_synthesis_and_deployment_refuse_what_aws_would() -> None:
    """`check_deployment` raises ConfigError for an experiment that is valid locally and that AWS would refuse."""
    asked = validate({"name": "x", "architecture": "spirt", "database": {"instance_type": "t2.small"}})
    with pytest.raises(ConfigError, match=r"database\.instance_type"):
        check_deployment(asked)


def test_an_unknown_architecture_is_reported_with_everything_else() -> None:
    """An unknown architecture is reported first, with the nearest name, and other wrong settings after it."""
    with pytest.raises(ConfigError) as caught:
        validate({"name": "X", "architecture": "spirit"})
    first, second = str(caught.value).splitlines()
    assert first.startswith("architecture: 'spirit' is unknown; one of ")
    assert first.endswith("did you mean spirt?")
    assert second.startswith("name: 'X'")
