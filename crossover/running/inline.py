"""The whole run in this process, on memory stores."""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from crossover import runtime
from crossover.architecture import architecture_of
from crossover.clients.memory import MemoryClients
from crossover.context import Context, Resources
from crossover.dataplane.traffic import Traffic
from crossover.errors import UserError, ended_with
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running import resumption, room
from crossover.running.baseline import with_baseline
from crossover.running.following import OnProgress, after, finish
from crossover.running.keeping import Databases, keeping
from crossover.running.members import goes_on_without
from crossover.running.preparing import Prepared, attempt_number, prepare
from crossover.running.resumption import Unfinished
from crossover.runtime.threads import BackgroundCall
from crossover.training.fleet import ServingSettings
from crossover.training.fleet.execution import ProgramsExecution, announce
from crossover.workflow import execute, first_event

STOP_S = 2.0  # for the threads of a stopped run to notice it: a minibatch of a small model, a pause between two looks


def run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: bool = False) -> RunFolder:
    """The whole run in this process on memory stores: seconds, for development."""

    def run(each: Experiment, folder: Path, unfinished: Unfinished | None) -> RunFolder:
        return _run_inline(each, folder, on_progress, unfinished)

    return with_baseline(run, experiment, out, where="inline", resume=resume, cores=os.cpu_count())


def _run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, unfinished: Unfinished | None) -> RunFolder:
    architecture = architecture_of(experiment)
    clients = MemoryClients(workers=experiment.workers, shared_tensors=architecture.tensor_hosts != "per_worker")
    objects = clients.objects(Traffic())
    if unfinished:
        unfinished.restore(objects)
    prepared = prepare(experiment, objects=objects, data=[objects], run=unfinished.run if unfinished else "")

    if unfinished:
        resumption.rewind(objects, prepared.keys, experiment, lost=True)
    room.check(prepared, out)

    def databases() -> Databases:
        stores = clients.tensor_stores if architecture.state == "database" else []
        return nullcontext({rank: store.beside(Traffic()) for rank, store in enumerate(stores)})

    with keeping(objects, out, where="inline", databases=databases) as keep:
        tell = after(keep, on_progress)
        if architecture.run is None:
            return finish(prepared, InlinePrograms(prepared, clients), out, tell, where="inline")
        context = Context(Resources(clients), run=prepared.run)
        event = first_event(
            prepared.run, workers=experiment.workers, attempt=attempt_number(prepared, again=bool(unfinished))
        )
        execution = InlineExecution(partial(execute, architecture.run, context, event), clients)
        return finish(prepared, execution, out, tell, where="inline")


class InlineExecution:
    """The tree in threads of this process."""

    def __init__(self, run: Callable[[], object], clients: MemoryClients) -> None:
        self._clients, self._call = clients, BackgroundCall(run, name="inline-execution")

    def ended(self) -> bool:
        if self._call.thread.is_alive():
            return False
        try:
            self._call.result()
        except UserError:
            raise
        except BaseException as error:
            raise ended_with(type(error).__name__, f"{type(error).__name__}: {error}") from error
        return True

    def stop(self) -> None:
        _stop(self._clients, [self._call.thread])


class InlinePrograms:
    """An architecture's programs as threads of this process, each with resources of its own, as on an instance of its own."""

    def __init__(self, prepared: Prepared, clients: MemoryClients) -> None:
        architecture, members = prepared.architecture, prepared.experiment.workers
        assert architecture.program is not None
        functions = Resources(clients)
        clients.run_machine = lambda name, event: execute(
            architecture.machines[name], Context(functions, run=event["run"]), event
        )
        objects = clients.objects(Traffic())
        announce(objects, fleet="inline", run=prepared.run, members=members)
        settings = ServingSettings(fleet="inline", look_s=0.1)
        program = architecture.program.main
        self._threads = [
            runtime.thread(_quietly, program, Resources(clients), settings, name=f"program-{number}")
            for number in range(members)
        ]
        self._execution = ProgramsExecution(
            objects,
            prepared.keys,
            members,
            tolerant=goes_on_without(prepared.experiment),
            release=partial(_stop, clients, self._threads),
            alive=lambda: any(thread.is_alive() for thread in self._threads),
        )
        for thread in self._threads:
            thread.start()

    def ended(self) -> bool:
        return self._execution.ended()

    def stop(self) -> None:
        self._execution.stop()


def _stop(clients: MemoryClients, threads: Sequence[runtime.Thread]) -> None:
    """A run at rest is written down faster. One that still computes after STOP_S ends with the process."""
    clients.stop()
    end_s = runtime.monotonic() + STOP_S
    for thread in threads:
        thread.join(max(0.0, end_s - runtime.monotonic()))


def _quietly(program: Callable[..., None], resources: Resources, settings: ServingSettings) -> None:
    """A program that gave up has left its word in the object store: that is what the runner reads."""
    with suppress(Exception):
        program(resources, settings)
