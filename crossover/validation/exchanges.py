"""Rules for what workers exchange and how it is combined: each setting is right by itself, but together they are impossible."""

from collections.abc import Iterator
from dataclasses import fields

from crossover.algorithms import codecs
from crossover.algorithms.codecs import CODECS
from crossover.algorithms.rules import count_tolerated
from crossover.experiment import Exchange, Experiment, Outer
from crossover.learning import sizes
from crossover.validation.documents import is_import

OBJECTS = {"gradients": "gradients", "model": "models", "delta": "what models moved by"}


def trimmed_mean_leaves_some(e: Experiment) -> Iterator[str]:
    """Yield an error message if `aggregation.trim` would make the trimmed mean leave out all workers."""
    rule, workers = e.aggregation, e.workers
    if rule.rule == "trimmed_mean" and 2 * rule.trim >= workers:
        yield (
            f"aggregation.trim: {rule.trim} at each end leaves none of {workers} workers; "
            f"expected at most {(workers - 1) // 2}, or at least {2 * rule.trim + 1} workers"
        )


def krum_has_enough_workers(e: Experiment) -> Iterator[str]:
    """Yield an error message if the rule krum is set and there are too few workers for it, given `aggregation.faulty`."""
    rule, workers = e.aggregation, e.workers
    if rule.rule == "krum" and workers < 2 * rule.faulty + 3:
        most = (workers - 3) // 2
        lower = f"aggregation.faulty of at most {most}, or " if most >= 0 else ""
        yield f"workers: {workers} are too few for krum with {rule.faulty} faulty; expected {lower}at least {2 * rule.faulty + 3} workers"


def krum_selects_among_honest(e: Experiment) -> Iterator[str]:
    """Yield an error message if `aggregation.select` is so large that krum could select a faulty worker."""
    rule, workers = e.aggregation, e.workers
    most = workers - rule.faulty - 2
    if rule.rule == "krum" and rule.select > most:
        yield (
            f"aggregation.select: {rule.select} of {workers} workers could take in a faulty one, with {rule.faulty} faulty; "
            f"expected at most workers - faulty - 2, {max(1, most)}"
        )


def dropping_is_borne(e: Experiment) -> Iterator[str]:
    """Yield an error message if a worker with NaN or infinite values is to be left out (`aggregation.non_finite: drop`), but the
    aggregation rule, with this number of workers, needs every one.
    """
    rule = e.aggregation
    if rule.non_finite == "refuse":
        return
    if rule.rule == "mean":
        yield (
            "aggregation.non_finite: drop leaves out a faulty worker, and mean bears none; "
            "expected refuse, or aggregation.rule: median, trimmed_mean or krum"
        )
    elif count_tolerated(rule, e.workers) == 0:
        yield (
            f"aggregation.non_finite: drop could never drop a worker: {rule.rule} of {e.workers} workers tolerates no faulty one; "
            "expected refuse, more workers, or a larger aggregation.trim or aggregation.faulty"
        )


def models_average(e: Experiment) -> Iterator[str]:
    """Yield an error message if workers exchange models or deltas, and the aggregation rule is not the mean."""
    if e.exchange.what != "gradients" and e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} combines gradients, and exchange.what: {e.exchange.what} averages "
            f"{OBJECTS[e.exchange.what]}; "
            "expected mean, or exchange.what: gradients"
        )


def steps_need_exchanged_gradients(e: Experiment) -> Iterator[str]:
    """Yield an error message if `training.steps` is set, but workers do not exchange gradients."""
    if e.training.steps is not None and e.exchange.what != "gradients":
        yield (
            f"training.steps: counts updates of one model that all have, and with exchange.what: {e.exchange.what} each worker takes steps "
            "of its own; leave it out: training.epochs is expected alone"
        )


def outer_belongs_to_delta(e: Experiment) -> Iterator[str]:
    """Yield an error message if a setting of the outer optimizer (`exchange.outer`) has no effect, or is nesterov without momentum."""
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
    """Yield an error message for each setting that belongs to another compression than the chosen one."""
    usual, asked, own = Exchange(), e.exchange, {each.name for each in fields(CODECS[e.exchange.compression])}
    for of, codec in CODECS.items():
        for name in (each.name for each in fields(codec) if each.name not in own):
            if getattr(asked, name) != getattr(usual, name):
                yield (
                    f"exchange.{name}: belongs to exchange.compression: {of}, and compression is {asked.compression}; "
                    f"leave it out, or set exchange.compression: {of}"
                )


def codec_supports_error_feedback(e: Experiment) -> Iterator[str]:
    """Yield an error message if `exchange.error_feedback` is true for a compression that does not support it, or without compression."""
    kind, kept = e.exchange.compression, e.exchange.error_feedback
    if kept and kind == "none":
        yield "exchange.error_feedback: true, and without compression nothing is left out that could be fed back; leave it out"
    elif kept and (reason := codecs.build_codec(e.exchange).feedback_problem):
        yield f"exchange.error_feedback: {reason}"


def compressed_gradients_are_averaged(e: Experiment) -> Iterator[str]:
    """Yield an error message if the chosen compression works only with the mean, but another aggregation rule is set."""
    kind, rule = e.exchange.compression, e.aggregation.rule
    if rule == "mean" or not (reason := CODECS[kind].only_mean):
        return
    others = " or ".join(name for name, each in CODECS.items() if not each.only_mean)
    yield (
        f"aggregation.rule: {rule} compares the workers' gradients, and with {kind} {reason}; "
        f"expected mean, or exchange.compression: {others}"
    )


def compression_sees_what_is_dropped(e: Experiment) -> Iterator[str]:
    """Yield an error message if contributions with NaN or infinite values are to be left out, but the compression hides such values."""
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
    """Yield an error message if the compression cannot encode the model's parameters. Only for the project's own models on its own data
    sets: a user's are checked when a run is prepared.
    """
    size = sizes.DATA.get(e.data.dataset)
    codec = codecs.build_codec(e.exchange)
    if not codec.needs_shapes or is_import(e.training.model) or size is None:
        return
    try:
        if reason := codec.find_shape_problem(sizes.list_known_shapes(e.training.model, size.image)):
            yield reason
    except KeyError:
        return  # the model is unknown: another check reports it


def attack_has_attackers(e: Experiment) -> Iterator[str]:
    """Yield an error message if `faults.attack` is set, but no worker carries it out (`faults.workers` is empty)."""
    if e.faults.attack != "none" and not e.faults.workers:
        yield (
            f"faults.workers: empty, so no worker would carry out {e.faults.attack}; "
            "expected ranks, for example [0], or faults.attack: none"
        )


def attackers_exist(e: Experiment) -> Iterator[str]:
    """Yield an error message if `faults.workers` names a rank that does not exist, or one twice."""
    outside = [rank for rank in e.faults.workers if not 0 <= rank < e.workers]
    if outside:
        yield f"faults.workers: {outside[0]} is not a rank of this run; expected ranks from 0 to {e.workers - 1}"
    elif len(set(e.faults.workers)) < len(e.faults.workers):
        yield f"faults.workers: {list(e.faults.workers)} names a rank twice; expected each once"
