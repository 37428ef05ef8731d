"""What of a cloud on this machine is at work and can be killed."""

import random

from crossover.local.fleet_programs import Fleets
from crossover.local.lambdas import Lambdas


def kill_random(lambdas: Lambdas, rng: random.Random) -> str | None:
    """Kill one of the running environments at once, by SIGKILL, and return the name of its function; None if none runs."""
    running = sorted(lambdas.list_running(), key=lambda each: each.pid)
    if not running:
        return None
    victim = rng.choice(running)
    victim.kill()
    return victim.function.name


def programs(fleets: Fleets, name: str) -> list[int]:
    """Return the process ids of a fleet's running programs."""
    with fleets._lock:
        fleet = fleets._fleets.get(name)
        found = [] if fleet is None else list(fleet.instances.values())
        return [each.child.pid for each in found if each.child.poll() is None]
