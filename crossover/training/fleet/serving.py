"""From start to end of a program: find the run, claim a rank, do the work, say why it failed."""

import json
from collections.abc import Callable

from crossover import runtime
from crossover.context import Context, Resources
from crossover.dataplane import plain
from crossover.dataplane.protocols import ObjectStore
from crossover.dataplane.traffic import Traffic
from crossover.errors import CrossoverError, StaleAttempt, Unavailable
from crossover.keys import Keys, current_run
from crossover.runtime.pauses import Pauses
from crossover.runtime.retries import PROGRAM
from crossover.training.fleet.lease import POINTER, Hearts, Membership, ServingSettings

ProgramBody = Callable[[Context, Membership], None]


def serve(resources: Resources, settings: ServingSettings, body: ProgramBody) -> None:
    """Be a member of the fleet's run until it is over. Returns also where there is no run, or no rank, for `idle_s`.

    A rank lost to another program, or a store that did not answer, is no failure: the program joins again, and the newest checkpoint of
    whichever rank it gets says where to go on. Any other error is the run's: it is left for the runner in plain words, then raised.
    """
    objects = resources.clients.objects(Traffic())
    troubles, me = 0, settings.program.encode() or runtime.entropy(16)
    while (membership := join(objects, settings, me=me)) is not None:
        try:
            with membership, Context(resources, run=membership.run) as ctx:
                body(ctx, membership)
            return
        except StaleAttempt:
            continue  # another holds the rank; this program is a spare now
        except Unavailable as error:
            troubles = 1 if membership.progressed else troubles + 1
            if troubles > PROGRAM.again:
                give_up(objects, membership, error)
                raise
        except Exception as error:
            if objects.exists(Keys(membership.run).finished):
                return  # the others ended the run meanwhile, and took back what this one was looking for
            if membership.overtaken():
                continue  # likewise another attempt
            give_up(objects, membership, error)
            raise
        # Out here the error has gone, and with it the frames that keep connections and vectors.
        runtime.sleep(min(PROGRAM.first_s * 2**troubles, settings.lease_s))


def join(objects: ObjectStore, settings: ServingSettings, *, me: bytes = b"") -> Membership | None:
    """A rank of the run that the fleet's pointer names; None once there is nothing to join, or for `idle_s`.

    `me`: whose earlier leases are nobody's now, if the program has joined before.
    """
    pause, me = Pauses(min(settings.look_s, settings.lease_s / 4), within_s=settings.idle_s), me or runtime.entropy(16)
    hearts: Hearts | None = None
    while True:
        try:
            if hearts is None and objects.exists(current_run(settings.fleet)):
                pointer = plain.read(objects.get(key := current_run(settings.fleet)), POINTER, key=key)
                hearts = Hearts(objects, Keys(pointer["run"]), me)
            if hearts is not None:
                keys, members = hearts.keys, pointer["members"]
                if objects.exists(keys.finished):
                    return None
                found = Membership.claim(hearts, run=keys.run, members=members, settings=settings)
                if found is not None:
                    return found
                if all(objects.exists(keys.failure(rank)) for rank in range(members)):
                    return None
        except Unavailable:
            pass
        if not pause():
            return None


def give_up(objects: ObjectStore, membership: Membership, error: Exception) -> None:
    """Leave the cause for the runner, unless another holds the rank by now: that one has not failed."""
    said = {"error": type(error).__name__, "cause": str(error), "attempt": membership.attempt}
    key = Keys(membership.run).failure(membership.rank)
    try:
        if objects.put_new(key, json.dumps(said).encode()) and membership.overtaken():
            objects.delete(key)
    except CrossoverError:
        return  # the error itself is on its way
