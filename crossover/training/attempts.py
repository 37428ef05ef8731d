"""A run's attempts are ordered: resuming begins the next one, while functions of the stopped one may run on for 15 minutes.

An attempt writes under names of its own (`Keys.attempt`): checkpoints, contributions, barriers. So a lower one cannot disturb it. What a
lower one still does is of no use to anybody: it asks, before it goes on to another epoch, checkpoint or wait, whether it was overtaken, and
then takes back what it left. Markers are created and never deleted, so that no order of calls hides a higher attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from crossover.context import Context
from crossover.dataplane import documents
from crossover.errors import CrossoverError, Missing, StaleAttempt
from crossover.keys import Keys

OUTCOME = {"attempt?": int, "epochs?": int, "reason?": str, "parameters_sha256?": str}

_TRAINS, _CLEARS = b"to train", b"to clear away"


def begin(ctx: Context) -> list[Keys]:
    """This attempt is the run's: the keys of those before it, the newest first. Raises StaleAttempt where a higher one has begun, or where
    this one has concluded the run: an invocation may come again when all is over.
    """
    objects, keys = ctx.objects, ctx.keys
    if not objects.put_new(keys.attempt_marker(keys.attempt), b"") and concluded(ctx):
        raise StaleAttempt(f"attempt {keys.attempt} of {keys.run} has concluded the run")
    begun = _begun(ctx)
    if begun[0] > keys.attempt:
        raise StaleAttempt(f"attempt {keys.attempt} of {keys.run}: attempt {begun[0]} has begun")
    lower = [Keys(ctx.run, attempt) for attempt in begun[1:]]
    for each in lower:
        objects.put_new(each.overtaken, b"")
    return lower


@contextmanager
def setting_up(
    ctx: Context, take_back: Callable[[], object], clear: Callable[[list[Keys]], object]
) -> Iterator[list[Keys]]:
    """Around what sets an attempt up; the keys of those before it, the newest first. Raises StaleAttempt where a higher one has begun
    meanwhile, or this one has concluded the run by another invocation of its first step. Neither has seen what came late: that is taken
    back. Also where one before has concluded the run and may not have come to its end: there is nothing to go on with then, so this one
    does no more than `clear` what those before it left, and itself.
    """
    try:
        before = begin(ctx)
        if before and _concluded_before(ctx):
            _only_clear(ctx, before, clear)
        try:
            yield before
        except (
            Missing
        ):  # an attempt before this one may conclude the run meanwhile, and delete what this one was about to take over
            if not before or not _concluded_before(ctx):
                raise
            _only_clear(ctx, before, clear)
        if before and ctx.objects.create(ctx.keys.purpose, _TRAINS) != _TRAINS:
            _only_clear(ctx, before, clear)
        give_way(ctx)
        if concluded(ctx):
            raise StaleAttempt(f"attempt {ctx.keys.attempt} of {ctx.run} has concluded the run")
    except (
        CrossoverError
    ) as error:  # what an overtaken one works with may be gone under its hands, and nobody tries it again
        with suppress(CrossoverError):
            if isinstance(error, StaleAttempt) or overtaken(ctx):
                take_back()
        raise


def _only_clear(ctx: Context, before: list[Keys], clear: Callable[[list[Keys]], object]) -> NoReturn:
    take(ctx, before)
    clear([ctx.keys, *before])
    finish(ctx)
    raise StaleAttempt(f"{ctx.run} was concluded before attempt {ctx.keys.attempt}, which has cleared away")


def _concluded_before(ctx: Context) -> bool:
    """Whether an attempt before this one has concluded the run, so that only clearing away is left. Not where this one has set itself up:
    then its own workers may be under way, and they go on to their end. Several invocations of its first step may ask at once, so whoever
    says it first decides for all.
    """
    objects, keys = ctx.objects, ctx.keys
    return objects.exists(keys.outcome) and objects.create(keys.purpose, _CLEARS) == _CLEARS


def finish(ctx: Context) -> None:
    """The last thing of all: what the run left behind is cleared away. Where a higher attempt has begun, that is for it to say: it has read
    the outcome, and clears away itself, or else it trains yet.
    """
    if not overtaken(ctx):
        ctx.objects.put_new(ctx.keys.finished, b"")


def take(ctx: Context, lower: Sequence[Keys]) -> None:
    """This attempt has taken over what it needs of those before it: now what they left may be deleted. Raises StaleAttempt where a higher
    one has begun, which may need it.
    """
    give_way(ctx)
    for each in lower:
        ctx.objects.put_new(each.taken_over, b"")


def spare(ctx: Context) -> bool:
    """Whether nobody needs this attempt's state any more. An attempt that was overtaken must not delete what the next one is yet to take
    over; that one deletes it afterwards, with all that was written until it said that it has taken over.
    """
    return concluded(ctx) or ctx.objects.exists(ctx.keys.taken_over)


def before(ctx: Context) -> list[Keys]:
    """The keys of the attempts before this one, the newest first. Lists: for set-up and the end, not for training."""
    return [Keys(ctx.run, attempt) for attempt in _begun(ctx) if attempt < ctx.keys.attempt]


def _begun(ctx: Context) -> list[int]:
    return sorted((int(key.rpartition("/")[2]) for key in ctx.objects.list(ctx.keys.attempt_markers)), reverse=True)


def overtaken(ctx: Context) -> bool:
    """Whether a higher attempt of the run has begun."""
    return ctx.objects.exists(ctx.keys.overtaken)


def concluded(ctx: Context) -> bool:
    """Whether this attempt has concluded the run: one before it may do so while this one still trains."""
    objects, key = ctx.objects, ctx.keys.outcome
    return bool(objects.exists(key) and documents.read(objects, key, OUTCOME).get("attempt") == ctx.keys.attempt)


def settle(ctx: Context, take_back: Callable[[], object]) -> None:
    """After a program, or a function of one, has written something: raises StaleAttempt, and takes it back, where the run is over. Whoever
    clears away says so before; so one of the two finds what was written, in whatever order they come.
    """
    if ctx.objects.exists(ctx.keys.over):
        take_back()
        raise StaleAttempt(f"{ctx.run}: the run is over")


def useless(ctx: Context) -> bool:
    """Whether nobody needs anything any more that this attempt's training writes."""
    return overtaken(ctx) or concluded(ctx)


def give_way(ctx: Context) -> None:
    """Raises StaleAttempt where a higher attempt has begun."""
    if overtaken(ctx):
        raise StaleAttempt(f"attempt {ctx.keys.attempt} of {ctx.keys.run} was overtaken: the run was resumed")
