"""A run's attempts are ordered: resuming begins the next one, while functions of the stopped one may run on for 15 minutes.

An attempt writes under names of its own (`Keys.attempt`): checkpoints, contributions, barriers. So a lower one cannot disturb it. What a
lower one still does is of no use to anybody: it asks, before it goes on to another epoch, checkpoint or wait, whether it was overtaken, and
then takes back what it left. Markers are created and never deleted, so that no order of calls hides a higher attempt.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from crossover.context import Context
from crossover.errors import StaleAttempt
from crossover.keys import Keys


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
def setting_up(ctx: Context, take_back: Callable[[], object]) -> Iterator[None]:
    """Around what sets an attempt up: raises StaleAttempt where a higher one has begun meanwhile, which has not seen what came late: that
    is taken back.
    """
    try:
        yield
        give_way(ctx)
    except StaleAttempt:
        take_back()
        raise


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
    return objects.exists(key) and json.loads(objects.get(key))["attempt"] == ctx.keys.attempt


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
