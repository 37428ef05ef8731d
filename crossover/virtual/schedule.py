"""A schedule: which faults happen to a run, as data. Drawn by a seed, written as JSON, told to a person one line a fault.

A fault strikes where a role stands in its own work (its n-th request, over all processes that ever play that role) or at a moment. So one
that is taken out of a schedule moves the others as little as can be, which is what makes a schedule small.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from crossover.errors import UserError

Kind = Literal[
    "kill", "freeze", "slow", "lose", "duplicate", "outage", "memory_lost", "queues_lost", "clock", "client_dies", "throttle", "taken",
    "late",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Side = Literal["before", "after"]  # of a request's effect


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    - kill, freeze, slow, lose: strike the `request`-th request of `role`, `side` its effect. A frozen process goes on after `seconds`; a
      slow one takes `seconds` longer for each request from there on; a lost reply is a broken connection, or silence (`silent`).
    - duplicate: the `request`-th invocation of `role` comes again `seconds` later. Its caller goes on with the second one's answer (`side`
      before), or has gone on with the first one's.
    - outage: `service`'s server number `server` refuses connections from `at_s` for `seconds`.
    - memory_lost, queues_lost: a database host, the broker, starts again with nothing at `at_s`.
    - clock: the wall clock of `role` is ahead by `seconds`.
    - client_dies at `at_s`; another resumes the run `seconds` later.
    - throttle: from `at_s` for `seconds` no function is invoked.
    - taken: the instance of program `role` is taken at `at_s`; late: it starts `seconds` after the others.
    """

    kind: Kind
    role: str = ""
    request: int = 0  # from 1; 0 where the fault has a moment
    side: Side = "before"
    silent: bool = False
    service: str = ""
    server: int = 0
    at_s: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        return _TOLD[self.kind](self)


def _at_request(what: str) -> Callable[[Fault], str]:
    return lambda f: f"{f.role}, request {f.request}, {f.side} its effect: {what.format(f=f)}"


def _at_moment(what: str) -> Callable[[Fault], str]:
    return lambda f: f"at {f.at_s:.3f} s: {what.format(f=f)}"


_TOLD: Mapping[Kind, Callable[[Fault], str]] = {
    "kill": _at_request("its process is killed"),
    "freeze": _at_request("its process stands still for {f.seconds:g} s"),
    "slow": _at_request("its process takes {f.seconds:g} s more for each request from now on"),
    "lose": lambda f: _at_request("the reply never comes" if f.silent else "the connection breaks")(f),
    "duplicate": lambda f: (
        f"{f.role}, delivery {f.request}: it comes again {f.seconds:g} s later, "
        + ("and its caller waits for the second" if f.side == "before" else "when its caller has gone on")
    ),
    "outage": _at_moment("{f.service} {f.server} refuses connections for {f.seconds:g} s"),
    "memory_lost": _at_moment("database {f.server} starts again without what it held"),
    "queues_lost": _at_moment("the broker starts again without its queues"),
    "clock": lambda f: f"{f.role}: its clock is {f.seconds:+g} s off",
    "client_dies": _at_moment("the client dies; another resumes the run {f.seconds:g} s later"),
    "throttle": _at_moment("no function is invoked for {f.seconds:g} s"),
    "taken": _at_moment("the instance of {f.role} is taken"),
    "late": lambda f: f"{f.role} starts {f.seconds:g} s after the others",
}


@dataclass(frozen=True)
class Terrain:
    """Where faults can strike: how a run went undisturbed. `requests`: of each role. `kinds`: what the architecture can meet."""

    requests: Mapping[str, int]
    programs: Sequence[str]
    servers: Mapping[str, int]  # of each service
    seconds: float
    kinds: Sequence[Kind]


def draw(terrain: Terrain, seed: int, *, least: int = 5, most: int = 9) -> tuple[Fault, ...]:
    """The schedule of a seed: `least` to `most` faults, spread over the roles' work and over the run's time."""
    chance = random.Random(f"schedule {seed}")
    return tuple(_draw(terrain, chance) for _ in range(chance.randint(least, most)))


def _draw(terrain: Terrain, chance: random.Random) -> Fault:
    kind, at_s = chance.choice(terrain.kinds), round(chance.uniform(0.0, terrain.seconds), 3)
    role = chance.choice(sorted(terrain.requests))
    place: dict[str, Any] = {"role": role, "request": chance.randint(1, max(1, terrain.requests[role]))}
    place["side"] = chance.choice(get_args(Side))
    long_s = _spread(chance, 0.1, 2_000.0)  # from a moment to beyond every time-out
    match kind:
        case "kill":
            return Fault(kind=kind, **place)
        case "freeze":
            return Fault(kind=kind, **place, seconds=long_s)
        case "slow":
            return Fault(kind=kind, **place, seconds=_spread(chance, 0.01, 5.0))
        case "lose":
            return Fault(kind=kind, **place, silent=chance.random() < 0.5)
        case "duplicate":
            # Late ones are not drawn yet, only given: of two live workers of one rank MLLess's run can end beyond resuming.
            return Fault(kind=kind, role=role, request=chance.randint(1, 8), seconds=_spread(chance, 0.01, 300.0))
        case "clock":
            return Fault(kind=kind, role=role, seconds=round(chance.uniform(-120.0, 120.0), 3))
        case "outage":
            service = chance.choice(sorted(terrain.servers))
            server = chance.randrange(terrain.servers[service])
            return Fault(kind=kind, service=service, server=server, at_s=at_s, seconds=_spread(chance, 0.1, 60.0))
        case "memory_lost":
            return Fault(kind=kind, service="redis", server=chance.randrange(terrain.servers["redis"]), at_s=at_s)
        case "queues_lost":
            return Fault(kind=kind, service="rabbitmq", at_s=at_s)
        case "client_dies":
            return Fault(kind=kind, at_s=at_s, seconds=_spread(chance, 0.1, 600.0))
        case "throttle":
            return Fault(kind=kind, at_s=at_s, seconds=_spread(chance, 0.1, 60.0))
        case "taken":
            return Fault(kind=kind, role=chance.choice(terrain.programs), at_s=at_s)
        case "late":
            return Fault(kind=kind, role=chance.choice(terrain.programs), seconds=_spread(chance, 0.1, 900.0))


def _spread(chance: random.Random, low: float, high: float) -> float:
    """Between the two, each order of magnitude as likely as another."""
    return float(round(low * (high / low) ** chance.random(), 3))


def as_json(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """What differs from a fault that has only a kind."""
    bare = {each.name: each.default for each in fields(Fault) if each.name != "kind"}
    return [{k: v for k, v in asdict(fault).items() if k == "kind" or v != bare[k]} for fault in faults]


def from_json(given: Any, terrain: Terrain) -> tuple[Fault, ...]:
    """Raises UserError where it is no list of faults, or one that this architecture cannot meet."""
    if not isinstance(given, list):
        raise UserError(f"faults: {type(given).__name__}; expected a list of faults, as `crossover chaos` prints it")
    return tuple(_fault(number, each, terrain) for number, each in enumerate(given, start=1))


def _fault(number: int, given: Any, terrain: Terrain) -> Fault:
    try:
        fault = Fault(**given)
    except TypeError as error:
        known = ", ".join(each.name for each in fields(Fault))
        raise UserError(f"fault {number}: {error}; its fields are {known}") from None
    if fault.kind not in terrain.kinds:
        known = ", ".join(terrain.kinds)
        raise UserError(
            f"fault {number}: kind: {fault.kind!r} cannot happen to this experiment; expected one of {known}"
        )
    if fault.role and fault.role not in (*terrain.requests, *terrain.programs):
        known = ", ".join(sorted(terrain.requests))
        raise UserError(f"fault {number}: role: {fault.role!r}; this experiment has {known}")
    return fault
