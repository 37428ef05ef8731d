"""What an experiment of peers cannot ask for."""

from collections.abc import Iterator

from crossover.experiment import Experiment


def checks(e: Experiment) -> Iterator[str]:
    """Of `p2p`, with what it cannot be combined with."""
    if e.aggregation.non_finite == "drop" and e.p2p.compression == "qsgd":
        yield (
            "aggregation.non_finite: drop must see what is not finite, and qsgd cannot encode it; "
            "expected refuse, or p2p.compression: none or fp16"
        )
    if e.p2p.mode == "synchronous":
        return
    if e.p2p.min_gradients > e.workers:
        yield f"p2p.min_gradients: {e.p2p.min_gradients} are more than the {e.workers} peers have; expected at most {e.workers}"
    if e.aggregation.rule != "mean":
        yield (
            f"aggregation.rule: {e.aggregation.rule} needs the gradients of one round side by side, asynchronous peers take what is there; "
            "expected mean, or p2p.mode: synchronous"
        )
