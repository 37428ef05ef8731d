"""TensorCompute inside the database: SPIRT's averaging and update by the tensor module's own kernels. No vector leaves Redis."""

from collections.abc import Sequence

from crossover.algorithms.dropping import Agree, participants
from crossover.algorithms.optimizers import OPTIMIZERS
from crossover.algorithms.rules import RULES
from crossover.algorithms.update import Update
from crossover.dataplane.protocols import StateKeys
from crossover.dataplane.redis_tensors import RedisTensorStore, text
from crossover.dataplane.redis_wire import Argument
from crossover.dataplane.states import optimizer_keys
from crossover.dataplane.vector import VectorKind
from crossover.errors import Corrupt, Refused
from crossover.experiment import Aggregation

_NONE = "-"  # the module's word for a vector that does not exist (yet)


class RedisCompute(RedisTensorStore):
    """A RedisTensorStore that computes, by the module's commands TENSOR.*. Every result is created (NX) and lives as long as other keys."""

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        self._combine("MEAN", keys, out)

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        options: list[Argument] = ["FINITE"]
        if rule.non_finite == "drop":
            if self.exists(out):
                return
            kept, rule = participants([self.finite(key) for key in keys], rule, names=keys, agree=agree)
            keys, options = [keys[index] for index in kept], []
        found = RULES[rule.rule]
        self._combine(_known(found.command, rule.rule), keys, out, *found.options(rule), *options)

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        optimizer_keys(state, out, update)
        optimizer = OPTIMIZERS[update.optimizer]
        command, kind = _known(optimizer.command, update.optimizer), VectorKind(optimizer.kind)
        old = state.optimizer if out.optimizer and not update.first else [_NONE] * optimizer.places
        self._update(
            command,
            [(state.model, VectorKind.MODEL), (gradient, VectorKind.GRADIENT), *((key, kind) for key in old)],
            [out.model, *(out.optimizer or [_NONE])],
            [
                *("LR", update.learning_rate, "WEIGHTDECAY", update.weight_decay, *optimizer.options(update)),
                *("BUFFERS", update.buffers, "STATS", update.statistics_momentum),
            ],
        )

    def finite(self, key: str) -> bool:
        self.traffic.count("finite")
        return bool(self.client.command("TENSOR.FINITE", key, keys=[key]))

    def _combine(self, rule: str, keys: Sequence[str], out: str, *options: Argument) -> None:
        self._run(rule, [len(keys), *keys, *options, "OUT", out], keys)

    def _update(
        self, rule: str, inputs: Sequence[tuple[str, VectorKind]], outputs: Sequence[str], options: Sequence[Argument]
    ) -> None:
        present = [(key, kind) for key, kind in inputs if key != _NONE]
        for key, kind in present:  # a gradient must never be taken for a model; the module knows no such roles
            self._expect(key, kind)
        keys = [key for key, _ in present]
        self._run(rule, [*(key for key, _ in inputs), "OUT", *outputs, *options], keys)

    def _expect(self, key: str, kind: VectorKind) -> None:
        """Raises Corrupt where `key` holds another kind. A key that is gone is fine: the step may have been finished before."""
        self.traffic.count("info")
        about = self.client.command("TENSOR.INFO", key, keys=[key])
        if about is not None and text(about[2]) != kind:
            raise Corrupt(f"{key}: holds a {text(about[2]) or 'nameless'} vector where a {kind} was expected")

    def _run(self, rule: str, arguments: Sequence[Argument], keys: Sequence[str]) -> None:
        self.traffic.count(rule.lower())
        self.client.command(f"TENSOR.{rule}", *arguments, "NX", "PX", self.time_to_live_ms, keys=keys)


def _known(command: str | None, name: str) -> str:
    """Refused where the database has none; a validated experiment computes elsewhere then."""
    if command is None:
        raise Refused(
            f"{name}: has no command in the tensor database; database.compute: fetch computes it in the function"
        )
    return command
