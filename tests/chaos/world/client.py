"""Who runs an experiment: prepares it, starts it, follows it to its end, and resumes what has failed or was left alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from crossover.errors import CrossoverError, RunFailed, UserError, rebuild_error
from crossover.experiment import Experiment
from crossover.reports.spending import BudgetReached
from crossover.running.monitor import attach_to_run, follow, has_ended, write_first_deadline
from crossover.running.preparing import Materials, PreparedRun, attempt_number, prepare
from crossover.running.resume import count_instances, tolerates_failures
from crossover.stores.clients import Clients
from crossover.stores.deployed_clients import describe_cause, find_innermost_error
from crossover.stores.keys import current_run
from crossover.stores.protocols import Traffic
from crossover.training.fleet import ProgramsExecution, announce
from crossover.workflow import first_event
from tests.chaos.world.fleet import VirtualFleet
from tests.chaos.world.kernel import Kernel, Process
from tests.chaos.world.machines import ExecutionAlreadyExists, VirtualExecution, VirtualMachines

FLEET, RUN_MACHINE = "fleet", "run"
LOOK_S = 20.0  # a client that sleeps until its run ends looks now and then all the same
PATIENCE = 6  # resumptions, before a run is given up


class VirtualAccount(Protocol):
    """Interface of the account that a client uses, with the experiment deployed in it."""

    kernel: Kernel
    experiment: Experiment
    machines: VirtualMachines
    fleet: VirtualFleet | None
    spares: int  # instances beside those that hold a rank

    def clients(self, process: Process) -> Clients:
        """Return new clients of stores and bus for a process."""

    def materials(self, experiment: Experiment) -> Materials:
        """Return what a client uploads for a run: data set, code, versions, learner."""

    def asks(self, operation: str, effect: Callable[[], Any] = lambda: None) -> Any:
        """Send a request to one of AWS's own APIs, and return what `effect` returns, which is called when the request reaches AWS. Requests
        without an answer are repeated, `effect` perhaps with them; Unavailable is raised if all fail. Errors of `effect` are raised.
        """

    def resumes_after_s(self) -> float:
        """Return how many seconds after a client's end another one resumes the run."""


@dataclass
class MachineExecution:
    """The execution of a run's state machine, as the client sees it. The client waits for news of it before each look, so that a run takes
    few steps of the simulation.
    """

    world: VirtualAccount
    execution: VirtualExecution

    def has_ended(self) -> bool:
        """Wait until the execution ends, for at most LOOK_S seconds, then return whether it has succeeded. Raises RunFailed or the step's
        own error if it has failed or timed out.
        """
        self.world.machines.wait(self.execution, LOOK_S)
        found = self.execution
        if found.status == "RUNNING":
            return False
        if found.status == "SUCCEEDED":
            return True
        if found.status == "TIMED_OUT":
            raise RunFailed("ended by lifetime.maximum_run_hours: deploy with more hours, then resume the run")
        error = found.error or found.status
        raise rebuild_error(find_innermost_error(error, found.cause), describe_cause(error, found.cause))

    def stop(self) -> None:
        """Stop the execution."""
        self.execution.stop()


def _finished(failure: BaseException) -> bool:
    """Return whether an error of a resumption means that the run is already finished."""
    return isinstance(failure, UserError) and "the run is finished" in str(failure)


@dataclass
class Client:
    """The operator's side of one run, over as many attempts (starts and resumptions) as it takes."""

    world: VirtualAccount
    run: str = ""
    attempts: int = 0
    failure: str = ""
    failures: list[str] = field(default_factory=list)  # of all clients
    process: Process | None = None
    execution: VirtualExecution | None = None
    announced: bool = False  # to the fleet

    def operate(self) -> None:
        """Start clients one after another until the run has ended well, has reached its budget, or more than PATIENCE clients have failed;
        killed clients are not counted. Raises an error of a client that is not a CrossoverError.
        """
        kernel = self.world.kernel
        patience = PATIENCE
        while patience >= 0:
            self.process = Process(kernel, f"client {self.attempts + 1}")
            self.process.role = "client"
            task = kernel.spawn(self._follow, process=self.process, name="client")
            kernel.wait(task.ended)
            if task.failure is None or _finished(task.failure):
                self.failure = ""
                return
            self.failure = f"{type(task.failure).__name__}: {task.failure}"
            self.failures.append(self.failure)
            if isinstance(task.failure, BudgetReached):
                return
            if self.process.alive and not isinstance(task.failure, CrossoverError):
                raise task.failure
            patience -= self.process.alive  # who dies himself has not lost it
            self.process.kill()
            kernel.sleep(self.world.resumes_after_s())

    def _follow(self) -> None:
        """Run one client to its end, as `crossover run` and `crossover run --resume` do."""
        world, resumed = self.world, self.run
        self.attempts += 1
        assert self.process is not None
        objects = world.clients(self.process).objects(Traffic())
        if self._under_way():
            prepared = attach_to_run(resumed, world.experiment, objects=objects, resume=resumed)
        else:
            prepared = prepare(
                world.experiment, objects=objects, data=[objects], run=resumed, load_inputs=world.materials
            )
            self.run = prepared.run
            if prepared.experiment.lifetime.budget_usd is not None:
                write_first_deadline(prepared)
        if prepared.architecture.program:
            self._programs(prepared)
        else:
            self._machine(prepared, again=bool(resumed))

    def _under_way(self) -> bool:
        """Return whether the run continues without a client, so that the next client can follow it. In three quarters of the cases a run
        that continues is stopped instead, and False returned, so that the next client resumes it.
        """
        world = self.world
        world.asks("ListExecutions")
        going_on = self.execution is not None and self.execution.status == "RUNNING"
        going_on = going_on or bool(world.fleet and world.fleet.capacity and self.announced)
        if going_on and world.kernel.chance.random() < 0.75:
            world.asks("StopExecution", self._release)
            return False
        return going_on

    def _release(self) -> None:
        """Stop the execution, and end all instances of the fleet."""
        if self.execution is not None:
            self.execution.stop()
        if self.world.fleet is not None:
            self.world.fleet.resize(0)
            self.announced = False

    def _machine(self, prepared: PreparedRun, *, again: bool) -> None:
        """Start the run's state machine unless it is running, and follow it to its end. `again`: whether an earlier attempt is resumed."""
        world = self.world
        if self.execution is None or self.execution.status != "RUNNING":
            attempt = attempt_number(prepared, again=again)
            event = first_event(prepared.run, workers=prepared.experiment.workers, attempt=attempt)

            def start() -> None:  # there it is then, though its client die before the answer
                """Start the execution; accept that it exists already if an earlier answer was lost."""
                name = f"{prepared.run}-{attempt}"
                try:
                    self.execution = world.machines.asked_to_start(RUN_MACHINE, name, event)
                except ExecutionAlreadyExists:  # by this client: the answer was lost, and it has ended since
                    assert self.execution is not None and self.execution.name == name

            world.asks("StartExecution", start)
            assert self.execution is not None
        self._until_it_ends(prepared, MachineExecution(world, self.execution))

    def _programs(self, prepared: PreparedRun) -> None:
        """Start the run's programs and follow them to the end of the run, as running/deployed.py does. All instances end afterwards, also
        if the run fails.
        """
        world, fleet, members = self.world, self.world.fleet, prepared.experiment.workers
        assert fleet is not None

        def can_finish() -> bool:
            """Wait for a change of the fleet, then return whether it still has instances that can finish the run."""
            if fleet.capacity:
                world.kernel.wait(fleet.changed, LOOK_S)
            return bool(world.asks("DescribeAutoScalingGroups", lambda: fleet.capacity > 0))

        def release() -> None:
            """Ask the fleet to end all instances."""
            world.asks("SetDesiredCapacity", self._release)

        if not self.announced:
            announce(prepared.objects, fleet=FLEET, run=prepared.run, members=members)
            self.announced = True
        try:
            size = count_instances(prepared.experiment, prepared.architecture) + world.spares
            world.asks("SetDesiredCapacity", lambda: fleet.resize(size))
            tolerant = tolerates_failures(prepared.experiment)
            execution = ProgramsExecution(
                prepared.objects, prepared.keys, members, tolerant=tolerant, release=release, can_finish=can_finish
            )
            self._until_it_ends(prepared, execution)
        finally:
            release()
            prepared.objects.delete(current_run(FLEET))

    def _until_it_ends(self, prepared: PreparedRun, execution: MachineExecution | ProgramsExecution) -> None:
        """Follow the run to its end. Records are read only if the experiment has a budget, because nothing else depends on them."""
        if prepared.experiment.lifetime.budget_usd is not None:
            follow(prepared, execution, lambda progress: None)
            return
        while not has_ended(prepared, execution):
            pass
