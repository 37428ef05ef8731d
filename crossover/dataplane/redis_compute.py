"""TensorCompute inside the database: SPIRT's averaging and update by the tensor module's own kernels. No vector leaves Redis."""

from collections.abc import Sequence

from crossover.algorithms.dropping import Agree, participants
from crossover.dataplane.protocols import StateKeys
from crossover.dataplane.redis_tensors import RedisTensorStore, text
from crossover.dataplane.redis_wire import Argument
from crossover.dataplane.states import optimizer_keys
from crossover.dataplane.vector import Kind
from crossover.errors import Corrupt
from crossover.experiment import Aggregation

_NONE = "-"  # the module's word for a vector that does not exist (yet)


class RedisCompute:
    """The TENSOR.* commands on the vectors of `store`, counted into its traffic.

    Every result is created (NX) and lives as long as the store's keys.
    """

    def __init__(self, store: RedisTensorStore) -> None:
        self._store = store
        self._traffic = store.traffic

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        self._combine("MEAN", keys, out)

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        options: list[Argument] = ["FINITE"]
        if rule.non_finite == "drop":
            if self._store.exists(out):
                return
            kept, rule = participants([self.finite(key) for key in keys], rule, names=keys, agree=agree)
            keys, options = [keys[index] for index in kept], []
        match rule.rule:
            case "mean":
                self._combine("MEAN", keys, out, *options)
            case "median":
                self._combine("MEDIAN", keys, out, *options)
            case "trimmed_mean":
                self._combine("TRIMMEDMEAN", keys, out, "TRIM", rule.trim, *options)
            case "krum":
                self._combine("KRUM", keys, out, "FAULTY", rule.faulty, "SELECT", rule.select, *options)

    def sgd_step(
        self,
        state: StateKeys,
        gradient: str,
        *,
        out: StateKeys,
        learning_rate: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        first: bool = False,
        buffers: int = 0,
        statistics_momentum: float = 1.0,
    ) -> None:
        optimizer_keys("sgd_step", state, out, vectors=1 if momentum else 0, first=first)
        velocity = _NONE if first or not momentum else state.optimizer[0]
        new_velocity = out.optimizer[0] if momentum else _NONE
        options: list[Argument] = ["LR", learning_rate, "MOMENTUM", momentum, "WEIGHTDECAY", weight_decay]
        options += ["NESTEROV"] if nesterov else []
        self._update(
            "SGD",
            [(state.model, Kind.MODEL), (gradient, Kind.GRADIENT), (velocity, Kind.VELOCITY)],
            [out.model, new_velocity],
            [*options, "BUFFERS", buffers, "STATS", statistics_momentum],
        )

    def adam_step(
        self,
        state: StateKeys,
        gradient: str,
        *,
        out: StateKeys,
        step: int,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        buffers: int = 0,
        statistics_momentum: float = 1.0,
    ) -> None:
        optimizer_keys("adam_step", state, out, vectors=2, first=step == 1)
        moments = [_NONE, _NONE] if step == 1 else state.optimizer
        options: list[Argument] = ["LR", learning_rate, "BETA1", beta1, "BETA2", beta2, "EPS", epsilon]
        options += ["WEIGHTDECAY", weight_decay, *(["DECOUPLED"] if decoupled else []), "STEP", step]
        self._update(
            "ADAM",
            [(state.model, Kind.MODEL), (gradient, Kind.GRADIENT), *((key, Kind.MOMENT) for key in moments)],
            [out.model, *out.optimizer],
            [*options, "BUFFERS", buffers, "STATS", statistics_momentum],
        )

    def norm(self, key: str) -> float:
        self._traffic.count("norm")
        return float(self._store.client.command("TENSOR.NORM", key, keys=[key]))

    def finite(self, key: str) -> bool:
        self._traffic.count("finite")
        return bool(self._store.client.command("TENSOR.FINITE", key, keys=[key]))

    def _combine(self, rule: str, keys: Sequence[str], out: str, *options: Argument) -> None:
        self._run(rule, [len(keys), *keys, *options, "OUT", out], keys)

    def _update(
        self, rule: str, inputs: Sequence[tuple[str, Kind]], outputs: Sequence[str], options: Sequence[Argument]
    ) -> None:
        present = [(key, kind) for key, kind in inputs if key != _NONE]
        for key, kind in present:  # a gradient must never be taken for a model; the module knows no such roles
            self._expect(key, kind)
        keys = [key for key, _ in present]
        self._run(rule, [*(key for key, _ in inputs), "OUT", *outputs, *options], keys)

    def _expect(self, key: str, kind: Kind) -> None:
        """Raises Corrupt where `key` holds another kind. A key that is gone is fine: the step may have been finished before."""
        self._traffic.count("info")
        about = self._store.client.command("TENSOR.INFO", key, keys=[key])
        if about is not None and text(about[2]) != kind:
            raise Corrupt(f"{key}: holds a {text(about[2]) or 'nameless'} vector where a {kind} was expected")

    def _run(self, rule: str, arguments: Sequence[Argument], keys: Sequence[str]) -> None:
        self._traffic.count(rule.lower())
        self._store.client.command(f"TENSOR.{rule}", *arguments, "NX", "PX", self._store.time_to_live_ms, keys=keys)
