"""TensorCompute inside stock RedisAI: TorchScript run by AI.SCRIPTEXECUTE on the stored tensors."""

import hashlib
import struct
from collections.abc import Sequence
from math import sqrt

from crossover.algorithms.dropping import Agree, participants
from crossover.algorithms.update import Update
from crossover.dataplane.protocols import StateKeys
from crossover.dataplane.redis_wire import Argument
from crossover.dataplane.redisai import About, RedisAITensorStore, temporary_key, tensor_get
from crossover.dataplane.redisai_scripts import ENTRY_POINTS, SOURCE
from crossover.dataplane.states import optimizer_keys
from crossover.dataplane.vector import Kind
from crossover.errors import Corrupt, Refused
from crossover.experiment import Aggregation

_SCRIPT = f"crossover:arithmetic:{hashlib.sha256(SOURCE.encode()).hexdigest()[:16]}"


class RedisAICompute:
    """The vectors of `store`, computed on where they lie. Results go to temporary keys first and get their names by one command."""

    def __init__(self, store: RedisAITensorStore) -> None:
        self._store = store
        self._client = store.client

    def mean(self, keys: Sequence[str], *, out: str) -> None:
        self._combine("mean", keys, out)

    def combine(self, keys: Sequence[str], *, rule: Aggregation, out: str, agree: Agree = list) -> None:
        if self._store.exists(out):
            return
        _refuse_mixed(keys, self._store.about(keys))
        kept, rule = participants([bool(fact[1]) for fact in self._facts(keys)], rule, names=keys, agree=agree)
        keys = [keys[index] for index in kept]
        match rule.rule:
            case "mean":
                self._combine("mean", keys, out)
            case "median":
                self._combine("median", keys, out, [])
            case "trimmed_mean":
                if not 0 <= 2 * rule.trim < len(keys):
                    raise Refused(f"trimmed_mean: trim {rule.trim} of {len(keys)} vectors; 2 * trim must be less")
                self._combine("trimmed_mean", keys, out, [rule.trim])
            case "krum":
                most = len(keys) - rule.faulty - 2
                if rule.faulty < 0 or most <= rule.faulty:
                    raise Refused(f"krum: {len(keys)} vectors for faulty {rule.faulty}; 2 * faulty + 3 are needed")
                if not 1 <= rule.select <= most:
                    raise Refused(f"krum: select {rule.select} of {len(keys)} vectors; at most {most} are expected")
                self._combine("krum", keys, out, [rule.faulty, rule.select])

    def update(self, state: StateKeys, gradient: str, *, out: StateKeys, update: Update) -> None:
        optimizer_keys(state, out, update)
        if update.optimizer == "sgd":
            if update.nesterov and not update.momentum:
                raise Refused("sgd: nesterov needs a momentum above 0")
            function, kind = "sgd", Kind.VELOCITY
            numbers = [update.learning_rate, update.momentum, int(update.nesterov), update.weight_decay]
        else:
            function, kind = "adam", Kind.MOMENT
            numbers = [update.learning_rate, update.beta1, update.beta2, update.epsilon, update.weight_decay]
            numbers += [int(update.optimizer == "adamw"), update.number + 1]
        if self._store.exists(out.model):
            return
        optimizer = [] if update.first else list(state.optimizer)
        keys = [state.model, gradient, *optimizer]
        kinds = [Kind.MODEL, Kind.GRADIENT, *(kind for _ in optimizer)]
        abouts = self._store.about(keys)
        total, buffers = abouts[0].elements, update.buffers
        if not 0 <= buffers <= total:
            raise Refused(f"{function}: buffers {buffers} of a model of {total} elements")
        for key, about, expected in zip(keys, abouts, kinds, strict=True):
            if about.kind != expected:
                raise Corrupt(f"{key}: holds a {about.kind} vector where a {expected} was expected")
            length = total - buffers if expected == kind else total
            if about.elements != length or about.dtype != "float32":
                raise Refused(f"{key}: holds {about.elements} {about.dtype}; {length} float32 are expected")
        outputs = [(out.model, abouts[0])]
        outputs += [(key, About(kind, 0, "float32", total - buffers)) for key in out.optimizer]
        self._run(function, keys, [*numbers, buffers, update.statistics_momentum], outputs)

    def norm(self, key: str) -> float:
        return sqrt(self._facts([key])[0][0])

    def finite(self, key: str) -> bool:
        return bool(self._facts([key])[0][1])

    def _combine(
        self,
        function: str,
        keys: Sequence[str],
        out: str,
        numbers: Sequence[float] | None = None,
    ) -> None:
        """`function` of the vectors; its numbers are their weights (a vector without samples counts once) where none are given."""
        if self._store.exists(out):
            return
        abouts = self._store.about(keys)
        _refuse_mixed(keys, abouts)
        weights = [about.samples or 1 for about in abouts]
        about = About(abouts[0].kind, sum(weights), "float32", abouts[0].elements)
        self._run(function, keys, weights if numbers is None else numbers, [(out, about)])

    def _facts(self, keys: Sequence[str]) -> list[tuple[float, float]]:
        """Per vector: the sum of squares in float64, whether all is finite."""
        self._store.about(keys)  # raises Missing by name
        name = temporary_key("facts")
        self._execute("facts", keys, [], [name])
        try:
            blob = tensor_get(self._client, name, lambda bytes_: memoryview(bytearray(bytes_)))
        finally:
            self._client.control("UNLINK", name, keys=[name])
        return list(struct.iter_unpack("<2d", blob))

    def _run(
        self, function: str, keys: Sequence[str], numbers: Sequence[float], outputs: Sequence[tuple[str, About]]
    ) -> None:
        temporary = [temporary_key(key) for key, _ in outputs]
        self._execute(function, keys, numbers, temporary)
        self._store.appear([(name, key, about) for name, (key, about) in zip(temporary, outputs, strict=True)])

    def _execute(self, function: str, keys: Sequence[str], numbers: Sequence[float], outputs: Sequence[str]) -> None:
        self._store.traffic.count(function)
        if not self._client.control("EXISTS", _SCRIPT):
            points: list[Argument] = ["ENTRY_POINTS", len(ENTRY_POINTS), *ENTRY_POINTS]
            self._client.command("AI.SCRIPTSTORE", _SCRIPT, "CPU", *points, "SOURCE", SOURCE, keys=[_SCRIPT])
        arguments: list[Argument] = ["INPUTS", len(keys), *keys]
        if numbers:
            arguments += ["ARGS", len(numbers), *(repr(number) for number in numbers)]
        arguments += ["OUTPUTS", len(outputs), *outputs]
        self._client.command("AI.SCRIPTEXECUTE", _SCRIPT, function, *arguments, keys=keys)


def _refuse_mixed(keys: Sequence[str], abouts: Sequence[About]) -> None:
    """Refused where kinds, types or lengths differ: torch would stretch a vector of one element to any length."""
    if not keys:
        raise Refused("keys: none given; at least one vector is needed")
    first = abouts[0]
    for key, about in zip(keys, abouts, strict=True):
        if about.dtype != "float32":
            raise Refused(f"{key}: holds {about.dtype}; arithmetic is on float32")
        if about.kind != first.kind:
            raise Refused(f"{key}: holds a {about.kind} vector, {keys[0]} a {first.kind}; kinds cannot be mixed")
        if about.elements != first.elements:
            raise Refused(f"{key}: holds {about.elements} elements, {keys[0]} {first.elements}; lengths must be equal")
