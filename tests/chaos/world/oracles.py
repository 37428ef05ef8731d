"""What must hold of every run, whatever went wrong: questions to its history and its outcome. An answer is a broken promise, in words."""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

from crossover.errors import CrossoverError
from crossover.training.fleet import NOBODY, ServingSettings, encode_heartbeat
from tests.chaos.world import progress
from tests.chaos.world.history import HistoryEntry, digest
from tests.chaos.world.judged import JudgedRun
from tests.chaos.world.progress import attempt_of

# Keys whose value may be changed, and why that misleads nobody. All others are written once: a retried or late attempt finds its own work.
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
    "runs/[^/]+/(attempt|overtaken|taken-over|purpose|finished|over|lease|left|heartbeat|deadline|failed|failure)(/.*)?",
    "runs/under-way",  # which deadline the expiry is to keep
)
_CHANGES, _STAYS = re.compile("|".join(f"(?:{each})" for each in CHANGES)), re.compile("|".join(STAYS))


def right_model(run: JudgedRun) -> list[str]:
    """Return a finding if the final model is not bitwise the expected one: that of the reference, or of MLLess's algorithm."""
    if run.outcome.model and run.model and run.outcome.model != run.model:
        return [f"the final model is {run.outcome.model[:8]}; expected {run.model[:8]}"]
    return []


def decisions_say_what_is_so(run: JudgedRun) -> list[str]:
    """Return findings about the decisions after epochs. Each must have, in order, the loss and the metric of the model that the epoch ends
    with, and all earlier ones; the last one, and no other, ends training. A budget may end it sooner.
    """
    if run.epochs is None:
        return []
    told, found, seen = run.outcome.decisions, list[str](), list[list[float]]()
    for said, (epoch, right) in zip(told, sorted(run.epochs.items()), strict=False):
        seen.append([right.loss, right.metric])
        ends = right.finished or said["reason"].startswith("budget: ")
        now = (said["epoch"], said["history"], [said["val_loss"], said["val_metric"]], said["finished"])
        if now != (wanted := (epoch, seen, seen[-1], ends)):
            found.append(f"a decision says {now}; expected {wanted}")
    if len(told) > len(run.epochs):
        found.append(f"{len(told)} decisions; expected {len(run.epochs)}")
    if told and not run.outcome.failure and not told[-1]["finished"]:
        found.append(f"the run has ended behind epoch {told[-1]['epoch']}, after which training goes on")
    return found


def outcome_says_what_is_so(run: JudgedRun) -> list[str]:
    """Return a finding if the run's outcome does not have loss and metric of the model that it names, or epoch and reason of the last
    decision.
    """
    said = run.outcome.said
    if run.evaluated is None or not run.outcome.decisions:
        return []
    last = run.outcome.decisions[-1]
    now = (said["val_loss"], said["val_metric"], said["epochs"], said["reason"])
    wanted = (*run.evaluated, last["epoch"], last["reason"])
    return [] if now == wanted else [f"the outcome says {now}; expected {wanted}"]


def workers_hold_one_model(run: JudgedRun) -> list[str]:
    """Return findings about workers that saved different models at the start of a round. MLLess's workers must agree too, since all apply
    the same updates.
    """
    return [
        f"attempt {attempt}, round {round}: workers {sorted(held)} have saved different models"
        for (attempt, round, _), held in run.models.items()
        if len(set(held.values())) > 1
    ]


def peers_step_along_what_they_average(run: JudgedRun) -> list[str]:
    """Return findings about models of asynchronous peers that do not follow from the previous model, the peer's own gradient, and those
    that its checkpoint lists as averaged.
    """
    return list(run.wrong_steps)


def words_say_what_is_so(run: JudgedRun) -> list[str]:
    """Return findings about words of MLLess's supervisor that do not follow from the reports, or that send too many workers away, about
    reports with another loss than the algorithm's in one process, and about attempts that begin with a worker that was dropped.
    """
    return list(run.wrong_words)


def leaves_in_time(run: JudgedRun) -> list[str]:
    """Return findings about long workers that began a gradient although less time was left than their longest had taken, or that waited
    until their timeout ended them, and about steps that polled on after their wait had timed out.
    """
    late = [f"begins a gradient too late: {each}" for each in run.begun_late]
    late += [f"polls after its wait has timed out: {each}" for each in run.overdue]
    return late + [f"ended by its timeout: {each}" for each in run.cut_off]


def ends_well(run: JudgedRun) -> list[str]:
    """Return a finding if the run still fails after all resumptions, or ended well without a model. Failures allowed are a reached budget,
    and a lost state that needs a new run.
    """
    failure = run.outcome.failure
    for_good = run.state_lost and "; start a new run" in failure
    if failure and not for_good and not (run.budget_usd is not None and failure.startswith("BudgetReached: ")):
        return [f"{run.outcome.clients} clients, and the run still fails: {failure}"]
    if not run.outcome.failure and not run.outcome.model:
        return ["the run is said to have ended well, and there is no model"]
    return []


def goes_on_by_itself(run: JudgedRun) -> list[str]:
    """Return a finding if the run needed more clients than `run.by_itself`: a killed function, a doubled message or a short outage needs no
    resumption.
    """
    if run.by_itself and run.outcome.clients > run.by_itself:
        why = "; ".join(run.outcome.failures)
        return [f"{run.outcome.clients} clients where {run.by_itself} should have been enough: {why}"]
    return []


def only_known_errors(run: JudgedRun) -> list[str]:
    """Return findings about errors of steps and programs that are not CrossoverErrors, which are the only ones meant for people."""
    return [f"{type(each).__name__}: {each}" for each in run.outcome.crashes if not isinstance(each, CrossoverError)]


def nothing_left(run: JudgedRun) -> list[str]:
    """Return findings about what a run that ended well left behind besides its results. What a killed process had written when nobody was
    to clear it any more is excused: the time to live of keys, or the deployment's end, deletes it.
    """
    if run.outcome.failure:
        return []
    left, too_late = run.outcome.left, _written_too_late(run)
    kept = [f"s3: {key}" for key in left["s3"] if not _STAYS.fullmatch(key) and key not in too_late]
    held = [f"redis: {key}" for key in left["redis"] if key.partition(": ")[2] not in too_late]
    told = [f"rabbitmq: {name}" for name in left["rabbitmq"] if name not in too_late]
    return [f"left behind: {each}" for each in (*kept, *held, *told)]


_DECLARES, _GOES = ("exchange.declare", "queue.declare"), ("exchange.delete", "queue.delete")
_TEMPORARY = re.compile(r"[^:]*/attempt-\d+/[^:]*:[0-9a-f]+")
_OF_BARRIER = re.compile(r"[^./]+\.(?:round|updates)(?:\.(\d{9,}))?(?:\.\d{1,4})?")


def _written_too_late(run: JudgedRun) -> set[str]:
    """Return keys last written, or queues declared, by a process that was killed, at a time when nobody needed them any more. Checkpoints
    count as late only after the run's end, since those of all attempts are cleared then. Temporary keys always do: only their writer knows
    them.
    """
    over, overtaken, found = False, set[str](), dict[str, bool]()
    for entry in run.history.entries:
        if entry.operation in _GOES:
            found.pop(entry.key, None)
        if not (entry.changed and entry.left) and (entry.operation not in _DECLARES or entry.key in found):
            continue
        if _OVER.fullmatch(entry.key):
            over = True
        elif named := _OVERTAKEN.fullmatch(entry.key):
            overtaken.add(named[1])
        queue = _OF_BARRIER.fullmatch(entry.key)
        attempt = queue[1] or "0" if queue else attempt_of(entry.key)
        late = over or (attempt in overtaken and not _CHECKPOINT.fullmatch(entry.key)) or entry.role in run.outlived
        late = late or bool(_TEMPORARY.fullmatch(entry.key))
        found[entry.key] = late and entry.process in run.killed
    return {key for key, excused in found.items() if excused}


def written_once(run: JudgedRun) -> list[str]:
    """Return findings about keys whose value was replaced by another, unless CHANGES allows it: the first write of a key must win."""
    return [_told("overwritten", entry) for entry in run.history.entries if _overwrites(entry)]


def _overwrites(entry: HistoryEntry) -> bool:
    """Return whether the request replaced a value by another, where keys may not change."""
    return bool(entry.found and entry.left and entry.changed and not _CHANGES.fullmatch(entry.key))


def deleted_after_the_last_read(run: JudgedRun) -> list[str]:
    """Return findings about values that were deleted before a role asked for them the first time. Excused are readers whose attempt was
    overtaken, whose rank was taken over, whom MLLess's supervisor has dropped, or beside whom another invocation of the role has continued,
    and all reads after the run's end.
    """
    had, deleted, stale, found = (
        set[tuple[str, str, str]](),
        dict[tuple[str, str], HistoryEntry](),
        set[str](),
        list[str](),
    )
    holder, given_up = dict[str, str](), set[str]()  # a rank's, and those who were
    began_s = dict[str, float]()  # of each process
    for entry in run.history.entries:
        began_s.setdefault(entry.process, entry.at_s)
        if entry.outcome and not entry.changed:
            continue
        place, reader = (entry.server, entry.key), (entry.server, entry.key, entry.role)
        if entry.left and _OVER.fullmatch(entry.key):
            break
        if entry.changed and entry.left and (lease := _LEASE.fullmatch(entry.key)):
            given_up = (given_up | {holder.get(lease[1], "")}) - {entry.process}  # who lost one may hold another
            holder[lease[1]] = entry.process
        if entry.left and (overtaken := _OVERTAKEN.fullmatch(entry.key)):
            stale.add(overtaken[1])
        elif entry.left:
            deleted.pop(place, None)
        elif entry.found:
            deleted[place] = entry
        if entry.operation not in ("TENSOR.GET", "GetObject") or "/marks/" in entry.key:
            continue  # a mark goes when its invocation's record is there, which whoever asks for it knows
        if entry.found:
            had.add(reader)
        elif (
            place in deleted and reader not in had and not (attempt_of(entry.key) in stale or entry.process in given_up)
        ):
            gone = deleted[place]
            if entry.role in run.dropped:
                continue
            if gone.role == entry.role and gone.process != entry.process and began_s[entry.process] < gone.at_s:
                continue
            late = f"{entry.role} ({entry.process}) asks for it at {entry.at_s:.3f} s"
            found.append(f"{_told('deleted', gone)}; {late}")
    return found


_OVER, _OVERTAKEN = re.compile("runs/[^/]+/(over|outcome.json)"), re.compile("runs/[^/]+/overtaken/(.*)")


def decisions_stand(run: JudgedRun) -> list[str]:
    """Return findings about decisions, or the run's outcome, that were deleted, and about runs marked as over without an outcome."""
    stands, has_outcome, found = re.compile(r"runs/[^/]+/(decision/.*|outcome.json)"), False, list[str]()
    for entry in run.history.entries:
        if stands.fullmatch(entry.key) and entry.found and not entry.left:
            found.append(_told("deleted", entry))
        has_outcome = has_outcome or bool(entry.left and entry.key.endswith("/outcome.json"))
        if entry.left and entry.changed and entry.key.endswith("/over") and not has_outcome:
            found.append(_told("marked as over, without an outcome", entry))
    return found


def barriers_only_grow(run: JudgedRun) -> list[str]:
    """Return findings about readers that acknowledged a message of a round's barrier before all members had arrived at it."""
    came: dict[tuple[str, str], set[str]] = defaultdict(set)
    found = []
    for entry in run.history.entries:
        if entry.operation == "basic.publish" and entry.left and _BARRIER.fullmatch(entry.key):
            round, member = entry.left.split("/")
            came[entry.key, round].add(member)
        elif entry.operation == "basic.ack" and entry.found and (inbox := _INBOX.fullmatch(entry.key)):
            round, _ = entry.found.split("/")
            if len(came[inbox[1], round]) < run.workers:
                here = ", ".join(sorted(came[inbox[1], round]))
                found.append(f"{_told(f'round {round} passed', entry)}; only {here} of {run.workers} had come")
    return found


_BARRIER = re.compile(r".*\.round(?:\.\d{9,})?")
_INBOX = re.compile(rf"({_BARRIER.pattern})\.\d{{1,4}}")


def nobody_goes_on_overtaken(run: JudgedRun) -> list[str]:
    """Return findings about processes that continue an overtaken attempt. Whoever has read that its attempt was overtaken writes nothing of
    it and reads no tensor of it any more; whoever has not read it may save one more checkpoint. An invocation ends with its record, after
    which its environment starts afresh. A step that sets an attempt up may read all earlier attempts.
    """
    knows, overtaken, saved = defaultdict[str, set[str]](set), set[str](), set[tuple[str, str, str]]()
    found = []
    for entry in run.history.entries:
        if named := _OVERTAKEN.fullmatch(entry.key):
            overtaken |= {named[1]} if entry.left else set()
            if entry.found and not entry.outcome:
                knows[entry.process].add(named[1])
        elif _RECORD.fullmatch(entry.key):
            knows[entry.process].clear()
        elif entry.operation == "TENSOR.GET":
            if attempt_of(entry.key) in knows[entry.process] and not entry.role.startswith(progress.SETS_UP):
                found.append(_told("read by an attempt that knows that it was overtaken", entry))
        elif entry.changed and entry.left and (attempt := attempt_of(entry.key)):
            if attempt in knows[entry.process]:
                found.append(_told("written by an attempt that knows that it was overtaken", entry))
            if attempt in overtaken and (of := _CHECKPOINT.fullmatch(entry.key)):
                if (entry.process, attempt, of[1]) in saved:
                    found.append(_told("a second checkpoint of an attempt that was overtaken", entry))
                saved.add((entry.process, attempt, of[1]))
    return found


_RECORD = re.compile(r"runs/[^/]+/records/.*")
_CHECKPOINT = re.compile(r"runs/[^/]+/checkpoint/\d{12}/(\d+)/.*")


def one_program_holds_a_rank(run: JudgedRun) -> list[str]:
    """Return findings about programs that publish for a rank without holding its lease. After the next lease of the rank is created, the
    earlier holder may publish one more message.
    """
    leases, newest, later = dict[tuple[str, str], int](), dict[str, int](), dict[tuple[str, str, int], str]()
    found = []
    for entry in run.history.entries:
        if lease := _LEASE.fullmatch(entry.key):
            if entry.changed and entry.left:
                rank, attempt = lease[1], int(lease[2])
                leases[entry.process, rank] = newest[rank] = attempt
        elif entry.operation == "basic.publish" and entry.left and (box := _MAILBOX.fullmatch(entry.key)):
            held = leases.get((entry.process, box[1]))
            if entry.process == "nature":
                continue
            if held is None:
                found.append(_told("sent by a program that does not hold the rank", entry))
            elif newest[box[1]] > held and later.setdefault((entry.process, box[1], held), entry.left) != entry.left:
                found.append(_told("sent by a program whose rank another has taken over", entry))
    return found


def ranks_are_taken_from_the_silent(run: JudgedRun) -> list[str]:
    """Return findings about programs that took a rank too early. A rank may be taken if the program found, when it last looked, that lease
    and heartbeat were at least `lease_s` old or that the holder had given the rank back; also if nobody holds the rank, or the program
    itself does because its reply was lost. After it has listed the leases, it must have found that the rank has not failed.
    """
    held, news_s, found = dict[str, tuple[int, str]](), defaultdict[str, float](float), list[str]()
    sound = defaultdict[str, set[str]](set)  # by process: ranks of which it found no failure since it listed the leases
    looked = dict[
        tuple[str, str], tuple[float, bool]
    ]()  # how long there had been no news, and whether the rank had been given back
    for entry in run.history.entries:
        if lease := _LEASE.fullmatch(entry.key):
            if not (entry.changed and entry.left):
                continue
            rank, attempt = lease[1], int(lease[2])
            _, holder = held.get(rank, (0, digest(NOBODY)))
            silent_s, given_back = looked.get((entry.process, rank), (0.0, False))
            due = given_back or silent_s >= _LEASE_S or holder in (digest(NOBODY), entry.left)
            if not due and entry.role != "client":  # who resumes a run takes the ranks from all
                found.append(_told(f"taken from a program that was heard of {silent_s:.3f} s before", entry))
            if attempt and entry.role.startswith("program ") and rank not in sound[entry.process]:
                found.append(_told("taken without a look whether it has failed", entry))
            held[rank], news_s[rank] = (attempt, entry.left), entry.at_s
        elif beat := _HEARTBEAT.fullmatch(entry.key):
            if entry.changed:
                news_s[beat[1]] = entry.at_s
            elif not entry.outcome:
                farewell = encode_heartbeat(held.get(beat[1], (0, ""))[0], beat=0, over=True)
                looked[entry.process, beat[1]] = entry.at_s - news_s[beat[1]], entry.found == digest(farewell)
        elif _LEASES.fullmatch(entry.key):
            sound[entry.process].clear()
        elif (failed := _FAILURE.fullmatch(entry.key)) and entry.operation == "HeadObject":
            sound[entry.process] |= set() if entry.found or entry.outcome else {failed[1]}
    return found


_LEASE_S, _HEARTBEAT = ServingSettings(fleet="").lease_s, re.compile(r"runs/[^/]+/heartbeat/(\d+)")
_LEASES, _FAILURE = re.compile(r"runs/[^/]+/lease/"), re.compile(r"runs/[^/]+/failure/(\d+)")
_LEASE, _MAILBOX = re.compile(r"runs/[^/]+/lease/(\d+)/(\d+)"), re.compile(r".*\.mailbox\.(\d+)\.\d")


def clears_away_when_all_have_left(run: JudgedRun) -> list[str]:
    """Return a finding if a program marked the run as over, whose keys are then deleted, before all ranks had left. Asynchronous peers
    (`run.tolerant`) need not wait for one that has failed, or that was silent for `absence_s` at any time.
    """
    left, absent, news_s = set[int](), set[int](), defaultdict[int, float](float)
    for entry in run.history.entries:
        if not (entry.changed and entry.left):
            continue
        if _CLEARING.fullmatch(entry.key):
            here = sorted(set(range(run.workers)) - left)
            awaited = [
                rank
                for rank in here
                if not (run.tolerant and (rank in absent or entry.at_s - news_s[rank] > _ABSENCE_S))
            ]
            return [_told(f"marked as over before ranks {awaited} had left", entry)] if awaited else []
        if named := _OF_RANK.fullmatch(entry.key):
            rank = int(named[2])
            left |= {rank} if named[1] == "left" else set()
            if named[1] == "failure" or entry.at_s - news_s[rank] > _ABSENCE_S:
                absent.add(rank)
            news_s[rank] = entry.at_s
    return []


_ABSENCE_S, _CLEARING = ServingSettings(fleet="").absence_s, re.compile(r"runs/[^/]+/over")
_OF_RANK = re.compile(r"runs/[^/]+/(left|failure|heartbeat|lease)/(\d+)(?:/\d+)?")


def spends_within_its_budget(run: JudgedRun) -> list[str]:
    """Return findings about epochs that were started although the spending so far plus the dearest epoch would pass the budget, and about a
    spending that falls.
    """
    if run.budget_usd is None:
        return []
    told = [(each["epoch"], each["usd"], each["dearest_usd"]) for each in run.outcome.decisions]
    found = [
        f"an epoch follows epoch {epoch}, at ${usd:.4f} and up to ${dearest:.4f} an epoch; the budget is {run.budget_usd}"
        for epoch, usd, dearest in told[:-1]
        if usd + dearest > run.budget_usd
    ]
    falls = [(before, after) for before, after in pairwise(told) if after[1] < before[1]]
    return found + [
        f"epoch {after[0]}: ${after[1]:.6f} is less than ${before[1]:.6f} before" for before, after in falls
    ]


def _told(what: str, entry: HistoryEntry) -> str:
    """Return a finding in words: what is wrong, and which request did it."""
    return f"{what}: {entry.key} by {entry.role} ({entry.process}) at {entry.at_s:.3f} s, {entry.operation} on {entry.server}"


Oracle = Callable[[JudgedRun], list[str]]
ORACLES: tuple[Oracle, ...] = (
    right_model,
    decisions_say_what_is_so,
    outcome_says_what_is_so,
    workers_hold_one_model,
    peers_step_along_what_they_average,
    words_say_what_is_so,
    leaves_in_time,
    ends_well,
    goes_on_by_itself,
    only_known_errors,
    nothing_left,
    written_once,
    deleted_after_the_last_read,
    decisions_stand,
    barriers_only_grow,
    nobody_goes_on_overtaken,
    one_program_holds_a_rank,
    ranks_are_taken_from_the_silent,
    clears_away_when_all_have_left,
    spends_within_its_budget,
    progress.repeats_what_was_not_kept,
    progress.keeps_the_order,
    progress.clears_away_behind_every_attempt,
    progress.used_up_keys_go,
    progress.ends_in_time,
    progress.rounds_never_fall,
    progress.keeps_needed_checkpoints,
)


def list_broken_promises(run: JudgedRun) -> list[str]:
    """Return all promises that the run broke, each as "NAME_OF_ORACLE: finding"."""
    return [f"{oracle.__name__}: {said}" for oracle in ORACLES for said in oracle(run)]
