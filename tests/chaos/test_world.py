"""The real code in the virtual world, where nothing goes wrong: the reference's bits, the same history again, nothing left at work."""

import hashlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crossover import runtime, validation
from crossover.experiment import Experiment
from crossover.learning.reference import train_reference
from crossover.workflow.architecture import architectures, load
from tests.chaos.world.kernel import Kernel, Process
from tests.chaos.world.learner import ExactLearner
from tests.chaos.world.process_runtime import BlocksForReal, install_runtime
from tests.chaos.world.world import VirtualWorld

SMALL = ["training.epochs=2", "training.batch_size=2", "training.learning_rate=0.5", "training.momentum=0.5"]


def experiment(name: str, workers: int = 2) -> Experiment:
    """Return the architecture's experiment from config/, made small enough for the virtual world. An architecture without parallel workers
    gets one.
    """
    more, workers = [f"gpu.instances={workers}"] if name == "gpu" else [], 1 if load(name).alone else workers
    return validation.load(
        Path("config") / f"{name.replace('_', '-')}.yaml",
        [f"workers={workers}", *SMALL, "training.weight_decay=0.0", *more],
    )


def list_requests(world: VirtualWorld) -> list[str]:
    """Return the world's requests in order, one line of text each."""
    return [
        f"{call.at_s!r} {call.process.name} {call.request} {call.outcome} {call.bytes_in}" for call in world.history
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures())
def test_an_undisturbed_run_ends_with_the_bits_of_the_reference(name: str) -> None:
    """Run the architecture without faults: one client is enough, the model is the reference's bit for bit (if the architecture claims
    that), and databases and broker are empty at the end.
    """
    world = VirtualWorld(experiment(name), seed=1)
    outcome = world.run()
    assert not outcome.failure and outcome.clients == 1 and not outcome.crashes
    model = train_reference(world.resolved, world.dataset, learner=ExactLearner(world.resolved))[0]
    if "equals_reference" in load(name).claims:
        assert outcome.model == hashlib.sha256(model).hexdigest()
    assert outcome.model and not outcome.left["redis"] and not outcome.left["rabbitmq"]


def test_a_seed_s_history_is_the_same_again_and_another_seed_s_is_another() -> None:
    """Run one seed twice and another seed once: the first two histories of requests are equal, the third differs."""

    def history(seed: int) -> list[str]:
        """Return the requests of a whole run with that seed."""
        world = VirtualWorld(experiment("spirt"), seed=seed)
        world.run()
        return list_requests(world)

    first = history(1)
    assert len(first) > 100
    assert history(1) == first
    assert history(2) != first


def _in_a_task(code: Callable[[], object]) -> None:
    """Run `code` to its end as the only task of a new virtual world, with the world's runtime installed."""
    kernel = Kernel(1)
    with install_runtime(kernel):
        task = kernel.spawn(code, process=Process(kernel, "one"), name="one")
        kernel.run(lambda: task.over)


REAL: dict[str, Callable[[], object]] = {
    "time.sleep": lambda: time.sleep(0.001),
    "Thread.start": lambda: threading.Thread(target=print).start(),
    "Condition.wait": lambda: threading.Event().wait(0.001),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("127.0.0.1", 9),
    "subprocess.Popen": lambda: subprocess.run(["true"], check=True),
}


@pytest.mark.parametrize("what", REAL)
def test_code_that_would_really_block_is_refused_with_its_line(what: str) -> None:
    """Make a real blocking call in a task: BlocksForReal names the call and its line. Outside the world the call works. `what`: key of
    REAL.
    """

    def step() -> None:
        """Make the real call, and catch every ordinary exception, as a step may."""
        try:
            REAL[what]()
        except Exception:
            return

    line = REAL[what].__code__.co_firstlineno
    with pytest.raises(BlocksForReal, match=rf"{what} inside the virtual world, .*test_world\.py, line {line}:"):
        _in_a_task(step)
    REAL[what]()  # outside the world it does what it does


@pytest.mark.slow
def test_a_lock_is_waited_for_in_virtual_time_and_threads_have_names_of_their_own() -> None:
    """Let two threads hold one lock for a second each: the second one waits in virtual time, and each has its own
    thread-local attributes.
    """
    told: list[object] = []

    def hold(lock: runtime.Lock, own: object) -> None:
        """Hold the lock for a second; record the thread's own attribute and the time at its end."""
        with lock:
            setattr(own, "mine", runtime.monotonic())  # noqa: B010  # an attribute of each thread's own
            runtime.sleep(1.0)
            told.append((getattr(own, "mine", None), runtime.monotonic()))

    def code() -> None:
        """Start two threads that need the same lock, and wait for both."""
        lock, own = runtime.lock(), runtime.local()
        threads = [runtime.thread(hold, lock, own) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _in_a_task(code)
    assert told == [(0.0, 1.0), (1.0, 2.0)]
