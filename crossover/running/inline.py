"""Runs in this process on memory stores, and the baselines that run after an experiment."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from crossover import runtime
from crossover.errors import ConfigError, UserError, rebuild_error
from crossover.experiment import Experiment
from crossover.processes import BackgroundCall
from crossover.reports.folder import UNFINISHED, RunFolder, read
from crossover.running import preparing
from crossover.running import resume as resumption
from crossover.running.monitor import OnProgress, finish, save_then_report
from crossover.running.preparing import PreparedRun, attempt_number, collect_versions, prepare, print_data
from crossover.running.resume import Databases, Unfinished, begin_run, keep_resume_data, tolerates_failures
from crossover.simulation.processors import fix_threads
from crossover.stores.clients import MemoryClients
from crossover.stores.protocols import Traffic
from crossover.training.fleet import ProgramsExecution, ServingSettings, announce
from crossover.training.gradients import build_baselines
from crossover.workflow import execute, first_event
from crossover.workflow.architecture import architecture_of
from crossover.workflow.context import Context, Resources

# --- baseline ---------------------------------------------------------------------------------------------------------

BASELINE_FOLDER = "baseline"  # of the GPU fleet's baseline; others add their architecture's name


def list_run_folders(out: Path, experiment: Experiment) -> dict[Path, Experiment]:
    """Return {folder: experiment} in the order of the runs: the experiment itself in `out`, then each of its baselines in a folder inside
    `out`.
    """
    beside = {
        out / (BASELINE_FOLDER if each.module == "gpu" else f"{BASELINE_FOLDER}-{each.module}"): each
        for each in build_baselines(experiment)
    }
    return {out: experiment, **beside}


def has_unfinished_run(out: Path) -> bool:
    """Return whether the folder `out`, or the folder of a baseline inside it, holds an unfinished run."""
    return any(resumption.holds_unfinished(folder) for folder in (out, *out.glob(f"{BASELINE_FOLDER}*")))


def can_resume(experiment: Experiment, out: Path, *, where: str, cores: int | None = None) -> bool:
    """Return whether the unfinished run in `out` was started with this experiment, code, place and machine, so that resuming it gives the
    same result as a run without interruption. True also if that run saved no state and must start again; False if there is no unfinished
    run. Only the first folder that holds an unfinished run counts, the experiment's before those of its baselines.

    `where`: inline or local; `cores`: CPU cores of this machine.
    """
    for folder, each in list_run_folders(out, experiment).items():
        if resumption.holds_unfinished(folder):
            try:
                return resumption.has_no_state(folder) or bool(
                    _load_unfinished(fix_threads(each, cores=cores), folder, where=where)
                )
            except UserError:
                return False
    return False


def run_with_baselines(
    run: Callable[[Experiment, Path, Unfinished | None], RunFolder],
    experiment: Experiment,
    out: Path,
    *,
    where: str,
    resume: bool = False,
    cores: int | None = None,
) -> RunFolder:
    """Run the experiment into the folder `out`, then its baselines into folders inside `out`, one after another, and return the
    experiment's folder. Inline and local, files of an earlier run in such a folder are moved aside first, except those of a resumed run.

    `run`: runs one experiment into a folder, resuming the unfinished run that it gets, or a new one for None; its errors are raised, its
    result is not used. `where`: inline, local or aws. `resume` (inline or local): start with the first experiment whose folder holds an
    unfinished run, anew if that has no state yet, and continue with those after it. `cores`: CPU cores of the machine, None on AWS. Raises
    ConfigError before anything is trained if a baseline cannot divide the data among its workers; with `resume`, UserError or ConfigError
    if there is no run that can be resumed. If a run fails, its error is raised and the later ones do not begin.
    """
    wanted = [(folder, fix_threads(each, cores=cores)) for folder, each in list_run_folders(out, experiment).items()]
    _check_data_divides([each for _, each in wanted[1:]])
    if resume:
        first = next((n for n, (folder, _) in enumerate(wanted) if resumption.holds_unfinished(folder)), 0)
        (folder, each), *wanted = wanted[first:]
        if again := resumption.has_no_state(folder):
            shutil.rmtree(folder / UNFINISHED / "runs", ignore_errors=True)  # records of a run that reached no state
        run(each, folder, None if again else _load_unfinished(each, folder, where=where))
    for folder, each in wanted:
        with nullcontext() if where == "aws" else begin_run(folder, where=where):
            run(each, folder, None)
    return read(out)


def _check_data_divides(beside: Sequence[Experiment]) -> None:
    """Raise ConfigError if the training samples cannot be divided among the workers of one of the baselines in `beside`."""
    from crossover.learning.datasets import count_training_samples  # torch comes with them
    from crossover.learning.staging import plan_staging

    samples = count_training_samples(beside[0]) if beside else 0  # the same data for all, loaded once
    for each in beside:
        try:
            plan_staging(architecture_of(each).resolve(each), samples)
        except ConfigError as error:
            raise ConfigError(f"baseline: {each.module}, {each.name}, cannot run: {error}") from error


def _load_unfinished(experiment: Experiment, folder: Path, *, where: str) -> Unfinished:
    """Return the unfinished run in `folder`. Raises UserError if there is none, ConfigError if it was started with another experiment,
    code, place or machine. `where`: inline or local.
    """
    found = resumption.find_unfinished(folder)
    asked = architecture_of(experiment).resolve(experiment)
    found.check(asked, where=where, versions=collect_versions(), code=preparing.digest_code(asked))
    return found


# --- inline -----------------------------------------------------------------------------------------------------------
# The whole run in this process, on memory stores.

STOP_S = 2.0  # time for the threads of a stopped run to end: a minibatch of a small model, or a pause between two polls


def run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, *, resume: bool = False) -> RunFolder:
    """Run the experiment and its baselines in this process, with all data in memory, and return the results folder `out`. Takes seconds;
    meant for development.

    `on_progress`: called after each epoch; `resume`: continue with the unfinished run in `out`. If the run fails, the folder is written
    with the results so far, and the error is raised.
    """

    def run(each: Experiment, folder: Path, unfinished: Unfinished | None) -> RunFolder:
        """Run one experiment into `folder`, and return that folder. `unfinished`: the run to resume, None for a new one."""
        return _run_inline(each, folder, on_progress, unfinished)

    return run_with_baselines(run, experiment, out, where="inline", resume=resume, cores=os.cpu_count())


def _run_inline(experiment: Experiment, out: Path, on_progress: OnProgress, unfinished: Unfinished | None) -> RunFolder:
    """Run one experiment in this process, and return its results folder `out`. `on_progress`: called after each epoch; `unfinished`: the
    run to resume, None for a new one.
    """
    architecture = architecture_of(experiment)
    clients = MemoryClients(workers=experiment.workers, shared_tensors=architecture.tensor_hosts != "per_worker")
    objects = clients.objects(Traffic())
    if unfinished:
        unfinished.restore(objects)
    prepared = prepare(experiment, objects=objects, data=[objects], run=unfinished.run if unfinished else "")

    print_data(prepared)
    if unfinished:
        prepared.note_damage(resumption.rewind(objects, prepared.keys, experiment, lost=True))
    preparing.check_room_for_folder(prepared, out)

    def databases() -> Databases:
        """Return a context manager that gives the workers' databases, {rank: database}. The mapping is empty unless the architecture keeps
        its training state in databases.
        """
        stores = clients.tensor_stores if architecture.state == "database" else []
        return nullcontext({rank: store.with_traffic(Traffic()) for rank, store in enumerate(stores)})

    with keep_resume_data(objects, out, where="inline", databases=databases) as keep:
        tell = save_then_report(keep, on_progress)
        if architecture.run is None:
            return finish(prepared, InlinePrograms(prepared, clients), out, tell, where="inline")
        context = Context(Resources(clients), run=prepared.run)
        event = first_event(
            prepared.run, workers=experiment.workers, attempt=attempt_number(prepared, again=bool(unfinished))
        )
        execution = InlineExecution(partial(execute, architecture.run, context, event), clients)
        return finish(prepared, execution, out, tell, where="inline")


class InlineExecution:
    """An execution of a run's workflow in a thread of this process, which starts at once. `run`: function that executes the workflow;
    `clients`: the in-memory stores that it uses.
    """

    def __init__(self, run: Callable[[], object], clients: MemoryClients) -> None:
        """Start a thread that calls `run`. `clients`: in-memory stores, which `stop` closes."""
        self._clients, self._call = clients, BackgroundCall(run, name="inline-execution")

    def has_ended(self) -> bool:
        """Return True if the workflow has succeeded, False while it runs. If it failed, raise its error: a UserError as it is, any other
        one as RunFailed or as the UserError that its message names.
        """
        if self._call.thread.is_alive():
            return False
        try:
            self._call.result()
        except UserError:
            raise
        except BaseException as error:
            raise rebuild_error(type(error).__name__, f"{type(error).__name__}: {error}") from error
        return True

    def stop(self) -> None:
        """Stop the in-memory stores, which makes the workflow's threads fail, and wait up to STOP_S for its main thread to end."""
        _stop_threads(self._clients, [self._call.thread])


class InlinePrograms:
    """The programs of an architecture that trains without a workflow, each in a thread of this process; an Execution, as `finish` takes it.
    The threads start when the object is created; `has_ended` tells whether the run is over, or raises why it failed; `stop` stops their
    stores, so that they fail, and waits up to STOP_S for them. Each program has resources of its own, as on its own instance.
    """

    def __init__(self, prepared: PreparedRun, clients: MemoryClients) -> None:
        """Start a thread for the program of each worker, and announce the run to them. `prepared`: the run; `clients`: in-memory stores."""
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
            runtime.thread(_run_program, program, Resources(clients), settings, name=f"program-{number}")
            for number in range(members)
        ]
        self._execution = ProgramsExecution(
            objects,
            prepared.keys,
            members,
            tolerant=tolerates_failures(prepared.experiment),
            release=partial(_stop_threads, clients, self._threads),
            can_finish=lambda: any(thread.is_alive() for thread in self._threads),
        )
        for thread in self._threads:
            thread.start()

    def has_ended(self) -> bool:
        """Return True if the run has succeeded, False while its programs work. Raises the error that a program reported, or RunFailed if
        all have ended without finishing.
        """
        return self._execution.has_ended()

    def stop(self) -> None:
        """Stop the programs and the in-memory stores, and wait up to STOP_S for the threads to end."""
        self._execution.stop()


def _stop_threads(clients: MemoryClients, threads: Sequence[runtime.Thread]) -> None:
    """Stop the in-memory stores and wait up to STOP_S in all for `threads` to end, so that they do not slow down what follows. A thread
    that is still computing then ends with the process.
    """
    clients.stop()
    end_s = runtime.monotonic() + STOP_S
    for thread in threads:
        thread.join(max(0.0, end_s - runtime.monotonic()))


def _run_program(program: Callable[..., None], resources: Resources, settings: ServingSettings) -> None:
    """Run `program`, a worker's main function, with its resources and settings. Its error is ignored: the program has written it to the
    object store, where `InlinePrograms.has_ended` finds it.
    """
    with suppress(Exception):
        program(resources, settings)
