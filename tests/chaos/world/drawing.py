"""Drawing a schedule by its seed: where a run can be hurt, its terrain says."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args

from tests.chaos.world.schedule import (
    CONFLICT,
    IF_NONE,
    KILLS_FOR_ONE,
    LEARNING_LIMITS,
    LIMITS,
    OWN_LIMITS,
    RARE_LIMITS,
    REFUSALS,
    WORKERS,
    WRITTEN_ALL_THE_SAME,
    Fault,
    FaultKind,
    Requests,
    Side,
    Terrain,
    pass_by,
)

T = TypeVar("T")
LIMITED = 1 / 3  # of all schedules


def draw(terrain: Terrain, seed: int) -> tuple[Fault, ...]:
    """Return the schedule of faults that `seed` draws for the places in `terrain`.

    Limits come first: those of `_draw_limits` in a third of the schedules, one of RARE_LIMITS in about as many, each of LEARNING_LIMITS in
    a quarter, and each of OWN_LIMITS in an eighth. Then come the faults of `_draw_schedule`, each refusal with a code, then faults that
    make these limits harmful. Limits, codes and these last faults have random generators of their own, so that the other faults do not
    depend on them. In a few schedules, the faults of one of _ALONE are the only ones besides limits.
    """
    terrain = replace(terrain, kinds=[kind for kind in terrain.kinds if kind not in ("gone", "limit")])
    chance = random.Random(f"limits {seed}")
    rare = {*RARE_LIMITS, *LEARNING_LIMITS, *OWN_LIMITS, "waits_s"} - {"spares"}
    names = [name for name in terrain.limits if name not in rare]
    limits = _draw_limits(names, chance) if chance.random() < LIMITED else []
    limits += _draw_rare_limit(terrain.limits, {each.service for each in limits}, random.Random(f"rare limit {seed}"))
    limits += _draw_own_limits(terrain.limits, LEARNING_LIMITS, 1 / 4, random.Random(f"learning limit {seed}"))
    limits += _draw_own_limits(terrain.limits, OWN_LIMITS, 1 / 8, random.Random(f"own limit {seed}"))
    faults = _draw_schedule(terrain, seed)
    coded = [_draw_code(each, chance) if each.kind == "refusal" else each for each in faults]
    for name, draw_alone in _ALONE.items():
        if alone := tuple(draw_alone(terrain, random.Random(f"{name} {seed}"))):
            return (*limits, *alone)
    return (*limits, *coded, *_draw_at_limits(terrain, limits, random.Random(f"at limits {seed}")))


def _draw_limits(names: Sequence[str], chance: random.Random) -> list[Fault]:
    """Return one to three limits of `names`, sorted by name, each with one of its values. A short `timeout_s` always comes with a long
    `minibatch_s`, because nothing else reaches the timeout.
    """
    drawn = {name for name in _some(names, 3, chance) if name != "timeout_s"}
    if "timeout_s" in names and chance.random() < 0.25:
        drawn |= {"timeout_s", "minibatch_s"}
    return [Fault(kind="limit", service=name, seconds=chance.choice(LIMITS[name])) for name in sorted(drawn)]


_UNDOES = {
    "page_s": "timeout_s",  # a listing may take as long as a short invocation
    "exchange_every": "part_bytes",  # the gradient of one minibatch needs no average, and so no parts
}


def _draw_rare_limit(names: Sequence[str], drawn: set[str], chance: random.Random) -> Iterator[Fault]:
    """Yield one of RARE_LIMITS that has not been drawn, unless it undoes one that has (_UNDOES). Listings that take long come with small
    pages.
    """
    free = [name for name in names if name in RARE_LIMITS and name not in drawn]
    free += ["exchange_every"] * ("exchange_every" in free)
    if not free or chance.random() > LIMITED or _UNDOES.get(name := chance.choice(free)) in drawn:
        return
    value = LIMITS[name][-1] if name == "spares" else chance.choice(LIMITS[name])
    yield Fault(kind="limit", service=name, seconds=value)
    if name == "page_s" and "page_keys" not in drawn:
        yield Fault(kind="limit", service="page_keys", seconds=chance.choice(LIMITS["page_keys"]))


def _draw_own_limits(names: Sequence[str], of: Sequence[str], share: float, chance: random.Random) -> Iterator[Fault]:
    """Yield each limit of `of` that is among `names` in this share of the schedules, with one of its values."""
    for name in of:
        if chance.random() < share and name in names:
            yield Fault(kind="limit", service=name, seconds=chance.choice(LIMITS[name]))


_OF_RUN = re.compile("PutObject .*/(body|checkpoint|computing)/")  # what a run deletes at its end
_STORES_GRADIENT, _TAKES_RANK = re.compile("PutObject .*/gradient/"), re.compile("PutObject .*/lease/")


def _draw_at_limits(terrain: Terrain, limits: Sequence[Fault], chance: random.Random) -> Iterator[Fault]:
    """Yield faults that make limits harmful, in a half or three quarters of the schedules that have the limit. A function is killed after
    it has stored only the first part of its gradient; a program that holds a rank is frozen so long that a spare may take the rank;
    messages come again where mailboxes are used more than once; a run whose workers keep step is resumed. With any limits or none, S3
    answers conditional writes with a conflict in one schedule in four.
    """
    named = {limit.service for limit in limits}
    if "part_bytes" in named and chance.random() < 0.5:
        roles = [role for role in sorted(terrain.requests) if role.startswith("compute_gradient")]
        stored = [
            (role, number)
            for role in ([chance.choice(roles)] if roles else [])
            for number, (_, what) in enumerate(terrain.requests[role], 1)
            if _STORES_GRADIENT.match(what)
        ]
        for role, first in stored[:1]:
            yield Fault(kind="kill", role=role, request=first, side="after")
    if "spares" in named and chance.random() < 0.75:
        role = chance.choice(
            [each for each in terrain.programs if terrain.requests.get(each)]
        )  # a spare may ask nothing
        asked = terrain.requests[role]
        joins = next((number for number, (_, what) in enumerate(asked, 1) if _TAKES_RANK.match(what)), 0)
        request = joins + _any(asked[joins:], chance) + 1
        yield Fault(kind="freeze", role=role, request=request, seconds=_spread(chance, 20.0, 200.0))
    if "exchange_every" in named and terrain.messages and chance.random() < 0.75:
        for _ in range(3):
            again = _one_of(terrain.messages, chance)
            yield Fault(kind="message", **again, side="after", behind=1, seconds=_spread(chance, 0.001, 1.0))
    if "staleness_limit" in named and terrain.may_go > 1:
        slow, gone = chance.sample(sorted(terrain.programs), 2)  # the others need the slow one once another is gone
        yield Fault(kind="slow", role=slow, request=1, seconds=_spread(chance, 0.1, 2.0))
        yield Fault(kind="gone", role=gone, request=_any(terrain.requests[gone], chance) + 1)
    if "even_s" in named and chance.random() < 0.75:
        at_s = _moment(terrain.requests[chance.choice(sorted(terrain.requests))], chance)
        yield Fault(kind="client_dies", at_s=at_s, seconds=0.1)
    created = [at_s for asked in terrain.requests.values() for at_s, what in asked if what.endswith(IF_NONE)]
    if created and chance.random() < 0.25:
        for _ in range(3):  # one of them strikes in most schedules: a run's durations are spread by its seed
            at_s = round(max(0.0, chance.choice(created) - _spread(chance, 0.01, 1.0)), 3)
            yield Fault(kind="refusal", service="s3", code=CONFLICT, at_s=at_s, seconds=_spread(chance, 0.5, 2.0))


def _draw_late_state(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in eight of a run with a single worker, faults by which an attempt finds the states of two others. The worker
    is frozen before it saves, the run is resumed meanwhile, the worker saves and is killed, and the run is resumed again. With several
    workers all would have to save late, because a round can only be started from with the states of all.
    """
    workers = [role for role in terrain.requests if role.startswith("train ")]
    role, asked = workers[0] if workers else "", terrain.requests[workers[0]] if workers else ()
    saves = [number for number, (_, what) in enumerate(asked, 1) if _STATE.match(what)]
    if len(workers) != 1 or not saves or chance.random() > 1 / 8:
        return
    number = chance.choice(saves[: -(-len(saves) // 2)])  # the next attempt is to come further
    place: dict[str, Any] = {"role": role, "request": number}
    at_s = asked[number - 1][0]
    yield Fault(kind="freeze", **place, seconds=_spread(chance, 4.0, 15.0))
    yield Fault(kind="kill", **place, side="after")
    yield Fault(kind="client_dies", at_s=round(at_s + 0.01, 3), seconds=0.1)
    yield Fault(kind="client_dies", at_s=round(at_s + _spread(chance, 8.0, 25.0), 3), seconds=0.1)


def _draw_late_set_up(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in ten, faults by which the first step of a resumed run stands still while the run is resumed once more. Then
    it continues, or in a third of these schedules is killed. In half of them a worker of the first attempt has died and left what it
    stored. Yields none for architectures without a first step.
    """
    role = next((role for role in sorted(terrain.again) if role.startswith("initialise ")), "")
    if not role or chance.random() > 1 / 10:
        return
    asked, before = terrain.again[role], len(terrain.requests[role])
    number = _any(asked, chance)
    place: dict[str, Any] = {"role": role, "request": before + number + 1, "side": chance.choice(get_args(Side))}
    yield Fault(kind="client_dies", at_s=terrain.again_s, seconds=0.1)
    yield Fault(kind="freeze", **place, seconds=_spread(chance, 6.0, 60.0))
    if chance.random() < 1 / 3:
        yield Fault(kind="kill", role=role, request=before + number + 2)
    yield Fault(kind="client_dies", at_s=round(asked[number][0] + _spread(chance, 0.01, 3.0), 3), seconds=0.1)
    workers = [each for each in sorted(terrain.requests) if each.startswith("train ")]
    if workers and chance.random() < 1 / 2:
        dies = chance.choice(workers)
        before = sum(at_s < terrain.again_s for at_s, _ in terrain.requests[dies])
        yield from _kill_every_try(dies, chance.randint(1, max(1, before)))


def _kill_every_try(role: str, first: int) -> Iterator[Fault]:
    """Yield faults that kill a role at its request number `first`, and all its retries at their beginning."""
    for number in range(first, first + _MOST_TRIES):
        yield Fault(kind="kill", role=role, request=number)


def _draw_lost_before_decision(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in ten of SPIRT, faults by which a run is resumed with a database that has lost its memory, before the first
    epoch's decision exists: all workers freeze before they decide, and meanwhile the database restarts and the run is resumed.
    """
    roles = [role for role in sorted(terrain.requests) if role.startswith("detect_convergence ")]
    if not roles or not terrain.servers.get("redis") or chance.random() > 1 / 10:
        return
    for role in roles:
        yield Fault(kind="freeze", role=role, request=1, seconds=_spread(chance, 20.0, 60.0))
    at_s = max(terrain.requests[role][0][0] for role in roles) + _spread(chance, 0.1, 10.0)
    yield Fault(kind="memory_lost", service="redis", server=chance.randrange(terrain.servers["redis"]), at_s=at_s)
    yield Fault(kind="client_dies", at_s=round(at_s + 0.01, 3), seconds=_spread(chance, 0.1, 10.0))


def _draw_half_cleared(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve, kills of the last step and of all its retries behind the outcome, so that the run is resumed only
    to delete what all its attempts have left. Yields none for architectures without a last step.
    """
    role = next((role for role in sorted(terrain.requests) if role.startswith("collect ")), "")
    asked = [what for _, what in terrain.requests.get(role, ())]
    concludes = [number for number, what in enumerate(asked, 1) if "/outcome.json" in what and what.startswith("Put")]
    if not concludes or chance.random() > 1 / 12:
        return
    behind = concludes[0] + 1  # before anything is deleted, in half of the schedules
    yield from _kill_every_try(role, behind if chance.random() < 1 / 2 else chance.randint(behind, len(asked)))


def _draw_late_sleeper(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve of MLLess, faults by which a worker that was given up goes on while the others still have many
    steps to do, so that only what it stores late may be left of it. In half of these schedules the run is resumed behind its last step.
    """
    if not terrain.may_go or not any(role.startswith("supervise ") for role in terrain.requests):
        return
    if chance.random() > 1 / 12:
        return
    for name, value in (("minibatches", max(LIMITS["minibatches"])), ("checkpoint_every", 1)):
        if name in terrain.limits:
            yield Fault(kind="limit", service=name, seconds=value)
    yield from _as_sleeper(terrain, chance)
    last = [role for role in terrain.requests if role.startswith("collect ") and chance.random() < 1 / 2]
    for role in last:
        yield from _kill_every_try(role, 1)


def _draw_late_program(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve of architectures with spare instances, faults by which a program freezes before it stores something
    of one of its last rounds, until a spare has taken its rank and the run may be over.
    """
    if "spares" not in terrain.limits or chance.random() > 1 / 12:
        return
    role = chance.choice([each for each in terrain.programs if terrain.requests.get(each)])
    stored = Counter(what for _, what in terrain.requests[role] if _OF_RUN.match(what))
    if not stored:
        return
    sort = chance.choice(sorted(stored))
    last = chance.randint(max(1, stored[sort] - 1), stored[sort])
    yield Fault(kind="limit", service="spares", seconds=LIMITS["spares"][0])
    yield Fault(kind="freeze", role=role, request=last, sort=sort, seconds=_spread(chance, 60.0, 400.0))
    began_s = terrain.requests[role][0][0]  # a client that sees the run's end would end the program
    yield Fault(kind="client_dies", at_s=round(began_s + _spread(chance, 0.1, 3.0), 3), seconds=900.0)


def _draw_lost_with_task(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve of architectures whose workers may go, a fault by which a worker dies for good before it does what
    all others leave to it: before it stores a decision that it has claimed, or the outcome, or the model that the outcome names. In half of
    these schedules of architectures with a last step, it dies anywhere, and the run is resumed without it some rounds before its end.
    """
    roles = [role for role in sorted(terrain.requests) if role.startswith(WORKERS)]
    found = sorted({what for role in roles for _, what in terrain.requests[role] if _TASK.match(what)})
    if not terrain.may_go or not found or chance.random() > 1 / 12:
        return
    role, number, sort = chance.choice(roles), chance.randint(1, 2), chance.choice(found)
    last = [each for each in terrain.requests if each.startswith("collect ")]
    if not last or chance.random() < 1 / 2:
        yield Fault(kind="gone", role=role, request=number, sort=sort)
        return
    for name, value in (("minibatches", 4), ("checkpoint_every", 3)):  # the last round is not kept
        if name in terrain.limits:
            yield Fault(kind="limit", service=name, seconds=value)
    yield Fault(kind="gone", role=role, request=_any(terrain.requests[role], chance) + 1)
    yield from _kill_every_try(last[0], 1)


def _draw_late_writer(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve, faults by which a worker or a function freezes before it stores something of one of the last
    rounds, until the run may be over without it: the run is resumed meanwhile, or another invocation does the same.
    """
    roles = [role for role in sorted(terrain.deliveries) if not role.startswith(("initialise ", "collect "))]
    if not roles or chance.random() > 1 / 12:
        return
    role = _role(roles, chance)
    asked = [(at_s, what) for at_s, what in terrain.requests[role] if not _CHANGES_NOTHING.match(what)]
    stored = Counter(what for _, what in asked if _STORES.match(what))
    if not stored:
        return
    sort = chance.choice(sorted(stored))
    number = chance.randint(max(1, stored[sort] - 1), stored[sort])
    at_s = [when_s for when_s, what in asked if what == sort][number - 1]
    if "part_bytes" in terrain.limits:  # it may have stored some parts only
        yield Fault(kind="limit", service="part_bytes", seconds=LIMITS["part_bytes"][0])
    if terrain.programs:  # whose functions end with them
        twice = terrain.deliveries[role]
        yield Fault(kind="duplicate", role=role, request=twice, side="after", seconds=_spread(chance, 0.001, 1.0))
        number = chance.randint(number, number + max(1, 2 * stored[sort] // twice))
    else:
        yield Fault(kind="client_dies", at_s=round(at_s + _spread(chance, 0.1, 3.0), 3), seconds=0.1)
    yield Fault(kind="freeze", role=role, request=number, sort=sort, seconds=_spread(chance, 60.0, 400.0))


def _draw_retried_set_up(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve, faults by which the first step of a resumed run is killed and tried again, while a state that
    another process of the attempt before was about to store appears. In half of them that process dies there.
    """
    first = next((role for role in sorted(terrain.again) if role.startswith("initialise ")), "")
    if not first or chance.random() > 1 / 12:
        return
    roles = [role for role in terrain.requests if not role.startswith(("client", "initialise ", "collect "))]
    role, number = _write(terrain, roles, chance, later=0.0, what=_STATE)
    at_s = round(terrain.requests[role][number - 1][0] + 0.01, 3)
    count = len(terrain.again[first])  # at its end, all that the attempt before had left is deleted
    killed = chance.randrange(max(0, count - 5), count) if chance.random() < 1 / 2 else chance.randrange(count)
    later_s = terrain.again[first][killed][0] - terrain.again_s  # behind the death of the client
    place: dict[str, Any] = {"role": role, "request": number}
    yield Fault(kind="freeze", **place, seconds=round(max(0.1, later_s + _spread(chance, 0.1, 5.0) - 0.5), 3))
    if chance.random() < 1 / 2:
        yield Fault(kind="kill", **place, side="after")
    yield Fault(kind="client_dies", at_s=at_s, seconds=0.1)
    before = len(terrain.requests[first])
    yield Fault(kind="kill", role=first, request=before + killed + 1, side=chance.choice(get_args(Side)))


def _draw_lost_and_repeated(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in twelve with messages, faults by which the broker loses what was sent while all wait for one that is frozen,
    and messages of one sort come again as soon as the broker is back, before their senders have noticed. In half of the schedules the
    frozen one had yet to declare its queues, and does so when the broker is back.
    """
    senders = [role for role in sorted(terrain.messages) if _published(terrain, role)]
    if "queues_lost" not in terrain.kinds or not senders or chance.random() > 1 / 12:
        return
    late = _role(senders, chance)
    does = {what: _numbers_of(terrain, late, what) for what in ("queue.declare", "basic.publish")}
    declares = bool(does["queue.declare"]) and chance.random() < 1 / 2
    number = does["queue.declare"][0] if declares else chance.choice(does["basic.publish"])
    at_s = terrain.requests[late][number - 1][0]
    back_s = round(at_s + _spread(chance, 0.5, 5.0) + _BROKER_RESTARTS_S, 3)
    thaws_s = back_s + _spread(chance, 0.01, 2.0) - at_s if declares else _spread(chance, 20.0, 60.0)
    yield Fault(kind="freeze", role=late, request=number, seconds=round(thaws_s, 3))
    yield Fault(kind="queues_lost", service="rabbitmq", at_s=round(back_s - _BROKER_RESTARTS_S, 3))
    sort = chance.choice(sorted({what for role in senders for _, what in _published(terrain, role)}))
    for role in senders:
        sent = [
            (nth, at) for nth, (at, what) in enumerate(_published(terrain, role), 1) if what == sort and at < back_s
        ]
        for nth, sent_s in sent[-1:] * 3 if role != late else ():
            again_s = back_s - sent_s + _spread(chance, 0.05, 8.0)
            yield Fault(kind="message", role=role, request=nth, side="after", seconds=round(again_s, 3))


def _numbers_of(terrain: Terrain, role: str, what: str) -> list[int]:
    """Return the numbers, from 1, of the role's requests whose sort begins with `what`."""
    return [number for number, (_, sort) in enumerate(terrain.requests[role], 1) if sort.startswith(what)]


def _draw_missed(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield, in one schedule in sixteen of architectures whose steps poll, faults by which one step of a worker stands still until the
    others have waited for it for longer than they may.
    """
    roles = [role for role in sorted(terrain.deliveries) if not role.startswith(("initialise ", "collect ", "check_"))]
    if "waits_s" not in terrain.limits or not roles or chance.random() > 1 / 16:
        return
    yield Fault(kind="limit", service="waits_s", seconds=chance.choice(LIMITS["waits_s"]))
    role = _role(roles, chance)
    request = _any(terrain.requests[role], chance) + 1
    yield Fault(kind="freeze", role=role, request=request, seconds=_spread(chance, 250.0, 500.0))


_BROKER_RESTARTS_S = 5.0  # nemeses.py's
_TASK = re.compile(r"PutObject .*/(decision|model|outcome)")
_STORES = re.compile(r"PutObject (?!.*/(records|marks)/)|AI\.TENSORSET|TENSOR\.|EVAL")

_MOST_TRIES = 8  # of a step, and more than it has

# Schedules that consist of these faults and of limits, each drawn by a random number generator that is named so.
_ALONE: Mapping[str, Callable[[Terrain, random.Random], Iterator[Fault]]] = {
    "late state": _draw_late_state,
    "late set-up": _draw_late_set_up,
    "lost before decision": _draw_lost_before_decision,
    "half cleared": _draw_half_cleared,
    "late sleeper": _draw_late_sleeper,
    "late program": _draw_late_program,
    "lost with task": _draw_lost_with_task,
    "late writer": _draw_late_writer,
    "retried set-up": _draw_retried_set_up,
    "lost and repeated": _draw_lost_and_repeated,
    "missed": _draw_missed,
}


def _draw_code(fault: Fault, chance: random.Random) -> Fault:
    """Return the refusal with any code of its service. For a code after which a write may have taken place, the refusal strikes after the
    effect in half of the cases.
    """
    code = chance.choice(REFUSALS[fault.service])
    side: Side = chance.choice(get_args(Side)) if code in WRITTEN_ALL_THE_SAME else "before"
    return replace(fault, code="" if code == REFUSALS[fault.service][0] else code, side=side)


def _draw_schedule(terrain: Terrain, seed: int) -> tuple[Fault, ...]:
    """Return the faults of a seed, in one of several manners. One schedule in five has three to five faults at requests that change
    something (`_at_writes`); one in six has faults that show only together (`_rare`). The others have five to nine faults: of all kinds,
    spread over roles and time; of a few kinds on a few roles, where they meet more often (Groce et al., "Swarm Testing", 2012); only such
    that the run survives by itself; or, twice as often, around a resumption, on the steps that every attempt begins and ends with and on a
    few others.
    """
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
    """Return three to five faults at requests that change something. In half of the schedules the run is resumed while a write is under
    way, in a quarter a write of a state that the next attempt may begin with. In half of the others, if messages are sent, the broker loses
    its queues just after a message.
    """
    faults, kinds = list[Fault](), [kind for kind in terrain.kinds if kind in _OF_ONE_ROLE]
    count = chance.randint(3, 5)
    if chance.random() < 0.5:
        others = [role for role in terrain.requests if role != "client"]
        states = _STATE if chance.random() < 0.5 else _ANYTHING
        role, number = _write(terrain, others, chance, later=0.0, what=states)
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
    """Return faults that show only together, and up to two others that pass by themselves. Workers die for good, or sleep until the others
    have given them up, if others can continue without them; messages come again right after later ones; two invocations do the work of one
    while one of them is frozen; or a run is resumed twice, the second time while the first resumption sets itself up.
    """
    beside = [_draw(terrain, sorted(terrain.requests), 0.0, chance)[0] for _ in range(chance.randint(0, 2))]
    faults = [each for each in beside if pass_by([each])]
    sorts = (["gone"] * 3 + ["asleep"]) * bool(terrain.may_go) + ["message"] * 2 * ("message" in terrain.kinds)
    match chance.choice([*sorts, *["twins"] * ("duplicate" in terrain.kinds), ""]):
        case "gone":
            workers = [role for role in sorted(terrain.requests) if role.startswith(WORKERS)]
            roles = chance.sample(workers, chance.randint(1, min(2, terrain.may_go)))
            faults += [Fault(kind="gone", role=role, request=_place(terrain, role, chance)[0]) for role in roles]
            last = [role for role in terrain.requests if role.startswith("collect ") and chance.random() < 0.4]
            faults += [Fault(kind="gone", role=role, request=1) for role in last]  # the run is resumed without them
        case "asleep":
            faults += _as_sleeper(terrain, chance)
        case "message":
            places: list[dict[str, Any]] = [{**_one_of(terrain.messages, chance), "side": "after"} for _ in range(3)]
            faults += [Fault(kind="message", **at, seconds=_behind_another(terrain, at, chance)) for at in places]
        case "twins":
            faults += _as_twins(terrain, chance)
        case _:
            at_s = _moment(terrain.requests[chance.choice(sorted(terrain.requests))], chance)
            again_s = round(at_s + 0.1 + _spread(chance, 0.5, 10.0), 3)
            twice = [Fault(kind="client_dies", at_s=each, seconds=0.1) for each in (at_s, again_s)]
            twice += filter(None, [_at_work(terrain, at_s, chance)])
            faults += _resumed_again(terrain, chance) if terrain.again and chance.random() < 0.5 else twice
    return tuple(faults)


def _as_sleeper(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield faults by which a worker sleeps, in two or three lives, until the others have given it up; then it goes on."""
    role = chance.choice([role for role in sorted(terrain.requests) if role.startswith(WORKERS)])
    number = _place(terrain, role, chance)[0]
    for _ in range(chance.randint(2, 3)):
        yield Fault(kind="freeze", role=role, request=number, seconds=_spread(chance, 900.0, 1_500.0))
        number += chance.randint(1, 4)


def _as_twins(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield faults by which one invocation of a role that is invoked least often comes twice, and one of the two is frozen once or twice,
    so that the other one is ahead.
    """
    fewest = min(terrain.deliveries.values())
    role = chance.choice([each for each in sorted(terrain.deliveries) if terrain.deliveries[each] == fewest])
    yield Fault(
        kind="duplicate", role=role, request=1, side=chance.choice(get_args(Side)), seconds=_spread(chance, 0.1, 10.0)
    )
    for _ in range(chance.randint(1, 2)):
        number = chance.randint(1, 2 * len(terrain.requests[role]))
        yield Fault(kind="freeze", role=role, request=number, seconds=_spread(chance, 1.0, 30.0))


def _resumed_again(terrain: Terrain, chance: random.Random) -> Iterator[Fault]:
    """Yield faults by which a resumed run is resumed once more while a process is frozen at a write of the first resumption. In half of the
    schedules that role is killed at this write too.
    """
    role, number = _write(terrain, [role for role in terrain.requests if role != "client"], chance, later=1.0)
    lived = len(terrain.requests[role])
    at_s = (terrain.again[role][number - lived - 1] if number > lived else terrain.requests[role][number - 1])[0]
    yield Fault(kind="client_dies", at_s=terrain.again_s, seconds=0.1)
    yield Fault(
        kind="freeze",
        role=role,
        request=number,
        side=chance.choice(get_args(Side)),
        seconds=_spread(chance, 3.0, 300.0),
    )
    yield Fault(
        kind="client_dies", at_s=round(at_s + _spread(chance, 0.01, 3.0), 3), seconds=_spread(chance, 0.1, 10.0)
    )
    if chance.random() < 0.5:
        yield Fault(kind="kill", role=role, request=number, side=chance.choice(get_args(Side)))


def _behind_another(terrain: Terrain, place: Mapping[str, Any], chance: random.Random) -> float:
    """Return after how many seconds a message comes again: mostly shortly after a later message of its sender, preferably one to the same
    sort of place. If the message is delayed instead (`side` before), or no later one exists, any time from 0.1 to 300 s.
    """
    sent = _published(terrain, place["role"])[place["request"] - 1 :]
    later = [at_s for at_s, what in sent[1:] if what == sent[0][1] or chance.random() < 0.3]
    if place["side"] == "before" or not later or chance.random() < 0.3:
        return _spread(chance, 0.1, 300.0)
    return round(float(chance.choice(later) - sent[0][0]) + _spread(chance, 0.001, 10.0), 3)


def _published(terrain: Terrain, role: str) -> Requests:
    """Return the requests of a role that publish a message."""
    return [each for each in terrain.requests[role] if each[1].startswith("basic.publish")]


_ANYTHING, _STATE = (
    re.compile(""),
    re.compile(
        r"PutObject .*/checkpoint/|(AI\.TENSORSET|TENSOR\.\w+|EVAL) .*/model"  # one stored, or one that a database computes from it
    ),
)


def _write(
    terrain: Terrain,
    roles: Sequence[str],
    chance: random.Random,
    *,
    later: float,
    what: re.Pattern[str] = _ANYTHING,
) -> tuple[str, int]:
    """Return (role, number of one of its requests that changes something), each sort of request as likely as another. `later`: chance that
    the request is one that the role makes only after a resumption; `what`: sorts to choose from, ignored if none matches.
    """
    found = dict[tuple[str, str], list[tuple[str, int]]]()
    asked = terrain.again if terrain.again and chance.random() < later else terrain.requests
    for role in (each for each in roles if each in asked):
        behind = len(terrain.requests[role]) if asked is terrain.again else 0
        for number, (_, sort) in enumerate(asked[role], start=1):
            if not _CHANGES_NOTHING.match(sort):
                found.setdefault((role.partition(" ")[0], sort), []).append((role, behind + number))
    found = {sort: places for sort, places in found.items() if what.match(sort[1])} or found
    if not found:  # nobody resumes anything that changes anything
        assert later, "whoever trains changes something"
        return _write(terrain, roles, chance, later=0.0)
    places = found[chance.choice(sorted(found))]
    return places[-1] if chance.random() < 0.3 else chance.choice(places)


def _at_work(terrain: Terrain, at_s: float, chance: random.Random) -> Fault | None:
    """Return a freeze of a role that is working at this moment of the undisturbed run, so that it continues after others have gone on. None
    if no role except the client is at work, and in a fifth of the draws.
    """
    asked = {role: sum(when_s <= at_s for when_s, _ in found) for role, found in terrain.requests.items()}
    busy = sorted(role for role, count in asked.items() if role != "client" and 0 < count < len(terrain.requests[role]))
    if not busy or chance.random() < 0.2:
        return None
    role = _role(busy, chance)
    seconds = _spread(chance, 1.0, 100.0)
    return Fault(kind="freeze", role=role, request=asked[role], side=chance.choice(get_args(Side)), seconds=seconds)


_OF_ONE_ROLE: tuple[FaultKind, ...] = ("kill", "freeze", "slow", "lose", "message", "duplicate")


def _some(of: Sequence[T], most: int, chance: random.Random) -> list[T]:
    """Return a random selection of one to `most` elements of `of`, or of all if it has fewer."""
    return chance.sample(of, min(chance.randint(1, most), len(of)))


def _moment(asked: Requests, chance: random.Random) -> float:
    """Return the time of one of these requests, in seconds. Times are drawn from requests, so that no fault strikes while
    functions start.
    """
    return round(chance.choice(asked)[0], 3)


def _role(roles: Sequence[str], chance: random.Random) -> str:
    """Return a random role. Each kind of role is equally likely, whatever its number of workers."""
    sorts = sorted({role.partition(" ")[0] for role in roles})
    sort = chance.choice(sorts)
    return chance.choice([role for role in roles if role.partition(" ")[0] == sort])


def _draw(terrain: Terrain, roles: Sequence[str], near_s: float, chance: random.Random) -> tuple[Fault, float]:
    """Return a fault, and its time in seconds in the undisturbed run as far as it has one, else `near_s`. Half of the faults with a time
    come shortly after `near_s`, the time of the previous fault, because faults at the same time are harder to survive.
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


def _at(kind: FaultKind, at_s: float, terrain: Terrain, chance: random.Random) -> Fault:
    """Return a fault of a kind that strikes no single role, at a moment."""
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
    """Return (number of a request of the role, from 1, seconds at which it came in the undisturbed run). Sometimes the number is that of a
    request in a later life of the role, after it was restarted or resumed; then the seconds are those of its last undisturbed request.
    """
    asked, again = terrain.requests[role], terrain.again.get(role, ())
    if chance.random() < (0.5 if terrain.deliveries.get(role) == 1 else 0.15):
        later = _any(again, chance) if again and chance.random() < 0.75 else chance.randrange(len(asked) + 8)
        return len(asked) + later + 1, asked[-1][0]
    number = _any(asked, chance)
    return number + 1, asked[number][0]


def _any(asked: Requests, chance: random.Random) -> int:
    """Return the index of one request, from 0. In seven of ten draws a sort of request is drawn first, so that rare ones are struck as
    often as frequent ones, and the last one of the sort in half of these.
    """
    if chance.random() < 0.3:
        return chance.randrange(len(asked))
    what = chance.choice(sorted({what for _, what in asked}))
    alike = [number for number, each in enumerate(asked) if each[1] == what]
    return alike[-1] if chance.random() < 0.5 else chance.choice(alike)


def _one_of(counted: Mapping[str, int], chance: random.Random) -> dict[str, Any]:
    """Return a random role as `role`, and the number of one of its own messages or deliveries, from 1, as `request`."""
    role = chance.choice(sorted(counted))
    return {"role": role, "request": chance.randint(1, counted[role])}


def _spread(chance: random.Random, low: float, high: float) -> float:
    """Return a random number from `low` to `high`, each order of magnitude as likely as another."""
    return float(round(low * (high / low) ** chance.random(), 3))
