"""A schedule: which faults happen to a run, as data. Drawn by a seed, written as JSON, told to a person one line a fault.

A fault strikes where a role stands in its own work (its n-th request, over all processes that ever play that role) or at a moment. So one
that is taken out of a schedule moves the others as little as can be, which is what makes a schedule small.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any, Literal, TypeVar, get_args

from crossover.errors import UserError

T = TypeVar("T")

FaultKind = Literal[
    "kill", "freeze", "slow", "lose", "message", "duplicate", "outage", "refusal", "memory_lost", "queues_lost", "clock", "client_dies",
    "throttle", "starts", "taken", "late", "gone", "limit",
]  # fmt: skip
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
Side = Literal["before", "after"]  # of a request's effect
# Error codes of a server that is unable to answer now, by service; a refusal has the first one unless it names another. "aws": Step
# Functions and Auto Scaling. CONFLICT only answers conditional writes; after InternalError a write may have taken place.
CONFLICT = "ConditionalRequestConflict"
REFUSALS: Mapping[str, tuple[str, ...]] = {
    "s3": ("SlowDown", "InternalError", "ServiceUnavailable", CONFLICT),
    "redis": ("LOADING", "BUSY", "TRYAGAIN"),
    "rabbitmq": ("basic.nack",),
    "aws": ("ThrottlingException",),
}
WRITTEN_ALL_THE_SAME = ("InternalError",)  # codes after which the write may have taken effect


# Sizes and times that a small run never reaches, with the values that they may have instead, so that code for several parts, pages, spares
# and long waits is run.
LIMITS: Mapping[str, tuple[float, ...]] = {
    "part_bytes": (16, 24),  # of a gradient, that one averaging function takes
    "body_bytes": (8,),  # of a message; a longer one lies in the bucket
    "page_keys": (1, 2, 3),  # of a listing
    "spares": (1, 2),  # instances beside those that hold a rank
    "timeout_s": (60, 90),  # of a function
    "waits_s": (60,),  # that a step which polls waits for others
    "minibatch_s": (12, 15),  # of a gradient
    "minibatches": (4, 6),  # of a worker in an epoch
    "checkpoint_every": (1, 3),  # rounds
    "time_to_live_s": (20_000,),  # of a key in a database
    "exchange_every": (1,),  # minibatches; otherwise there is one exchange an epoch, and no mailbox is used twice
    "page_s": (0.3, 2.0),  # what a page of a listing takes, while others write and delete
    "missing_samples": (1, 3),  # of the training data: so many workers have a smaller minibatch
    "unlabelled": (1, 2),  # how many workers have a minibatch without a label, which counts for nothing
    "staleness_limit": (0, 1),  # rounds that a gradient of an asynchronous peer may be behind
    "epochs": (3, 4),  # at most: training ends after one without a better loss, or after two
    "own_bits": (1,),  # whether each process of a GPU computes other bits than any other
    "non_finite": (1,),  # how many workers send a NaN or an infinity each round, and are left out
    "even_s": (2.0, 6.0),  # of every gradient, so that all workers keep step and hardly wait for one another
}
RARE_LIMITS = (
    "spares",
    "exchange_every",
    "page_s",
)  # each drawn also by itself, with the faults that show what it brings about
LEARNING_LIMITS = (
    "missing_samples",
    "epochs",
    "own_bits",
    "staleness_limit",
)  # each drawn by itself, since they change what is learnt
OWN_LIMITS = ("non_finite", "even_s", "unlabelled")  # each drawn by itself, too, but more rarely


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a schedule. Its fields mean, by kind:

    - kill, freeze, slow, lose: strike the `request`-th request of `role`, before or after its effect (`side`); with a `sort`, only the
      `request`-th of that sort, before its effect. A frozen process continues after `seconds`; a slow one takes `seconds` longer for each
      request from then on; a lost reply is a broken connection, or no reply at all (`silent`).
    - message: the `request`-th message that `role` sends reaches the broker `seconds` late, so that others overtake it (`side` before), or
      comes a second time after `seconds` (`side` after). With `behind`, these `seconds` count from the `behind`-th of the sender's later
      messages to the same queue or exchange.
    - duplicate: the `request`-th invocation of `role` comes again `seconds` later. Its caller waits for the second one's answer (`side`
      before), or has continued with the first one's.
    - outage: `service`'s server number `server` refuses connections from `at_s` for `seconds`; refusal: it answers `code` of
      REFUSALS, `side` the request's effect.
    - memory_lost, queues_lost: database `server`, or the broker, restarts empty at `at_s`.
    - clock: the wall clock of `role` is ahead by `seconds`; of the client role, only that of the `request`-th client.
    - client_dies at `at_s`; another resumes the run `seconds` later.
    - throttle, starts: from `at_s` for `seconds` no function is invoked, no execution started.
    - taken: the instance of program `role` is taken away at `at_s`; late: it starts `seconds` after the others, but its successor does not,
      because otherwise a program that was given up as late would fail every later resumption too.
    - limit: `service` names one of LIMITS, which has the value `seconds` (bytes, keys, instances, ...) in this run.
    - gone: from the `request`-th request of `role` on, each process with this role is killed, until the run is resumed.
    """

    kind: FaultKind
    role: str = ""
    request: int = 0  # from 1; 0 if the fault has a time
    sort: str = ""  # of the requests that are counted, as nemeses.py names it; "": all
    behind: int = 0  # number of later messages to the same place that come first
    side: Side = "before"
    silent: bool = False
    service: str = ""
    code: str = ""  # of a refusal; "": its service's first
    server: int = 0
    at_s: float = 0.0
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the fault in words, for people."""
        return _TOLD[self.kind](self)


def refusal_of(fault: Fault) -> str:
    """Return the error code of a refusal: its own, or its service's first."""
    return fault.code or REFUSALS[fault.service][0]


def _at_request(what: str) -> Callable[[Fault], str]:
    """Return a function that describes a fault at a request, with `what` as its effect."""
    return lambda f: (
        f"{f.role}, request {f.request}{f.sort and ' of ' + f.sort}, {f.side} its effect: {what.format(f=f)}"
    )


def _at_moment(what: str) -> Callable[[Fault], str]:
    """Return a function that describes a fault at a time, with `what` as its effect."""
    return lambda f: f"at {f.at_s:.3f} s: {what.format(f=f)}"


_TOLD: Mapping[FaultKind, Callable[[Fault], str]] = {
    "kill": _at_request("its process is killed"),
    "freeze": _at_request("its process stands still for {f.seconds:g} s"),
    "slow": _at_request("its process takes {f.seconds:g} s more for each request from now on"),
    "lose": lambda f: _at_request("the reply never comes" if f.silent else "the connection breaks")(f),
    "message": lambda f: (
        f"{f.role}, message {f.request}: "
        + (f"it arrives {f.seconds:g} s late" if f.side == "before" else f"it comes again {f.seconds:g} s ")
        + (
            ""
            if f.side == "before"
            else f"behind number {f.behind} of the later ones to the same place"
            if f.behind
            else "later"
        )
    ),
    "duplicate": lambda f: (
        f"{f.role}, delivery {f.request}: it comes again {f.seconds:g} s later, "
        + ("and its caller waits for the second" if f.side == "before" else "when its caller has gone on")
    ),
    "outage": _at_moment("{f.service} {f.server} refuses connections for {f.seconds:g} s"),
    "refusal": lambda f: _at_moment(
        f"{{f.service}} {{f.server}} answers {refusal_of(f)} for {{f.seconds:g}} s"
        + (", when it has done what it was asked" if f.side == "after" else "")
    )(f),
    "memory_lost": _at_moment("database {f.server} starts again without what it held"),
    "queues_lost": _at_moment("the broker starts again without its queues"),
    "clock": lambda f: f"{f.role}{f' {f.request}' if f.request else ''}: its clock is {f.seconds:+g} s off",
    "client_dies": _at_moment("the client dies; another resumes the run {f.seconds:g} s later"),
    "throttle": _at_moment("no function is invoked for {f.seconds:g} s"),
    "starts": _at_moment("no execution is started for {f.seconds:g} s"),
    "taken": _at_moment("the instance of {f.role} is taken"),
    "late": lambda f: f"{f.role} starts {f.seconds:g} s after the others",
    "limit": lambda f: f"{f.service} is {f.seconds:g}",
    "gone": _at_request("its process is killed, and whoever takes its place, until the run is resumed"),
}


Requests = Sequence[tuple[float, str]]  # of a role: when it asked, and for what sort of thing
IF_NONE = " if none"  # ends the sort of a conditional write


@dataclass(frozen=True)
class Terrain:
    """The places where faults can strike, taken from an undisturbed run. `requests`: of each role, (seconds, sort of request) in order;
    `messages`, `deliveries`: how many messages each role sent, and how often it was invoked; `programs`: roles of programs; `kinds`: faults
    that can happen to the architecture; `again`: requests that each role makes in addition if the run is stopped at `again_s` and resumed;
    `may_go`: number of workers that the others can continue without.
    """

    requests: Mapping[str, Requests]
    messages: Mapping[str, int]
    deliveries: Mapping[str, int]
    programs: Sequence[str]
    servers: Mapping[str, int]  # of each service
    kinds: Sequence[FaultKind]
    again: Mapping[str, Requests] = field(default_factory=dict)
    again_s: float = 0.0
    may_go: int = 0
    limits: Sequence[str] = ()  # of LIMITS: those that the architecture has


# How long what passes by itself may last at most, in seconds: retries, patience and new instances are made for more than this.
PASSES_S: Mapping[FaultKind, float] = {
    "freeze": 300.0, "slow": 0.1, "message": 300.0, "duplicate": 300.0, "outage": 2.0, "refusal": 2.0, "throttle": 1.0, "starts": 1.0,
    "late": 120.0,
}  # fmt: skip
ALWAYS_PASS: tuple[FaultKind, ...] = ("kill", "lose", "taken", "gone", "limit")
# Kills for one fault of any other kind: an omission of a protocol shows most often if a process ends between two requests.
KILLS_FOR_ONE = 3
WORKERS = ("train ", "program ")  # how their roles begin
KILLS = 2  # of one role, before its retries may be used up


def pass_by(faults: Sequence[Fault], *, may_go: int = 0) -> bool:
    """Return whether a run must survive these faults without being resumed, except after its client's death. `may_go`: number of workers
    that the others can continue without, if they are gone or frozen for long.
    """
    limits = limits_of(faults)
    timeout_s = min(limits.get("timeout_s", inf), limits.get("waits_s", inf))
    # In an invocation of a minute a reply that never comes is as bad as a kill, and patience is two such invocations.
    kinds, kills = (("kill", "taken"), KILLS) if timeout_s == inf else (("kill", "taken", "lose"), 1)
    hit = Counter(fault.role for fault in faults if fault.kind in kinds)
    left = find_gone_roles(faults) | {fault.role for fault in faults if may_go and _sleeps(fault)}
    few = len(left) <= may_go and all(role.startswith(WORKERS) for role in left)
    few = few and all(count <= kills for role, count in hit.items() if role != "client")
    others = [fault for fault in faults if not (fault.role in left and _sleeps(fault))]
    return few and all(_passes(fault, at_most_s=timeout_s / 6) for fault in others)


def _sleeps(fault: Fault) -> bool:
    """Return whether the fault freezes a worker for so long that the others may give it up."""
    return fault.kind == "freeze" and fault.role.startswith(WORKERS) and fault.seconds > PASSES_S["freeze"]


def limits_of(faults: Sequence[Fault]) -> dict[str, float]:
    """Return the limits among `faults` by name."""
    return {fault.service: fault.seconds for fault in faults if fault.kind == "limit"}


def find_gone_roles(faults: Sequence[Fault]) -> set[str]:
    """Return the roles that nobody plays any more until the run is resumed."""
    return {fault.role for fault in faults if fault.kind == "gone"}


def ends_client(fault: Fault) -> bool:
    """Return whether a client may end by this fault, though the run goes on."""
    return fault.kind == "client_dies" or fault.role == "client"


def _passes(fault: Fault, *, at_most_s: float) -> bool:
    """Return whether a run survives the fault without being resumed by an operator, or the fault can end only the client. `at_most_s`:
    longest duration that a fault may have.
    """
    within_s = min(at_most_s, PASSES_S.get(fault.kind, -inf))
    return ends_client(fault) or fault.kind in ALWAYS_PASS or fault.seconds <= within_s


def as_json(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Return the faults as JSON objects with their kind and the fields that differ from the defaults."""
    bare = {each.name: each.default for each in fields(Fault) if each.name != "kind"}
    return [{k: v for k, v in asdict(fault).items() if k == "kind" or v != bare[k]} for fault in faults]


def from_json(given: Any, terrain: Terrain) -> tuple[Fault, ...]:
    """Return the faults that JSON data describe. Raises UserError if `given` is not a list of faults, or has one that cannot happen to this
    experiment.
    """
    if not isinstance(given, list):
        raise UserError(f"faults: {type(given).__name__}; expected a list of faults, as `crossover chaos` prints it")
    return tuple(_fault(number, each, terrain) for number, each in enumerate(given, start=1))


def _fault(number: int, given: Any, terrain: Terrain) -> Fault:
    """Return the fault that JSON data describe. Raises UserError if it has unknown fields or cannot happen to the experiment. `number`: its
    index, for errors.
    """
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
    if fault.kind == "limit" and fault.service not in terrain.limits:
        raise UserError(f"fault {number}: service: {fault.service!r}; this experiment has {', '.join(terrain.limits)}")
    if fault.role and fault.role not in (*terrain.requests, *terrain.programs):
        known = ", ".join(sorted(terrain.requests))
        raise UserError(f"fault {number}: role: {fault.role!r}; this experiment has {known}")
    return fault
