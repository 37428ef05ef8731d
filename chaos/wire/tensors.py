"""The tensor module's commands on a virtual Redis, by crossover.algorithms: the bits that the module computes are the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from crossover.algorithms.rules import RULES
from crossover.algorithms.update import Update
from crossover.dataplane.redis_wire import ErrorReply
from crossover.errors import Refused
from crossover.experiment import Aggregation

if TYPE_CHECKING:
    from torch import Tensor

_ITEM_BYTES = {"FLOAT": 4, "UINT8": 1}
_ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor as it lies under its key: flat, with what the module keeps of it. `samples` None: not said."""

    dtype: str
    elements: int
    kind: str
    samples: int | None
    data: bytes

    def description(self) -> list[Any]:
        return [self.dtype.encode(), [self.elements], self.kind.encode(), self.samples]

    def tensor(self) -> Tensor:
        from crossover.algorithms.buffers import tensor

        return tensor(self.data)


class Keys(Protocol):
    """What the commands ask of the server: vectors by key."""

    def get(self, key: str) -> Held | None: ...
    def set(self, key: str, held: Held, milliseconds: int | None) -> None: ...


class _Options:
    """What stands behind a command's fixed arguments. `rules`: how many operands each has."""

    def __init__(self, name: str, arguments: Sequence[bytes], rules: Mapping[str, int]) -> None:
        self._name, self._found = name, dict[str, list[str]]()
        at = 0
        while at < len(arguments):
            option = arguments[at].decode().upper()
            if option not in rules:
                raise ErrorReply(f"ERR {name}: argument is '{option}'; expected one of {', '.join(rules)}")
            self._found[option] = [each.decode() for each in arguments[at + 1 : at + 1 + rules[option]]]
            at += 1 + rules[option]

    def __contains__(self, option: str) -> bool:
        return option in self._found

    def all(self, option: str) -> list[str]:
        if option not in self._found:
            raise ErrorReply(f"ERR {self._name}: {option} is missing")
        return self._found[option]

    def integer(self, option: str, default: int = 0) -> int:
        return int(self._found[option][0]) if option in self._found else default

    def number(self, option: str, default: float = 0.0) -> float:
        return float(self._found[option][0]) if option in self._found else default


_STORING = {"NX": 0, "PX": 1}
_STEP = {**_STORING, "LR": 1, "WEIGHTDECAY": 1, "BUFFERS": 1, "STATS": 1}
_SGD = {**_STEP, "OUT": 2, "MOMENTUM": 1, "NESTEROV": 0}
_ADAM = {**_STEP, "OUT": 3, "BETA1": 1, "BETA2": 1, "EPS": 1, "STEP": 1, "DECOUPLED": 0}


def _store(keys: Keys, options: _Options, made: Sequence[tuple[str, Held]]) -> int | str:
    for key, held in made:
        keys.set(key, held, options.integer("PX") if "PX" in options else None)
    return 1 if "NX" in options else "OK"


def _set(keys: Keys, name: str, arguments: Sequence[bytes]) -> int | str:
    _, key, dtype, size, *rest = arguments
    assert rest[-2] == b"BLOB", f"the virtual Redis stores vectors only by BLOB, not {rest[-2]!r}"
    blob, elements, wanted = rest[-1], int(size), dtype.decode()
    options = _Options(name, rest[:-2], {**_STORING, "KIND": 1, "SAMPLES": 1})
    if len(blob) != elements * _ITEM_BYTES[wanted]:
        expected = elements * _ITEM_BYTES[wanted]
        raise ErrorReply(f"ERR {name}: BLOB has {len(blob)} bytes; expected {expected} for {wanted} [{elements}]")
    if "NX" in options and keys.get(key.decode()) is not None:
        return 0
    kind = options.all("KIND")[0] if "KIND" in options else ""
    samples = options.integer("SAMPLES") if "SAMPLES" in options else None
    return _store(keys, options, [(key.decode(), Held(wanted, elements, kind, samples, blob))])


def _get(keys: Keys, name: str, arguments: Sequence[bytes]) -> list[Any] | None:
    held = keys.get(arguments[1].decode())
    return None if held is None else [*held.description(), held.data]


def _info(keys: Keys, name: str, arguments: Sequence[bytes]) -> list[Any] | None:
    held = keys.get(arguments[1].decode())
    return None if held is None else [*held.description(), len(held.data)]


def _floats(keys: Keys, name: str, what: str, key: str, like: Held | None = None) -> Held:
    held = keys.get(key)
    if held is None:
        raise ErrorReply(f"NOKEY {name}: {what} key '{key}' does not exist; expected a tensor")
    if held.dtype != "FLOAT":
        raise ErrorReply(f"ERR {name}: {what} key '{key}' is {held.dtype}; expected FLOAT")
    if like is not None and held.elements != like.elements:
        shapes = f"has shape [{held.elements}]; expected [{like.elements}] like the first"
        raise ErrorReply(f"ERR {name}: {what} key '{key}' {shapes}")
    return held


def _measured(measure: Callable[[Tensor], Any]) -> Callable[[Keys, str, Sequence[bytes]], Any]:
    return lambda keys, name, arguments: measure(_floats(keys, name, "input", arguments[1].decode()).tensor())


def _norm(values: Tensor) -> bytes:
    return repr(math.sqrt(float(values.double().square().sum()))).encode()


def _finite(values: Tensor) -> int:
    from crossover.algorithms.aggregation import finite

    return int(finite(values))


# --- aggregation ------------------------------------------------------------------------------------------------------


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """What an algorithm says of its arguments, as the module's refusal."""
    try:
        yield
    except (Refused, ValueError) as error:
        raise ErrorReply(f"ERR {name}: {error}") from None


def _aggregated(rule: str, own: Mapping[str, int]) -> Callable[[Keys, str, Sequence[bytes]], int | str]:
    def command(keys: Keys, name: str, arguments: Sequence[bytes]) -> int | str:
        count = int(arguments[1])
        names = [key.decode() for key in arguments[2 : 2 + count]]
        rules = {**_STORING, **own, "OUT": 1, "FINITE": 0}
        options = _Options(name, arguments[2 + count :], rules)
        (out,) = options.all("OUT")
        if "NX" in options and keys.get(out) is not None:
            return 0
        first = _floats(keys, name, "input", names[0])
        inputs = [first, *(_floats(keys, name, "input", key, first) for key in names[1:])]
        for key, held in zip(names, inputs, strict=True):
            if held.kind != first.kind:
                said = f"has kind '{held.kind}'; expected '{first.kind}' like the first, or KIND"
                raise ErrorReply(f"ERR {name}: input key '{key}' {said}")
        settings = Aggregation(
            rule=rule,
            trim=options.integer("TRIM"),
            faulty=options.integer("FAULTY"),
            select=options.integer("SELECT", 1),
        )
        result, samples = _combined(name, names, inputs, settings, must_be_finite="FINITE" in options)
        return _store(keys, options, [(out, replace(first, samples=samples, data=_bytes(result)))])

    return command


def _combined(
    name: str, keys: Sequence[str], inputs: Sequence[Held], settings: Aggregation, *, must_be_finite: bool
) -> tuple[Tensor, int]:
    tensors = [held.tensor() for held in inputs]
    for key, values in zip(keys, tensors, strict=True):
        if must_be_finite and not _finite(values):
            raise ErrorReply(f"ERR {name}: input key '{key}' contains NaN or infinite values; expected finite ones")
        if settings.rule != "mean" and bool(values.isnan().any()):
            raise ErrorReply(f"ERR {name}: input key '{key}' contains NaN; expected numbers")
    weights = [1 if held.samples is None else held.samples for held in inputs]
    with _refusing(name):
        return RULES[settings.rule].combine(tensors, weights, settings), sum(weights)


def _bytes(values: Tensor) -> bytes:
    from crossover.algorithms.buffers import view

    return bytes(view(values.contiguous()))


# --- optimizer steps --------------------------------------------------------------------------------------------------


def _sgd(keys: Keys, name: str, arguments: Sequence[bytes]) -> int | str:
    options = _Options(name, arguments[4:], _SGD)
    momentum = options.number("MOMENTUM")
    update = Update(momentum=momentum, nesterov="NESTEROV" in options, **_common(options))
    return _stepped(keys, name, arguments[1:4], options, update, first_kind="velocity")


def _adam(keys: Keys, name: str, arguments: Sequence[bytes]) -> int | str:
    options = _Options(name, arguments[5:], _ADAM)
    update = Update(
        optimizer="adamw" if "DECOUPLED" in options else "adam",
        number=options.integer("STEP") - 1,
        beta1=options.number("BETA1", 0.9),
        beta2=options.number("BETA2", 0.999),
        epsilon=options.number("EPS", 1e-8),
        **_common(options),
    )
    return _stepped(keys, name, arguments[1:5], options, update, first_kind="moment")


def _common(options: _Options) -> dict[str, Any]:
    return {
        "learning_rate": float(options.all("LR")[0]),
        "weight_decay": options.number("WEIGHTDECAY"),
        "buffers": options.integer("BUFFERS"),
        "statistics_momentum": options.number("STATS", 1.0),
    }


def _stepped(
    keys: Keys, name: str, inputs: Sequence[bytes], options: _Options, update: Update, *, first_kind: str
) -> int | str:
    from crossover.algorithms.optimizers.step import step

    outputs = [key for key in options.all("OUT") if key != _ABSENT]
    if "NX" in options and keys.get(outputs[0]) is not None:
        return 0
    model_key, gradient_key, *state_keys = (key.decode() for key in inputs)
    model = _floats(keys, name, "model", model_key)
    gradient = _floats(keys, name, "gradient", gradient_key, model)
    parameters = model.elements - update.buffers
    before = [_floats(keys, name, "state", key) for key in state_keys if key != _ABSENT]
    for key, held in zip(state_keys, before, strict=False):
        if held.elements != parameters:
            shapes = f"has shape [{held.elements}]; expected [{parameters}], one number per parameter"
            raise ErrorReply(f"ERR {name}: state key '{key}' {shapes}")
    if before and update.optimizer == "sgd":
        update = replace(update, number=1)  # the command does not say which step this is, only that it has a velocity
    with _refusing(name):
        moved, states = step(model.tensor(), gradient.tensor(), [held.tensor() for held in before], update)
    headers = before or [Held("FLOAT", parameters, first_kind, None, b"")] * len(states)
    made = [replace(model, data=_bytes(moved))]
    made += [replace(header, data=_bytes(state)) for header, state in zip(headers, states, strict=True)]
    return _store(keys, options, list(zip(outputs, made, strict=True)))


COMMANDS: dict[str, Callable[[Keys, str, Sequence[bytes]], Any]] = {
    "AI.TENSORSET": _set,
    "TENSOR.GET": _get,
    "TENSOR.INFO": _info,
    "TENSOR.NORM": _measured(_norm),
    "TENSOR.FINITE": _measured(_finite),
    "TENSOR.MEAN": _aggregated("mean", {}),
    "TENSOR.MEDIAN": _aggregated("median", {}),
    "TENSOR.TRIMMEDMEAN": _aggregated("trimmed_mean", {"TRIM": 1}),
    "TENSOR.KRUM": _aggregated("krum", {"FAULTY": 1, "SELECT": 1}),
    "TENSOR.SGD": _sgd,
    "TENSOR.ADAM": _adam,
}
