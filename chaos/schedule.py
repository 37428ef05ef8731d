"""A schedule: which faults happen to a run, as data. Drawn by a seed, written as JSON, told to a person one line a fault.

A fault strikes where a role stands in its own work (its n-th request, over all processes that ever play that role) or at a moment. So one
that is taken out of a schedule moves the others as little as can be, which is what makes a schedule small.
"""

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from typing import Any, Literal, TypeVar, get_args

from crossover.errors import UserError

T = TypeVar("T")

Kind = Literal[
    "kill", "freeze", "slow", "lose", "message", "duplicate", "outage", "refusal", "memory_lost", "queues_lost", "clock", "client_dies",
    "throttle", "starts", "taken", "late", "gone",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
Side = Literal["before", "after"]  # of a request's effect
# What a server says that will answer later, by service; "aws" stands for Step Functions and Auto Scaling.
REFUSALS: Mapping[str, str] = {
    "s3": "SlowDown",
    "redis": "LOADING",
    "rabbitmq": "basic.nack",
    "aws": "ThrottlingException",
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    - kill, freeze, slow, lose: strike the `request`-th request of `role`, `side` its effect. A frozen process goes on after `seconds`; a
      slow one takes `seconds` longer for each request from there on; a lost reply is a broken connection, or silence (`silent`).
    - message: the `request`-th message that `role` sends reaches the broker `seconds` late, so that others overtake it (`side` before), or
      comes again then.
    - duplicate: the `request`-th invocation of `role` comes again `seconds` later. Its caller goes on with the second one's answer (`side`
      before), or has gone on with the first one's.
    - outage: `service`'s server number `server` refuses connections from `at_s` for `seconds`; refusal: it answers that it is busy.
    - memory_lost, queues_lost: a database host, the broker, starts again with nothing at `at_s`.
    - clock: the wall clock of `role` is ahead by `seconds`; of the client, where several follow each other, that of the `request`-th.
    - client_dies at `at_s`; another resumes the run `seconds` later.
    - throttle, starts: from `at_s` for `seconds` no function is invoked, no execution started.
    - taken: the instance of program `role` is taken at `at_s`; late: it starts `seconds` after the others. Its successor does not: whoever
      is given up, because it came too late, must not fail every resumption after that too.
    - gone: from the `request`-th request of `role` on, whoever plays it is killed, until the run is resumed.
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
    "message": lambda f: (
        f"{f.role}, message {f.request}: "
        + (f"it arrives {f.seconds:g} s late" if f.side == "before" else f"it comes again {f.seconds:g} s later")
    ),
    "duplicate": lambda f: (
        f"{f.role}, delivery {f.request}: it comes again {f.seconds:g} s later, "
        + ("and its caller waits for the second" if f.side == "before" else "when its caller has gone on")
    ),
    "outage": _at_moment("{f.service} {f.server} refuses connections for {f.seconds:g} s"),
    "refusal": lambda f: _at_moment(f"{{f.service}} {{f.server}} answers {REFUSALS[f.service]} for {{f.seconds:g}} s")(
        f
    ),
    "memory_lost": _at_moment("database {f.server} starts again without what it held"),
    "queues_lost": _at_moment("the broker starts again without its queues"),
    "clock": lambda f: f"{f.role}{f' {f.request}' if f.request else ''}: its clock is {f.seconds:+g} s off",
    "client_dies": _at_moment("the client dies; another resumes the run {f.seconds:g} s later"),
    "throttle": _at_moment("no function is invoked for {f.seconds:g} s"),
    "starts": _at_moment("no execution is started for {f.seconds:g} s"),
    "taken": _at_moment("the instance of {f.role} is taken"),
    "late": lambda f: f"{f.role} starts {f.seconds:g} s after the others",
    "gone": _at_request("its process is killed, and whoever takes its place, until the run is resumed"),
}


Requests = Sequence[tuple[float, str]]  # of a role: when it asked, and for what sort of thing


@dataclass(frozen=True)
class Terrain:
    """Where faults can strike: how a run went undisturbed. `requests`: of each role, when it asked and for what. `messages`, `deliveries`:
    what it sent, how often it was invoked. `kinds`: what the architecture can meet. `again`: what each role asks for once more, behind
    `requests`, in a run that was stopped half way and resumed. `may_go`: how many workers the others go on without.
    """

    requests: Mapping[str, Requests]
    messages: Mapping[str, int]
    deliveries: Mapping[str, int]
    programs: Sequence[str]
    servers: Mapping[str, int]  # of each service
    kinds: Sequence[Kind]
    again: Mapping[str, Requests] = field(default_factory=dict)
    may_go: int = 0


# How long what passes by itself may last at most, in seconds: retries, patience and new instances are made for more than this.
PASSES_S: Mapping[Kind, float] = {
    "freeze": 300.0, "slow": 0.1, "message": 300.0, "duplicate": 300.0, "outage": 2.0, "refusal": 2.0, "throttle": 1.0, "starts": 1.0,
    "late": 120.0,
}  # fmt: skip
ALWAYS_PASS: tuple[Kind, ...] = ("kill", "lose", "taken", "gone")
# Of any other kind: what a protocol forgets shows most often where a process ends between two requests.
KILLS_FOR_ONE = 3
KILLS = 2  # of one role, before its retries may be used up


def pass_by(faults: Sequence[Fault], *, may_go: int = 0) -> bool:
    """Whether a run must get over these by itself: nobody has to resume it, but where its client died. `may_go`: how many workers it goes
    on without.
    """
    hit = Counter(fault.role for fault in faults if fault.kind in ("kill", "taken"))
    few = len(gone(faults)) <= may_go and all(count <= KILLS for role, count in hit.items() if role != "client")
    return few and all(map(_passes, faults))


def gone(faults: Sequence[Fault]) -> set[str]:
    """The roles that nobody plays any more."""
    return {fault.role for fault in faults if fault.kind == "gone"}


def ends_client(fault: Fault) -> bool:
    """Whether a client may end by this fault, though the run goes on."""
    return fault.kind == "client_dies" or fault.role == "client"


def _passes(fault: Fault) -> bool:
    return ends_client(fault) or fault.kind in ALWAYS_PASS or fault.seconds <= PASSES_S.get(fault.kind, -inf)


def draw(terrain: Terrain, seed: int) -> tuple[Fault, ...]:
    """The schedule of a seed. One in five has three to five faults, all at requests that change something, and one in six what it takes
    several faults in one place to see (`_rare`). The others have five to nine, in one of four manners: of all kinds, spread over the
    roles' work and the run's time; of a few kinds, on a few roles, where they meet more often (Groce et al., "Swarm Testing", 2012); such
    that all pass by themselves; or, twice as often, around a resumption, on the steps that every attempt begins and ends with and on a few
    others, which may run on when the next begins.
    """
    terrain = replace(terrain, kinds=[kind for kind in terrain.kinds if kind != "gone"])
    if (sort := random.Random(f"manner {seed}").random()) < 0.2:
        return _at_writes(terrain, random.Random(f"writes {seed}"))
    if sort < 0.37:
        return _rare(terrain, random.Random(f"rare {seed}"))
    chance = random.Random(f"schedule {seed}")
    roles, manner, faults, near_s = sorted(terrain.requests), chance.choice((0, 1, 2, 3, 3)), list[Fault](), 0.0
    count = chance.randint(5, 9)
    if manner == 1:
        terrain = replace(terrain, kinds=_some(terrain.kinds, 4, chance))
        roles = _some(roles, 3, chance)
    elif manner == 3:
        once = [role for role in roles if terrain.deliveries.get(role) == 1]
        roles = sorted({*once, *_some(roles, 2, chance)})
        near_s = _moment([each for asked in terrain.requests.values() for each in asked], chance)
        if held_up := _at_work(terrain, near_s, chance):
            faults.append(held_up)
        faults.append(Fault(kind="client_dies", at_s=near_s, seconds=_spread(chance, 0.1, 10.0)))
        terrain = replace(terrain, kinds=[kind for kind in terrain.kinds if kind in _OF_ONE_ROLE])
    while len(faults) < count:
        fault, at_s = _draw(terrain, roles, near_s, chance)
        if manner != 2 or pass_by([*faults, fault]):
            faults.append(fault)
            near_s = at_s
    return tuple(faults)


_CHANGES_NOTHING = re.compile(
    r"Get|Head|List|Describe|EXISTS|PING|connect|TENSOR\.(GET|INFO|FINITE|NORM)|basic\.(get|nack|consume|cancel|deliver)"
    r"|.*/records/|.* data/"
)


def _at_writes(terrain: Terrain, chance: random.Random) -> tuple[Fault, ...]:
    """A few faults at what changes something. In half of the schedules the run is resumed while somebody's write is under way: it arrives
    when others have gone on, and its sender may be gone by then. In half of the others the broker loses what it was just told.
    """
    faults, kinds = list[Fault](), [kind for kind in terrain.kinds if kind in _OF_ONE_ROLE]
    count = chance.randint(3, 5)
    if chance.random() < 0.5:
        role, number = _write(terrain, [role for role in terrain.requests if role != "client"], chance, later=0.0)
        place: dict[str, Any] = {"role": role, "request": number}
        at_s = terrain.requests[role][number - 1][0]
        faults.append(Fault(kind="freeze", **place, side="before", seconds=_spread(chance, 3.0, 300.0)))
        faults.append(Fault(kind="client_dies", at_s=round(at_s + 0.01, 3), seconds=_spread(chance, 0.1, 10.0)))
        if chance.random() < 0.5:
            faults.append(Fault(kind="kill", **place, side="after"))
    elif (
        told := [at_s for role in terrain.requests for at_s, _ in _published(terrain, role)]
    ) and chance.random() < 0.5:
        faults.append(
            Fault(
                kind="queues_lost", service="rabbitmq", at_s=round(chance.choice(told) + _spread(chance, 0.01, 3.0), 3)
            )
        )
        kinds = [kind for kind in kinds if kind in ("lose", "message", "duplicate")]  # who begins anew says it again
    while len(faults) < count:
        role, number = _write(terrain, list(terrain.requests), chance, later=0.4)
        place = {"role": role, "request": number, "side": chance.choice(get_args(Side))}
        match chance.choice(kinds):
            case "kill" | "slow":  # who is slow strikes no one request: another kill
                faults.append(Fault(kind="kill", **place))
            case "freeze":
                faults.append(Fault(kind="freeze", **place, seconds=_spread(chance, 10.0, 2_000.0)))
            case "lose":
                faults.append(Fault(kind="lose", **place, silent=chance.random() < 0.5))
            case "message":
                place |= _one_of(terrain.messages, chance)
                faults.append(Fault(kind="message", **place, seconds=_behind_another(terrain, place, chance)))
            case _:  # duplicate
                place |= _one_of(terrain.deliveries, chance)
                faults.append(Fault(kind="duplicate", **place, seconds=_spread(chance, 0.1, 300.0)))
    return tuple(faults)


def _rare(terrain: Terrain, chance: random.Random) -> tuple[Fault, ...]:
    """Workers die for good, where others can go on without them; messages come again right behind later ones; or a run is resumed twice,
    the second time while it sets itself up, and somebody of before stands still meanwhile. And up to two faults beside, that pass.
    """
    beside = [_draw(terrain, sorted(terrain.requests), 0.0, chance)[0] for _ in range(chance.randint(0, 2))]
    faults = [each for each in beside if pass_by([each])]
    match chance.choice(["gone"] * 3 * bool(terrain.may_go) + ["message"] * 2 * ("message" in terrain.kinds) + [""]):
        case "gone":
            workers = [role for role in sorted(terrain.requests) if role.startswith(("train ", "program "))]
            roles = chance.sample(workers, chance.randint(1, min(2, terrain.may_go)))
            faults += [Fault(kind="gone", role=role, request=_place(terrain, role, chance)[0]) for role in roles]
        case "message":
            places: list[dict[str, Any]] = [{**_one_of(terrain.messages, chance), "side": "after"} for _ in range(3)]
            faults += [Fault(kind="message", **at, seconds=_behind_another(terrain, at, chance)) for at in places]
        case _:
            at_s = _moment(terrain.requests[chance.choice(sorted(terrain.requests))], chance)
            again_s = round(at_s + 0.1 + _spread(chance, 0.5, 10.0), 3)
            faults += [Fault(kind="client_dies", at_s=each, seconds=0.1) for each in (at_s, again_s)]
            faults += filter(None, [_at_work(terrain, at_s, chance)])
    return tuple(faults)


def _behind_another(terrain: Terrain, place: Mapping[str, Any], chance: random.Random) -> float:
    """How much later a message comes again: mostly shortly behind a later one of its sender, where there is one, most often behind one that
    goes to the same sort of place. One that is held up before holds its sender up too, so then any time will do.
    """
    sent = _published(terrain, place["role"])[place["request"] - 1 :]
    later = [at_s for at_s, what in sent[1:] if what == sent[0][1] or chance.random() < 0.3]
    if place["side"] == "before" or not later or chance.random() < 0.3:
        return _spread(chance, 0.1, 300.0)
    return round(float(chance.choice(later) - sent[0][0]) + _spread(chance, 0.001, 10.0), 3)


def _published(terrain: Terrain, role: str) -> Requests:
    return [each for each in terrain.requests[role] if each[1].startswith("basic.publish")]


def _write(terrain: Terrain, roles: Sequence[str], chance: random.Random, *, later: float) -> tuple[str, int]:
    """A role, and the number of a request of it that changes something, each sort as likely as another; with the chance `later`, of what
    it asks only when the run is resumed.
    """
    found = dict[tuple[str, str], list[tuple[str, int]]]()
    asked = terrain.again if terrain.again and chance.random() < later else terrain.requests
    for role in (each for each in roles if each in asked):
        behind = len(terrain.requests[role]) if asked is terrain.again else 0
        for number, (_, what) in enumerate(asked[role], start=1):
            if not _CHANGES_NOTHING.match(what):
                found.setdefault((role.partition(" ")[0], what), []).append((role, behind + number))
    if not found:  # nobody resumes anything that changes anything
        assert later, "whoever trains changes something"
        return _write(terrain, roles, chance, later=0.0)
    places = found[chance.choice(sorted(found))]
    return places[-1] if chance.random() < 0.3 else chance.choice(places)


def _at_work(terrain: Terrain, at_s: float, chance: random.Random) -> Fault | None:
    """One that stands still at this moment, and goes on when others have gone on without it: mostly, where anybody is at work."""
    asked = {role: sum(when_s <= at_s for when_s, _ in found) for role, found in terrain.requests.items()}
    busy = sorted(role for role, count in asked.items() if role != "client" and 0 < count < len(terrain.requests[role]))
    if not busy or chance.random() < 0.2:
        return None
    role = _role(busy, chance)
    seconds = _spread(chance, 1.0, 100.0)
    return Fault(kind="freeze", role=role, request=asked[role], side=chance.choice(get_args(Side)), seconds=seconds)


_OF_ONE_ROLE: tuple[Kind, ...] = ("kill", "freeze", "slow", "lose", "message", "duplicate")


def _some(of: Sequence[T], most: int, chance: random.Random) -> list[T]:
    return chance.sample(of, min(chance.randint(1, most), len(of)))


def _moment(asked: Requests, chance: random.Random) -> float:
    """When something is asked: nothing is to be hit while functions start."""
    return round(chance.choice(asked)[0], 3)


def _role(roles: Sequence[str], chance: random.Random) -> str:
    """Each sort of work is as likely as another, whatever the number of those who do it."""
    sorts = sorted({role.partition(" ")[0] for role in roles})
    sort = chance.choice(sorts)
    return chance.choice([role for role in roles if role.partition(" ")[0] == sort])


def _draw(terrain: Terrain, roles: Sequence[str], near_s: float, chance: random.Random) -> tuple[Fault, float]:
    """A fault and its moment, as far as an undisturbed run tells it. Half of those that have a moment come shortly behind `near_s`, the
    moment of the one before: what goes wrong at the same time is harder to get over.
    """
    kind = chance.choice([kind for kind in terrain.kinds for _ in range(KILLS_FOR_ONE if kind == "kill" else 1)])
    role = _role(roles, chance)
    request, then_s = _place(terrain, role, chance)
    place: dict[str, Any] = {"role": role, "request": request, "side": chance.choice(get_args(Side))}
    at_s = round(near_s + _spread(chance, 0.01, 10.0) if near_s and chance.random() < 0.5 else then_s, 3)
    long_s = _spread(chance, 0.1, 2_000.0)  # from a moment to beyond every time-out
    match kind:
        case "kill":
            return Fault(kind=kind, **place), then_s
        case "freeze":
            return Fault(kind=kind, **place, seconds=long_s), then_s
        case "slow":
            return Fault(kind=kind, **place, seconds=_spread(chance, 0.01, 5.0)), then_s
        case "lose":
            return Fault(kind=kind, **place, silent=chance.random() < 0.5), then_s
        case "message":
            place |= _one_of(terrain.messages, chance)
            return Fault(kind=kind, **place, seconds=_spread(chance, 0.01, 300.0)), near_s
        case "duplicate":
            place |= _one_of(terrain.deliveries, chance)
            return Fault(kind=kind, **place, seconds=_spread(chance, 0.01, 300.0)), near_s
        case "clock":
            number = chance.randint(1, 2) if role == "client" else 0  # who resumes the run may sit elsewhere
            return Fault(kind=kind, role=role, request=number, seconds=round(chance.uniform(-120.0, 120.0), 3)), near_s
        case "taken":
            return Fault(kind=kind, role=chance.choice(terrain.programs), at_s=at_s), at_s
        case "late":
            return Fault(kind=kind, role=chance.choice(terrain.programs), seconds=_spread(chance, 0.1, 900.0)), near_s
    return _at(kind, at_s, terrain, chance), at_s


def _at(kind: Kind, at_s: float, terrain: Terrain, chance: random.Random) -> Fault:
    """One that strikes what all share, at a moment."""
    match kind:
        case "outage" | "refusal":
            service = chance.choice(sorted(terrain.servers))
            server = chance.randrange(terrain.servers[service])
            return Fault(kind=kind, service=service, server=server, at_s=at_s, seconds=_spread(chance, 0.1, 60.0))
        case "memory_lost":
            return Fault(kind=kind, service="redis", server=chance.randrange(terrain.servers["redis"]), at_s=at_s)
        case "queues_lost":
            return Fault(kind=kind, service="rabbitmq", at_s=at_s)
        case "client_dies":
            return Fault(kind=kind, at_s=at_s, seconds=_spread(chance, 0.1, 600.0))
        case _:  # throttle, starts
            return Fault(kind=kind, at_s=at_s, seconds=_spread(chance, 0.1, 60.0))


def _place(terrain: Terrain, role: str, chance: random.Random) -> tuple[int, float]:
    """A request of a role, from 1, and when it came undisturbed; or one of a later life, where a role is played again. A step that comes
    once in an attempt lives again in the next, and asks for other things there.
    """
    asked, again = terrain.requests[role], terrain.again.get(role, ())
    if chance.random() < (0.5 if terrain.deliveries.get(role) == 1 else 0.15):
        later = _any(again, chance) if again and chance.random() < 0.75 else chance.randrange(len(asked) + 8)
        return len(asked) + later + 1, asked[-1][0]
    number = _any(asked, chance)
    return number + 1, asked[number][0]


def _any(asked: Requests, chance: random.Random) -> int:
    """The number of any request, from 0; or of one of some sort, so that what is rare (a lease, a fence, a delete) is struck as often as
    what comes all the time; and of these the last, behind which a run ends, as often as all others.
    """
    if chance.random() < 0.3:
        return chance.randrange(len(asked))
    what = chance.choice(sorted({what for _, what in asked}))
    alike = [number for number, each in enumerate(asked) if each[1] == what]
    return alike[-1] if chance.random() < 0.5 else chance.choice(alike)


def _one_of(counted: Mapping[str, int], chance: random.Random) -> dict[str, Any]:
    """A role, and which of its own."""
    role = chance.choice(sorted(counted))
    return {"role": role, "request": chance.randint(1, counted[role])}


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
