"""Interpreter of an architecture's tree in simulated time; `workflow.execute` and `state_machines` interpret the same steps.

States are counted as `crossover/workflow/state_machines.py` lays them out. Tasks take time: from the end of one to the start of the next. A
Map's branches begin one after another and share the random factor of their first task; a Distributed Map takes more time.

The minibatches of one worker are walked as a group: the same phases in the same order of time, without an event for each. If the account's
concurrency could limit them, each is a process of its own.
"""

import json
from collections.abc import Generator, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import simpy

from crossover.simulation.kernel import SimProcess, WhereInRun
from crossover.simulation.world import Model, Script, SimulatedInvocation, World
from crossover.workflow import START, Child, ForEach, Node, Parallel, Repeat, Sequence, Step
from crossover.workflow.infrastructure import most_minibatches
from crossover.workflow.state_machines import fits_inline

EVENT_BYTES = len(json.dumps(START))  # all that travels as state, whatever a Map leaves


class InvocationStart(NamedTuple):
    """The start of an invocation. `cold`: whether it is a cold start; `wait_s`: seconds of waiting that are not billed; `init_s`: seconds
    of INIT, which are billed.
    """

    cold: bool = False
    wait_s: float = 0.0
    init_s: float = 0.0


WARM = InvocationStart()


class Walk:
    """Interpreter that simulates the tree of an architecture's steps in a simulated cloud (`World`), to which it adds time and usage."""

    def __init__(self, world: World, models: dict[str, Model]) -> None:
        """Prepare to simulate trees in `world`. `models`: for each step by its name, the way it is simulated."""
        self._world, self._models = world, models
        self._env, self._calibration = world.env, world.calibration
        self._task_s = self._calibration.task_s + EVENT_BYTES * self._calibration.payload_s_byte
        # Whether more functions could ever run side by side than the account allows.
        limit, workload = self._calibration.concurrency, world.workload
        self._grouped = limit is None or world.workers * (workload.minibatches + 2) <= limit

    @cached_property
    def _most_minibatches(self) -> int | None:
        """Largest number of minibatches in any round of the run; None if it is not known without loading the data set."""
        return most_minibatches(self._world.experiment)

    def run(self, node: Node, place: WhereInRun, *, last: bool = True) -> SimProcess:
        """Simulate a node of the tree and all nodes below it, as a simpy process. `place`: position in the run, which the steps change;
        `last`: whether the node is the last one of its state machine.
        """
        match node:
            case Step():
                yield from self._run_step(node, place)
            case Sequence(nodes=nodes):
                for child in nodes:
                    yield from self.run(child, place, last=last and child is nodes[-1])
            case Parallel(branches=branches):
                self._world.transitions += 1
                yield from self._run_branches(place, [(branch, place.copy()) for branch in branches])
            case ForEach():
                yield from self._run_map(node, place)
            case Repeat():
                yield from self._run_loop(node, place, last=last)
            case Child(body=body):
                self._world.transitions += 1
                place.debt_s += self._calibration.child_s
                yield from self.run(body, place, last=True)

    def _seconds_until_task(self, place: WhereInRun) -> float:
        """Return the seconds from the end of the last task to the start of the next one, including the delays collected in `place.debt_s`,
        and reset these.
        """
        factor = place.started or self._world.factors[place.worker].draw_task_factor()
        seconds, place.debt_s, place.started = place.debt_s + factor * self._task_s, 0.0, 0.0
        return seconds

    def _run_branch(self, node: Node, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, one branch of a Map or Parallel state, and count one more state transition, for the state that
        drops the branch's result.
        """
        yield from self.run(node, place, last=False)
        self._world.transitions += 1  # the state that drops the branch's result

    def _run_branches(self, place: WhereInRun, branches: Iterable[tuple[Node, WhereInRun]]) -> SimProcess:
        """Simulate, as a simpy process, branches concurrently until all have ended. Each starts `branch_s` seconds after the one before,
        and takes over the delays collected in `place`, which are then reset. `branches`: pairs (node, position in the run).
        """
        factor, running = (
            place.started or self._world.factors[place.worker].draw_task_factor(),
            list[Generator[simpy.Event, Any, None]](),
        )
        for number, (node, branch) in enumerate(branches):
            branch.started = factor
            branch.debt_s = place.debt_s + number * self._calibration.branch_s
            running.append(self._run_branch(node, branch))
        place.debt_s = place.started = 0.0
        yield self._env.all_of([self._env.process(branch) for branch in running])

    def _run_map(self, node: ForEach, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, a Map state over the workers or over the round's minibatches until all branches have ended.
        Minibatches are simulated as one group if the body is a step with a script and the account's concurrency cannot limit them;
        otherwise each branch is a process of its own.
        """
        self._world.transitions += 2
        count = self._world.workers if node.count == "workers" else place.minibatches
        model = self._models.get(node.body.name) if isinstance(node.body, Step) else None
        grouped = self._grouped and node.item == "minibatch"
        if isinstance(node.body, Step) and model is not None and model.script is not None and grouped:
            yield from self._run_group(node.body, model, place, count)
        else:
            yield from self._run_branches(place, [(node.body, place.copy(**{node.item: n})) for n in range(count)])
        self._world.branches = max(self._world.branches, count)
        if not fits_inline(self._world.workers if node.count == "workers" else self._most_minibatches):
            yield self._env.timeout(self._calibration.distributed_s)

    def _run_loop(self, node: Repeat, place: WhereInRun, *, last: bool) -> SimProcess:
        """Simulate, as a simpy process, a loop until its condition holds, a flag of `place` that its steps set and that is reset first. A
        loop that only polls is computed at once instead of poll by poll. `last`: whether the loop is the last node of its state machine.
        """
        self._world.transitions += 1
        place.synchronised = place.epoch_finished = place.finished = False
        polled = node.every_s and isinstance(node.body, Step) and self._models[node.body.name].polls
        if polled:
            assert isinstance(node.body, Step)
            yield from self._poll(node.body, node, place)
        else:
            while True:
                yield from self.run(node.body, place, last=False)
                self._world.transitions += 1
                if getattr(place, node.until):
                    break
        if last:
            self._world.transitions += 1

    # --- steps --------------------------------------------------------------------------------------------------------

    def _run_step(self, step: Step, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, one invocation of a step, including the waits for an execution slot and for an environment, add it
        to the run's usage, then apply the step's changes to `place`. The step's model says whether it is simulated by a script or by a
        process.
        """
        world, model = self._world, self._models[step.name]
        world.transitions += 1
        yield self._env.timeout(self._seconds_until_task(place))
        yield from world.slots.take()
        started = WARM
        if world.environments(step.name).enter(self._env.now):
            started = self._start_cold(step, place, self._env.now)
            yield self._env.timeout(started.wait_s + started.init_s)
        if model.process is not None:
            yield from self._run_process(step, model, place, started)
        else:
            assert model.script is not None
            yield from self._run_script(step, model.script(world, place), place, started)
        world.environments(step.name).leave(self._env.now)
        world.slots.give_back()
        if model.changes is not None:
            model.changes(world, place)

    def _start_cold(self, step: Step, place: WhereInRun, at: float) -> InvocationStart:
        """Count a new environment for an invocation of `step` requested at the simulated time `at` against the limit of new environments,
        and return the waiting and INIT seconds of its cold start.
        """
        world = self._world
        torch, factor = step.needs_torch(world.experiment), world.factors[place.worker].draw_cold_factor()
        wait_s, init_s = self._calibration.cold_start_parts_s(torch=torch, factor=factor)
        return InvocationStart(
            True, world.environments(step.name).reserve_new(at) + wait_s, init_s + world.base_s(step)
        )

    def _overhead_s(self, step: Step) -> float:
        """Return the seconds that an invocation of the step takes besides its stages, for example to open connections."""
        torch = step.needs_torch(self._world.experiment)
        return self._calibration.torch_step_s if torch else self._calibration.plain_step_s

    def _run_script(self, step: Step, script: Script, place: WhereInRun, started: InvocationStart) -> SimProcess:
        """Simulate, as a simpy process, an invocation phase by phase, as its script says, and add it to the run's usage. `started`: how it
        started.
        """
        world, env = self._world, self._env
        factors, host = world.factors[place.worker], world.host(place.worker)
        request, compute = (
            factors.draw_request_factor(),
            factors.draw_compute_factor() * factors.list_host_factors(step.name, place.minibatch + 1)[place.minibatch],
        )
        began, stages = env.now, []
        at = began + self._overhead_s(step)
        for phase in script.phases:
            if phase.link and at > env.now:
                yield env.timeout(at - env.now)
            start, at = at, phase.end(at, host, request, compute)
            stages.append((phase.stage, at - start, 1))
        if at > env.now:
            yield env.timeout(at - env.now)
        world.usage.add(
            world.usage_of(step),
            place,
            started_at=began,
            wall_s=env.now - began,
            init_s=started.init_s,
            cold=started.cold,
            tally=script.tally,
            stages=stages,
        )

    def _run_process(self, step: Step, model: Model, place: WhereInRun, started: InvocationStart) -> SimProcess:
        """Simulate, as a simpy process, an invocation of a step that waits for other workers, by the step's `process`, which gets the
        invocation with its deadline, and add it to the run's usage. `started`: how it started.
        """
        world, env = self._world, self._env
        assert model.process is not None
        invocation = SimulatedInvocation(env.now, env.now + world.experiment.functions.timeout_s)
        entered = place.copy()
        own_s = self._overhead_s(step)
        if own_s:
            yield env.timeout(own_s)
        yield from model.process(world, place, invocation)
        world.usage.add(
            world.usage_of(step),
            entered,
            started_at=invocation.started_at,
            wall_s=env.now - invocation.started_at,
            init_s=started.init_s,
            cold=started.cold,
            tally=invocation.tally,
            stages=invocation.as_stages(),
            notes=invocation.notes,
        )

    def _run_group(self, step: Step, model: Model, place: WhereInRun, count: int) -> SimProcess:
        """Simulate the step for `count` minibatches of one worker concurrently, without a simpy process for each, and add the invocations
        to the run's usage; execution slots are taken without waiting. Ends when the last of them ends; sets `place.minibatch` to 0.
        """
        world, env = self._world, self._env
        self._world.transitions += 2 * count  # each: the step, and the state that drops its result
        yield env.timeout(self._seconds_until_task(place))
        world.slots.take_at_once(count)
        cold = world.environments(step.name).enter(env.now, count)
        assert model.script is not None
        factors, host, use, own_s = (
            world.factors[place.worker],
            world.host(place.worker),
            world.usage_of(step),
            self._overhead_s(step),
        )
        asked_s = [env.now + n * self._calibration.branch_s for n in range(count)]
        starts = [self._start_cold(step, place, asked_s[n]) for n in range(cold)]
        began = [asked_s[n] + each.wait_s + each.init_s for n, each in enumerate(starts)] + asked_s[cold:]
        at = [start + own_s for start in began]
        scripts, request, compute, hosts = [], [], [], factors.list_host_factors(step.name, count)
        for n in range(count):
            place.minibatch = n
            scripts.append(model.script(world, place))
            request.append(factors.draw_request_factor())
            compute.append(factors.draw_compute_factor() * hosts[n])
        place.minibatch = 0
        stages: list[list[tuple[str, float, int]]] = [[] for _ in range(count)]
        for number in range(len(scripts[0].phases)):
            # Links are asked in the order of time, across the group.
            order = sorted(range(count), key=at.__getitem__) if scripts[0].phases[number].link else range(count)
            for n in order:
                phase = scripts[n].phases[number]
                start, at[n] = at[n], phase.end(at[n], host, request[n], compute[n])
                stages[n].append((phase.stage, at[n] - start, 1))
        for n in range(count):
            world.usage.add(
                use,
                place,
                started_at=began[n],
                wall_s=at[n] - began[n],
                init_s=starts[n].init_s if n < cold else 0.0,
                cold=n < cold,
                tally=scripts[n].tally,
                stages=stages[n],
                minibatch=n,
            )
        if count:
            yield env.timeout(max(at) - env.now)
        world.environments(step.name).leave(env.now, count)
        world.slots.give_back(count)

    def _poll(self, step: Step, node: Repeat, place: WhereInRun) -> SimProcess:
        """Simulate, as a simpy process, a loop that polls until its gate opens, count its polls, and set `place.synchronised`. They are
        computed after the gate has opened, because nothing happens between two of them.
        """
        world, env, model = self._world, self._env, self._models[step.name]
        assert model.polls is not None
        assert model.script is not None
        gate, script, own_s = model.polls(world, place), model.script(world, place), self._overhead_s(step)
        look_s = own_s + sum(phase.request_s for phase in script.phases)
        between_s = self._task_s + node.every_s
        environments = world.environments(step.name)
        began = env.now + self._seconds_until_task(place)
        # The first may start cold, and holds its slot while it looks; later ones find its environment warm.
        started = self._start_cold(step, place, began) if environments.enter(env.now) else WARM
        world.slots.take_at_once(1)
        began += sum(started[1:])
        yield from gate.wait()
        opened = gate.opened_s
        polls, most = 1, max(model.polls_for_s, look_s)
        while began + most < opened:
            first = polls == 1
            # Equal polls need no loop, unless each leaves a record.
            times = (
                1 if first or world.usage.keep_records else max(1, int((opened - began - most) / (most + between_s)))
            )
            self._record_polls(step, script, place, began, most, started if first else WARM, times)
            began += times * (most + between_s)
            polls += times
        end = max(began + look_s, min(opened + script.phases[-1].request_s, began + most))
        self._record_polls(step, script, place, began, end - began, started if polls == 1 else WARM)
        # Task and Choice per poll, and a Wait between two.
        world.transitions += 2 * polls + (polls - 1)
        if end > env.now:
            yield env.timeout(end - env.now)
        environments.leave(env.now)
        world.slots.give_back()
        place.synchronised = True

    def _record_polls(
        self,
        step: Step,
        script: Script,
        place: WhereInRun,
        began: float,
        wall_s: float,
        started: InvocationStart,
        times: int = 1,
    ) -> None:
        """Add `times` equal polls to the run's usage. `began`: simulated time at which the first started; `wall_s`: seconds of each;
        `started`: how it started.
        """
        world = self._world
        stage_s = wall_s - self._overhead_s(step)
        world.usage.add(
            world.usage_of(step),
            place,
            started_at=began,
            wall_s=wall_s,
            init_s=started.init_s,
            cold=started.cold,
            tally=script.tally,
            stages=[("synchronise", stage_s, 1)],
            times=times,
        )
