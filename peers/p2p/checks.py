"""Checks of peer-to-peer experiments."""

from collections.abc import Iterator

from crossover.algorithms import codecs
from crossover.experiment import Experiment


def checks(e: Experiment) -> Iterator[str]:
    """Yield one error message for each setting of the experiment that peer-to-peer training does not support."""
    if e.p2p.average_in == "lambda" and e.exchange.what != "gradients":
        yield (
            f"p2p.average_in: lambda averages gradients of minibatches, but exchange.what: {e.exchange.what} has none; "
            "expected peer, or exchange.what: gradients"
        )
    if e.p2p.mode == "synchronous":
        return
    if e.exchange.what != "gradients":
        yield (
            f"exchange.what: {e.exchange.what} is averaged by all in the same round, and asynchronous peers take what is there; "
            "expected gradients, or p2p.mode: synchronous"
        )
    yield from _check_overwriting(e)
    if e.p2p.min_gradients > e.workers:
        yield f"p2p.min_gradients: {e.p2p.min_gradients} are more than the {e.workers} peers have; expected at most {e.workers}"
    if e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} needs the gradients of one round side by side, asynchronous peers take what is there; "
            "expected mean, or p2p.mode: synchronous"
        )


def _check_overwriting(e: Experiment) -> Iterator[str]:
    """Yield one error message if asynchronous peers are to use a compression for which every contribution must be read; they may overwrite
    one before all have read it.
    """
    way = e.exchange.compression
    if codecs.count_exchanges(e.exchange) > 1:
        yield (
            f"exchange.compression: {way} takes two exchanges in which all peers see the same mean, and asynchronous peers each see "
            "another; expected none, fp16 or qsgd, or p2p.mode: synchronous"
        )
    elif codecs.has_error_feedback(e.exchange):
        field = f"compression: {way}" if e.exchange.error_feedback is None else "error_feedback: true"
        yield (
            f"exchange.{field} counts what was sent as received, and asynchronous peers write gradients over before all have read them; "
            "expected exchange.error_feedback: false, or p2p.mode: synchronous"
        )
