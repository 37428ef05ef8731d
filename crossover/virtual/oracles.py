"""What must hold of every run, whatever went wrong: questions to its history and its outcome. An answer is a broken promise, in words."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crossover.errors import CrossoverError
from crossover.virtual.history import Entry, History

if TYPE_CHECKING:
    from crossover.virtual.schedule import Fault
    from crossover.virtual.world import Outcome

# What is changed in place, and why nobody is misled by it. All else is written once: a retried or late attempt meets its own work only.
CHANGES = {
    "fleet/[^/]+/current.json": "a pointer: programs follow the run that it names now",
    "runs/[^/]+/heartbeat/.*": "only that it changes is looked at",
    "runs/[^/]+/marks/.*": "what an invocation has used so far",
    "runs/[^/]+/rendezvous": "where rank 0 is now",
    "runs/[^/]+/experiment.json": "a resumed run's facts: settings, code and data are the same, or it is refused",
    "runs/[^/]+/failure/.*": "the words of whoever gave up last",
    "runs/[^/]+/failed/.*": "the words of whoever gave up last",
    "runs/[^/]+/deadline/.*|runs/under-way": "a deadline that is put off",
}
# What stays in the bucket after a run that ended well: it is what the run was for, or what says what it was.
STAYS = (
    "data/.*",
    "runs/[^/]+/(experiment.json|outcome.json|model/.*|decision/.*|records/.*|dropped/.*)",
    "runs/[^/]+/marks/.*",  # of an invocation that was killed: what it had used is on the bill
    "fleet/[^/]+/current.json",  # of a client that was killed: the next one points elsewhere
    "runs/[^/]+/(attempt|overtaken|taken-over|finished|over|lease|left|heartbeat|deadline|failed|failure)(/.*)?",
)
_CHANGES, _STAYS = re.compile("|".join(f"(?:{each})" for each in CHANGES)), re.compile("|".join(STAYS))


@dataclass(frozen=True)
class Judged:
    """One run before its judges. `model`: the digest of what the reference comes to, "" where the architecture claims no equality.

    `excused`: what went wrong is beyond what the architecture promises to survive: it may fail, in words, but not with a wrong model.
    """

    history: History
    outcome: "Outcome"
    model: str
    excused: Sequence["Fault"]
    killed: Collection[str] = ()  # names of processes


def right_model(run: Judged) -> list[str]:
    """Bitwise what the single-process reference ends with."""
    if run.outcome.model and run.model and run.outcome.model != run.model:
        return [f"the final model is {run.outcome.model[:8]}; the reference's is {run.model[:8]}"]
    return []


def ends_well(run: Judged) -> list[str]:
    """After as many resumptions as an operator has patience for."""
    if run.outcome.failure and not run.excused:
        return [f"{run.outcome.clients} clients, and the run still fails: {run.outcome.failure}"]
    if not run.outcome.failure and not run.outcome.model:
        return ["the run is said to have ended well, and there is no model"]
    return []


def only_known_errors(run: Judged) -> list[str]:
    """What steps and programs raise is for people; anything else is a fault of ours."""
    return [f"{type(each).__name__}: {each}" for each in run.outcome.crashes if not isinstance(each, CrossoverError)]


def nothing_left(run: Judged) -> list[str]:
    """A run that ended well leaves its results and nothing else; late attempts take back what they wrote. One that is killed as soon as it
    has written cannot: there the keys' time to live does it, as where the last step has written the outcome and then found a store silent
    for longer than it is tried again.
    """
    if run.outcome.failure or not run.outcome.cleared:
        return []
    left, by = run.outcome.left, {entry.key: entry.process for entry in run.history.entries if entry.changed}
    kept = [f"s3: {key}" for key in left["s3"] if not _STAYS.fullmatch(key) and by.get(key) not in run.killed]
    held = [f"redis: {key}" for key in left["redis"] if by.get(key.partition(": ")[2]) not in run.killed]
    return [f"left behind: {each}" for each in (*kept, *held, *(f"rabbitmq: {name}" for name in left["rabbitmq"]))]


def written_once(run: Judged) -> list[str]:
    """The first write of a key wins: nothing is changed in place, so nobody reads what a slower one overwrote."""
    return [_told("overwritten", entry) for entry in run.history.entries if _overwrites(entry)]


def _overwrites(entry: Entry) -> bool:
    return bool(entry.found and entry.left and entry.changed and not _CHANGES.fullmatch(entry.key))


def deleted_after_the_last_read(run: Judged) -> list[str]:
    """Whoever asks for a value for the first time finds it, if it was ever there: nobody has deleted it by then, unless its attempt was
    overtaken or the run is over. A retry or a resumption may heal the loss, so that such a run ends well all the same.
    """
    had, deleted, stale, found = set[tuple[str, str, str]](), dict[tuple[str, str], Entry](), set[str](), list[str]()
    for entry in run.history.entries:
        place, reader = (entry.server, entry.key), (entry.server, entry.key, entry.role)
        if entry.left and _OVER.fullmatch(entry.key):
            break
        if entry.left and (overtaken := _OVERTAKEN.fullmatch(entry.key)):
            stale.add(overtaken[1])
        elif entry.left:
            deleted.pop(place, None)
        elif entry.found:
            deleted[place] = entry
        if entry.operation not in ("TENSOR.GET", "GetObject"):
            continue
        if entry.found:
            had.add(reader)
        elif place in deleted and reader not in had and _attempt(entry.key) not in stale:
            late = f"{entry.role} ({entry.process}) asks for it at {entry.at_s:.3f} s"
            found.append(f"{_told('deleted', deleted[place])}; {late}")
    return found


_OVER, _OVERTAKEN = re.compile("runs/[^/]+/(over|outcome.json)"), re.compile("runs/[^/]+/overtaken/(.*)")


def _attempt(key: str) -> str:
    named = re.search(r"/attempt-(\d+)/", key) or re.search(r"/(\d{12})/", key)
    return str(int(named[1])) if named else ""


def decisions_stand(run: Judged) -> list[str]:
    """What all agreed on, and how the run ended, is never taken back."""
    stands = re.compile(r"runs/[^/]+/(decision/.*|outcome.json)")
    gone = [e for e in run.history.entries if stands.fullmatch(e.key) and e.found and not e.left]
    return [_told("deleted", entry) for entry in gone]


def _told(what: str, entry: Entry) -> str:
    return f"{what}: {entry.key} by {entry.role} ({entry.process}) at {entry.at_s:.3f} s, {entry.operation} on {entry.server}"


Oracle = Callable[[Judged], list[str]]
ORACLES: tuple[Oracle, ...] = (
    right_model,
    ends_well,
    only_known_errors,
    nothing_left,
    written_once,
    deleted_after_the_last_read,
    decisions_stand,
)


def broken(run: Judged) -> list[str]:
    """Every promise that the run broke: the oracle's name, and what it says."""
    return [f"{oracle.__name__}: {said}" for oracle in ORACLES for said in oracle(run)]
