"""What must hold on the way: work is repeated only where it was not kept, and what is to come first does, whoever would repair it later."""

import re
from collections import defaultdict
from itertools import pairwise

from tests.chaos.world.judged import JudgedRun

_BEGUN, _OVERTAKEN = re.compile(r"runs/[^/]+/attempt/(\d+)"), re.compile(r"runs/[^/]+/overtaken/(\d+)")
# A state that a round can begin with: attempt, worker and round of a checkpoint; attempt, round and worker of a model in a database.
_STATE = re.compile(r"runs/[^/]+/checkpoint/(\d{12})/(\d+)/(\d{8})\.00000|[^/]+/attempt-(\d+)/(\d+)/(\d+)/model")
_OF_STATE = re.compile(r"[^/]+/attempt-(\d+)/(\d+)/\d+/.*")
SETS_UP = ("initialise", "collect", "client")


def repeats_what_was_not_kept(run: JudgedRun) -> list[str]:
    """Return findings about attempts that repeat work whose result was kept, or set up their state in the wrong order. An attempt begins at
    the newest round that all members of an earlier attempt could start from, or later; with state in databases at most one round earlier,
    since an unfinished decision is made again. Whoever sets up an attempt's state must have marked all earlier attempts as overtaken, and
    stores all members' models last, which mark the state as complete. The first checkpoint that a process reads must be the newest of its
    own that existed at its previous request.
    """
    kept: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))  # when each round's state came
    begun, all_begun = dict[int, tuple[int, set[int]]](), set[int]()
    marked = defaultdict[str, set[int]](set)  # by each process
    last, took, found = dict[str, int](), set[str](), list[str]()
    for number, entry in enumerate(run.history.entries):
        since, last[entry.process] = last.get(entry.process, number), number
        if state := _STATE.fullmatch(entry.key):
            attempt, worker, round = (int(each) for each in state.groups() if each)
            if in_database := state[1] is None:
                worker, round = round, worker
            told = f"{entry.key} by {entry.role} ({entry.process}) at {entry.at_s:.3f} s"
            if not entry.changed:
                newer = [each for each, at in kept[attempt][worker].items() if each > round and at < since]
                own = entry.operation == "GetObject" and entry.found and not entry.role.startswith(SETS_UP)
                if own and entry.process not in took and any(each % run.every == 0 for each in newer):
                    found.append(f"{told} is taken up; there was one of round {max(newer)}")
                took |= {entry.process} if own else set()
            elif not entry.left:
                kept[attempt][worker].pop(round, None)
            else:
                common, lower = begun.pop(attempt, (0, set[int]()))
                if run.members and round < common - in_database:
                    found.append(f"{told} is where its attempt begins; all could have started from round {common}")
                if untold := lower - marked[entry.process]:
                    found.append(f"{told} is set up; it has not told attempts {sorted(untold)}")
                kept[attempt][worker][round] = number
        elif entry.operation == "AI.TENSORSET" and entry.left and (named := _OF_STATE.fullmatch(entry.key)):
            attempt, round = map(int, named.groups())
            models = run.members and any(round in held for held in kept[attempt].values())
            if models and entry.changed and entry.role.startswith(SETS_UP):
                found.append(f"{entry.key} by {entry.role} ({entry.process}) is stored behind a model of its round")
        elif entry.changed and (named := _BEGUN.fullmatch(entry.key)):
            attempt = int(named[1])
            common = max((_common(run, held) for each, held in kept.items() if each < attempt), default=0)
            begun[attempt] = common, {each for each in {*all_begun, *kept} if each < attempt}
            all_begun.add(attempt)
        elif entry.operation == "PutObject" and (named := _OVERTAKEN.fullmatch(entry.key)) and entry.left:
            marked[entry.process].add(int(named[1]))
    return found


def attempt_of(key: str) -> str:
    """Return the number of the attempt that a key belongs to, "" if it belongs to none."""
    named = re.search(r"/attempt-(\d+)/", key) or re.search(r"/(\d{12})/", key)
    return str(int(named[1])) if named else ""


def _common(run: JudgedRun, kept: dict[int, dict[int, int]]) -> int:
    """Return the latest round, among those kept for sure, of which all members have a state; 0 if there is none."""
    whole = set.intersection(*map(set, kept.values())) if len(kept) == run.members else set[int]()
    return max((round for round in whole if round % run.every == 0), default=0)


# What a process does, by its role, operation and key: a letter each. x: a request that was not answered.
_DOES = {
    "l": r"\S+ \d+ HeadObject runs/[^/]+/lease/.*",  # asks who holds its rank
    "m": r"program \d+ basic\.publish .*\.mailbox\..*",  # sends
    "o": r"\S+ \d+ HeadObject runs/[^/]+/overtaken/.*",
    "v": r"\S+ \d+ HeadObject runs/[^/]+/over$",
    "u": r"train \d+ AI\.TENSORSET .*/update",
    "p": r"train \d+ AI\.TENSORSET .*/report|supervise \d+ TENSOR\.GET .*/expected",
    "e": r"supervise \d+ AI\.TENSORSET .*/expected",
    "a": r"(?:train|supervise) \d+ basic\.publish .*\.updates.*",
    "k": r"train \d+ PutObject runs/[^/]+/checkpoint/.*",
    "b": r"program \d+ PutObject runs/[^/]+/checkpoint/.*",
    "q": r"program \d+ PutObject runs/[^/]+/(?:body|computing)/.*",  # a contribution, or what functions compute one from
    "y": r"\S+ \d+ PutObject runs/[^/]+/(?:body|computing)/.*",  # what a function computes
    "j": r"program \d+ GetObject runs/[^/]+/checkpoint/.*",  # goes on from what was kept, after it has sent a lost message again
    "d": r"(?:train|program) \d+ PutObject runs/[^/]+/decision/.*",
    "c": r"(?:initialise|collect) \d+ (?:UNLINK|DeleteObjects?) .*",  # clears away; "h" where an attempt before has left it
    "t": r"\S+ \d+ UNLINK .*",  # takes back, or lets go of what is used up
    "f": r"(?:initialise|collect) \d+ PutObject runs/[^/]+/finished",
    "n": r"\S+ \d+ PutObject runs/[^/]+/model/.*",
    "g": r"\S+ \d+ PutObject runs/[^/]+/outcome\.json",
    "r": r"\S+ \d+ PutObject runs/[^/]+/records/.*",  # answers
    "w": r"\S+ \d+ (?:AI|TENSOR)\..*",  # stores, where something has changed
}
_DOING = re.compile("|".join(f"(?P<{letter}>{what})" for letter, what in _DOES.items()))
# What must not come, as patterns of such letters.
_DISORDER = {
    "(?:^|[mb])[^l]*m": "sends, and has not asked before whether it still holds its rank",
    "w[^oxcht]*r|k[^ox]*r": "stores, and does not ask behind it whether its attempt was overtaken",
    "h[^ox]*r": "takes over from an attempt before, and does not ask behind it whether its own was overtaken",
    "(?:^|[mbq])[^l]*q": "stores what is its rank's, and has not asked before whether it still holds the rank",
    "b[^vx]*[bmq]": "keeps a checkpoint, and does not ask behind it whether the run is over",
    "[qy][^vx]*[bmqr]": "stores a contribution, and does not ask behind it whether the run is over",
    "[ch][^o]*f": "says that the run is finished, and has not asked just before whether its attempt was overtaken",
    "g[^r]*n": "stores the model behind the outcome that names it",
    "(?:^|a)[^pe]*a": "announces what it has not stored: a worker's report, the supervisor's word",
    "p[^axr]*u|u[^px]*[kr]": "stores an update behind the report of it",
}
_LATE_KEPT = {"[wmup][^kbrj]*d": "agrees on what follows a round, and has not kept what it begins with"}


def keeps_the_order(run: JudgedRun) -> list[str]:
    """Return findings about processes that do two things in the wrong order. A program checks its lease before each message and stored
    contribution, and after each checkpoint and contribution whether the run is over. A function checks after its writes, a worker after its
    checkpoint, and a first step after it took over or deleted data of an earlier attempt, whether its attempt was overtaken, before it
    answers or marks the run as finished. MLLess's worker stores its update, then its report, then announces the report; the supervisor
    stores its word before announcing it, or has seen that one exists. Whoever makes a decision after an epoch has first kept the round that
    begins then, if `run.keeps`.
    """
    did, own = defaultdict[str, str](str), dict[str, str]()
    for entry in run.history.entries:
        doing = _DOING.match(f"{entry.role} {entry.operation} {entry.key}")
        if (named := _BEGUN.fullmatch(entry.key)) and entry.operation == "PutObject":
            own[entry.process] = str(int(named[1]))
        if entry.outcome:
            did[entry.process] += "x"
        elif doing and ((entry.changed and entry.left) or str(doing.lastgroup) not in "mwaegqy"):
            left_before = doing.lastgroup == "c" and attempt_of(entry.key) not in ("", own.get(entry.process))
            did[entry.process] += "h" if left_before and entry.process in own else str(doing.lastgroup)
    rules = {**_DISORDER, **(_LATE_KEPT if run.keeps else {})}
    return [
        f"{process} {what}: {done[max(0, at.start() - 3) : at.end()]}"
        for process, done in did.items()
        for rule, what in rules.items()
        if (at := re.search(rule, done))
    ]


def clears_away_behind_every_attempt(run: JudgedRun) -> list[str]:
    """Return findings about checkpoints that nobody clears. Whoever marks the run as finished must have listed the checkpoints of every
    attempt that has written one. Whoever has read that its attempt's state is no longer needed deletes its own checkpoints before it
    answers, unless a delete request of it failed.
    """
    wrote, found = dict[int, str](), list[str]()
    kept = dict[str, tuple[str, str, int]]()  # a key's writer, for which worker it wrote, and its attempt
    looked, unneeded, failed = defaultdict[str, list[str]](list), defaultdict[str, set[int]](set), set[str]()
    for entry in run.history.entries:
        if entry.operation == "DeleteObjects" and entry.outcome:
            failed.add(entry.process)
        if entry.operation == "ListObjectsV2":
            looked[entry.process] += [] if entry.outcome else [entry.key]
        elif saved := _SAVED.fullmatch(entry.key):
            if entry.changed and entry.left:
                wrote[int(saved[2])], kept[entry.key] = saved[1], (entry.process, entry.role, int(saved[2]))
            elif not entry.left:
                kept.pop(entry.key, None)
        elif (taken := _TAKEN_OVER.fullmatch(entry.key)) and entry.found and not entry.outcome:
            unneeded[entry.process].add(int(taken[1]))
        elif _RECORD.fullmatch(entry.key):
            mine = [
                key
                for key, (process, role, attempt) in kept.items()
                if (process, role) == (entry.process, entry.role) and attempt in unneeded[process]
            ]
            if mine and entry.process not in failed:
                found.append(
                    f"{entry.role} ({entry.process}) knows that nobody needs them, and leaves {', '.join(mine)}"
                )
            for known in (looked, unneeded):
                known.pop(entry.process, None)
            failed.discard(entry.process)
        elif _FINISHED.fullmatch(entry.key) and entry.changed:
            prefixes = tuple(looked[entry.process])
            left_out = [attempt for attempt, prefix in wrote.items() if not prefix.startswith(prefixes or ("-",))]
            if left_out:
                found.append(
                    f"{entry.role} ({entry.process}) says that all is cleared away, and has not looked at attempts {left_out}"
                )
    return found


_SAVED = re.compile(r"(runs/[^/]+/checkpoint/(\d{12})/)\d+/.*")
_TAKEN_OVER, _FINISHED = re.compile(r"runs/[^/]+/taken-over/(\d+)"), re.compile(r"runs/[^/]+/finished")
_RECORD = re.compile(r"runs/[^/]+/records/.*")


def used_up_keys_go(run: JudgedRun) -> list[str]:
    """Return findings about keys of a round that still exist more than `run.kept_rounds` rounds later, which would fill the stores of a
    long run. Checkpoints of MLLess's supervisor are excused. Empty if `run.kept_rounds` is 0.
    """
    kept, newest, found = dict[tuple[str, str], int](), 0, list[str]()
    for entry in run.history.entries if run.kept_rounds else ():
        if not (named := _OF_ROUND.match(entry.key)) or not entry.changed:
            continue
        if named[2] and int(named[2]) >= run.workers:
            continue  # MLLess's supervisor keeps all checkpoints of its invocation, which has no limit of minibatches
        round, place = int(next(filter(None, named.group(1, 3, 4)))), (entry.server, entry.key)
        if not entry.left:
            kept.pop(place, None)
            continue
        kept[place], newest = round, max(newest, round)
        for (server, key), old in list(kept.items()):
            if old < newest - run.kept_rounds:
                found.append(f"{key} on {server} is still there in round {newest}")
                del kept[server, key]
    return found


_OF_ROUND = re.compile(
    r"runs/[^/]+/(?:body|computing)/(\d{8})/|runs/[^/]+/checkpoint/\d{12}/(\d+)/(\d{8})\.|[^/]+/attempt-\d+/(?:exchange-\d+/)?(\d+)/"
)


def keeps_needed_checkpoints(run: JudgedRun) -> list[str]:
    """Return findings about checkpoints that were deleted while their attempt still trained: regular ones of a member that had fewer than
    two newer ones, and those from which a retry of the invocation that deleted them would begin or go on.
    """
    here, over, found = defaultdict[tuple[str, str], set[int]](set), set[str](), list[str]()
    took = defaultdict[str, dict[tuple[str, str], tuple[int, int]]](dict)  # by process: what its invocation began with
    for entry in run.history.entries:
        if _IS_OVER.fullmatch(entry.key) and entry.left:
            break
        if (named := _OVERTAKEN.fullmatch(entry.key)) and entry.left:
            over.add(named[1])
        if _RECORD.fullmatch(entry.key):
            took.pop(entry.process, None)
        if not (state := _POSITION.fullmatch(entry.key)):
            continue
        member, round, minibatch = (state[1], state[2]), int(state[3]), int(state[4])
        if entry.operation == "GetObject" and entry.found and entry.role.startswith(("train ", "supervise ")):
            took[entry.process].setdefault(member, (round, minibatch))
        if entry.left and entry.changed and not minibatch:
            here[member].add(round)
        if entry.left or not entry.changed or str(int(state[1])) in over:
            continue
        deleted = f"{entry.key} is deleted by {entry.role} ({entry.process})"
        if (round, minibatch) >= (begun := took[entry.process].get(member, _NEVER)):
            found.append(f"{deleted}, whose invocation began at {begun}")
        if minibatch or round not in here[member]:
            continue
        here[member].discard(round)
        newer = [each for each in here[member] if each > round]
        if len(newer) < 2 and round % run.every == 0:
            found.append(f"{deleted}; of the newer ones there are only {newer}")
    return found


_NEVER = (10**8, 0)
_IS_OVER = re.compile(r"runs/[^/]+/(over|outcome\.json)")
_POSITION = re.compile(r"runs/[^/]+/checkpoint/(\d{12})/(\d+)/(\d{8})\.(\d{5})")


def ends_in_time(run: JudgedRun) -> list[str]:
    """Return a finding if the run took longer than `run.within_s`: whoever is gone for good may be waited for only once."""
    late = run.within_s and run.outcome.seconds > run.within_s
    return [f"the run took {run.outcome.seconds:.0f} s where {run.within_s:.0f} s are enough"] if late else []


def rounds_never_fall(run: JudgedRun) -> list[str]:
    """Return findings about asynchronous peers that averaged an older version of another peer's model than they had averaged before."""
    return [
        f"peer {peer}, round {round}: has averaged peer {other}'s {now.get(other)} behind {version}"
        for peer, by_round in run.seen.items()
        for (_, before), (round, now) in pairwise(sorted(by_round.items()))
        for other, version in before.items()
        if now.get(other, -1) < version
    ]
