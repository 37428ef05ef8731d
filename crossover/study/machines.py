"""Where trials run: in this process, or on stacks that come with their first trial, are shared, and go after their last."""

import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from crossover import running
from crossover.costs.budget import BudgetReached
from crossover.errors import UserError
from crossover.experiment import Experiment
from crossover.reports.folder import RunFolder
from crossover.running import baseline
from crossover.running.cdk_process import synthesized
from crossover.running.following import OnProgress
from crossover.running.local import run_on_cloud
from crossover.running.resumption import Unfinished


class Pruned(UserError):
    """The trial was stopped after an epoch: others promise more."""


ENDED = (BudgetReached, Pruned)  # what stops a run and breaks nothing


class TrialMachine(Protocol):
    """Within its block: what runs trials one at a time."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        """Of what `out` holds unfinished it goes on."""

    def leave(self, experiment: Experiment) -> None:
        """No further trial of its stack will come."""

    def standing_usd(self) -> float:
        """What stacks have cost besides runs, so far."""

    def beside_usd(self, experiment: Experiment, *, seconds: float) -> float:
        """What stacks are going to cost besides a run that takes `seconds`."""


class InThisProcess:
    """Runs inline: nothing stands between them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing was started."""

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        return running.run_inline(
            experiment, out, watch, resume=baseline.goes_on(experiment, out, where="inline", cores=os.cpu_count())
        )

    def leave(self, experiment: Experiment) -> None:
        """Nothing stands."""

    def standing_usd(self) -> float:
        return 0.0

    def beside_usd(self, experiment: Experiment, *, seconds: float) -> float:
        return 0.0


class OnThisMachine(InThisProcess):
    """The cloud on this machine, started when the first run needs it and shared by all. All goes with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._cloud: Any = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, experiment: Experiment, out: Path, watch: OnProgress) -> RunFolder:
        from crossover.local import processes

        if self._cloud is None:
            self._start()

        def one(each: Experiment, into: Path, unfinished: Unfinished | None) -> RunFolder:
            if _stack(experiment) not in self._cloud.stacks():
                with processes.temporary_folder() as assembly:
                    self._cloud.deploy(synthesized(experiment, assembly))
            return run_on_cloud(self._cloud, each, into, watch, unfinished=unfinished)

        cores = os.cpu_count()
        resume = baseline.goes_on(experiment, out, where="local", cores=cores)
        try:
            return baseline.with_baseline(one, experiment, out, where="local", resume=resume, cores=cores)
        except ENDED:
            raise
        except Exception:  # interrupted, it leaves its stack to the cloud's end, which is next
            self.leave(experiment)
            raise

    def leave(self, experiment: Experiment) -> None:
        if self._cloud is not None and _stack(experiment) in self._cloud.stacks():
            self._cloud.destroy(_stack(experiment))

    def _start(self) -> None:
        from crossover.local import processes, tools
        from crossover.local.cloud import LocalCloud

        tools.check()
        folder = self._stack.enter_context(processes.temporary_folder())
        self._cloud = self._stack.enter_context(LocalCloud(folder / "cloud"))


def _stack(experiment: Experiment) -> str:
    return f"{experiment.project}-{experiment.name}"
