"""The codecs that exchange.compression may name: one file each, and one line here, by which it is found. None needs torch to be named."""

from dataclasses import fields

from crossover.algorithms.codecs.codec import Codec
from crossover.algorithms.codecs.codec import Uncompressed as Uncompressed
from crossover.algorithms.codecs.fp16 import HalfPrecision as HalfPrecision
from crossover.algorithms.codecs.powersgd import LowRank as LowRank
from crossover.algorithms.codecs.qsgd import Quantized as Quantized
from crossover.algorithms.codecs.top_k import Largest as Largest
from crossover.experiment import Exchange

CODECS: dict[str, type[Codec]] = {
    each.name: each
    for each in tuple(vars().values())
    if isinstance(each, type) and issubclass(each, Codec) and each is not Codec
}


def named(exchange: Exchange) -> Codec:
    """The codec that `exchange.compression` names, with its settings."""
    codec = CODECS[exchange.compression]
    return codec(**{each.name: getattr(exchange, each.name) for each in fields(codec)})


def exchanges(exchange: Exchange) -> int:
    """How many a round has."""
    return CODECS[exchange.compression].exchanges


def feeds_back(exchange: Exchange) -> bool:
    """Whether errors are fed back: as told, else where a codec leaves out too much to do without."""
    told = exchange.error_feedback
    return CODECS[exchange.compression].feeds_back if told is None else told
