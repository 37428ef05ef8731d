"""An interpreter of an architecture's tree, beside `workflow.execute` and `asl`: the same steps in simulated time.

States are counted and timed as `crossover/asl/` lays them out. Minibatches of one worker are walked as a group: the same phases in the same
order of time, without an event for each; where the account's concurrency could bind, each is a process of its own.
"""

from collections.abc import Generator
from typing import Any

import simpy

from crossover.simulation.calibration import cold_start_s
from crossover.simulation.kernel import SimProcess
from crossover.simulation.usage import WhereInRun
from crossover.simulation.world import Model, Script, SimulatedInvocation, World
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence, Step


class Walk:
    """Walks trees of one world. `models`: how each step is simulated, by name."""

    def __init__(self, world: World, models: dict[str, Model]) -> None:
        self._world, self._models = world, models
        self._env, self._calibration = world.env, world.calibration
        # Whether more functions could ever run side by side than the account allows.
        limit, workload = self._calibration.concurrency, world.workload
        self._grouped = limit is None or world.workers * (workload.minibatches + 2) <= limit

    def run(self, node: Node, place: WhereInRun, *, last: bool = True) -> SimProcess:
        """`last`: whether the node ends its machine."""
        match node:
            case Step():
                yield from self._step(node, place)
            case Sequence(nodes=nodes):
                for child in nodes:
                    yield from self.run(child, place, last=last and child is nodes[-1])
            case Parallel(branches=branches):
                self._enter(place, 1)
                yield from self._together([self._branch(branch, place.copy()) for branch in branches])
            case ForEach():
                yield from self._each(node, place)
            case Repeat():
                yield from self._repeat(node, place, last=last)
            case Child(body=body):
                self._enter(place, 1)
                place.debt_s += self._calibration.child_s
                yield from self.run(body, place, last=True)

    def _enter(self, place: WhereInRun, states: int) -> None:
        self._world.transitions += states
        place.debt_s += states * self._calibration.transition_s

    def _pay(self, place: WhereInRun) -> SimProcess:
        """Let the time pass that states have taken since the last wait."""
        if place.debt_s:
            debt_s, place.debt_s = place.debt_s, 0.0
            yield self._env.timeout(debt_s)

    def _branch(self, node: Node, place: WhereInRun) -> SimProcess:
        yield from self.run(node, place, last=False)
        self._enter(place, 1)  # the state that drops the branch's result
        yield from self._pay(place)

    def _together(self, branches: list[Generator[simpy.Event, Any, None]]) -> SimProcess:
        yield self._env.all_of([self._env.process(branch) for branch in branches])

    def _each(self, node: ForEach, place: WhereInRun) -> SimProcess:
        self._enter(place, 2)
        count = self._world.workers if node.count == "workers" else place.minibatches
        model = self._models.get(node.body.name) if isinstance(node.body, Step) else None
        grouped = self._grouped and node.item == "minibatch"
        if isinstance(node.body, Step) and model is not None and model.script is not None and grouped:
            yield from self._group(node.body, model, place, count)
            return
        yield from self._pay(place)
        yield from self._together([self._branch(node.body, place.copy(**{node.item: n})) for n in range(count)])

    def _repeat(self, node: Repeat, place: WhereInRun, *, last: bool) -> SimProcess:
        self._enter(place, 1)
        place.synchronised = place.epoch_finished = place.finished = False
        polled = node.every_s and isinstance(node.body, Step) and self._models[node.body.name].polls
        if polled:
            assert isinstance(node.body, Step)
            yield from self._poll(node.body, node, place)
        else:
            while True:
                yield from self.run(node.body, place, last=False)
                self._enter(place, 1)
                if getattr(place, node.until):
                    break
        if last:
            self._enter(place, 1)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, step: Step, place: WhereInRun) -> SimProcess:
        world, model = self._world, self._models[step.name]
        self._enter(place, 1)
        place.debt_s += self._calibration.invoke_s
        yield from self._pay(place)
        yield from world.slots.take()
        cold = world.environments(step.name).enter(self._env.now) == 1
        init_s = self._init_s(step) if cold else 0.0
        if init_s:
            yield self._env.timeout(cold_start_s(init_s))
        if model.living is not None:
            yield from self._live(step, model, place, cold, init_s)
        else:
            assert model.script is not None
            yield from self._play(step, model.script(world, place), place, cold, init_s)
        world.environments(step.name).leave(self._env.now)
        world.slots.give()
        if model.changes is not None:
            model.changes(world, place)

    def _init_s(self, step: Step) -> float:
        torch = step.needs_torch(self._world.experiment)
        return self._calibration.cold_torch_s if torch else self._calibration.cold_s

    def _own_s(self, step: Step) -> float:
        """What an invocation takes outside its stages."""
        torch = step.needs_torch(self._world.experiment)
        return self._calibration.torch_step_s if torch else self._calibration.plain_step_s

    def _play(self, step: Step, script: Script, place: WhereInRun, cold: bool, init_s: float) -> SimProcess:
        world, env = self._world, self._env
        luck, host = world.luck[place.worker], world.host(place.worker)
        request, compute = luck.request(), luck.compute()
        began, stages = env.now, []
        at = began + self._own_s(step)
        for phase in script.phases:
            if phase.link and at > env.now:
                yield env.timeout(at - env.now)
            start, at = at, phase.end(at, host, request, compute)
            stages.append((phase.stage, at - start, 1))
        if at > env.now:
            yield env.timeout(at - env.now)
        world.usage.add(
            world.use(step),
            place,
            started_at=began,
            wall_s=env.now - began,
            init_s=init_s,
            cold=cold,
            tally=script.tally,
            stages=stages,
        )

    def _live(self, step: Step, model: Model, place: WhereInRun, cold: bool, init_s: float) -> SimProcess:
        world, env = self._world, self._env
        assert model.living is not None
        invocation = SimulatedInvocation(env.now, env.now + world.experiment.functions.timeout_s)
        entered = place.copy()
        own_s = self._own_s(step)
        if own_s:
            yield env.timeout(own_s)
        yield from model.living(world, place, invocation)
        world.usage.add(
            world.use(step),
            entered,
            started_at=invocation.started_at,
            wall_s=env.now - invocation.started_at,
            init_s=init_s,
            cold=cold,
            tally=invocation.tally,
            stages=invocation.as_stages(),
            notes=invocation.notes,
        )

    def _group(self, step: Step, model: Model, place: WhereInRun, count: int) -> SimProcess:
        """One worker's minibatches side by side."""
        world, env = self._world, self._env
        self._world.transitions += 2 * count  # each: the step, and the state that drops its result
        place.debt_s += self._calibration.transition_s + self._calibration.invoke_s
        yield from self._pay(place)
        world.slots.grow(count)
        cold = world.environments(step.name).enter(env.now, count)
        assert model.script is not None
        luck, host, use, own_s = world.luck[place.worker], world.host(place.worker), world.use(step), self._own_s(step)
        full_init_s = self._init_s(step)
        scripts, init, began, request, compute = [], [], [], [], []
        for n in range(count):
            place.minibatch = n
            scripts.append(model.script(world, place))
            init.append(full_init_s if n < cold else 0.0)
            began.append(env.now + cold_start_s(init[-1]))
            request.append(luck.request())
            compute.append(luck.compute())
        place.minibatch = 0
        at = [start + own_s for start in began]
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
                init_s=init[n],
                cold=n < cold,
                tally=scripts[n].tally,
                stages=stages[n],
                minibatch=n,
            )
        if count:
            yield env.timeout(max(at) - env.now)
        world.environments(step.name).leave(env.now, count)
        world.slots.give(count)
        place.debt_s += self._calibration.transition_s

    def _poll(self, step: Step, node: Repeat, place: WhereInRun) -> SimProcess:
        """Poll after poll until the gate is open, worked out afterwards: between two polls nothing but time passes."""
        world, env, model, calibration = self._world, self._env, self._models[step.name], self._calibration
        assert model.polls is not None
        assert model.script is not None
        gate, script, own_s = model.polls(world, place), model.script(world, place), self._own_s(step)
        yield from self._pay(place)
        look_s = own_s + sum(phase.request_s for phase in script.phases)
        between_s = 2 * calibration.transition_s + calibration.invoke_s + node.every_s + calibration.transition_s
        environments = world.environments(step.name)
        began = env.now + calibration.transition_s + calibration.invoke_s
        # The first may start cold, and holds its slot while it looks; later ones find its environment warm.
        cold = environments.enter(env.now) == 1
        world.slots.grow(1)
        init_s = self._init_s(step) if cold else 0.0
        began += cold_start_s(init_s)
        yield from gate.wait()
        opened = gate.opened_s
        polls, most = 1, max(model.patience_s, look_s)
        while began + most < opened:
            first = polls == 1
            # Equal polls need no loop, unless each leaves a record.
            times = (
                1 if first or world.usage.keep_records else max(1, int((opened - began - most) / (most + between_s)))
            )
            self._looked(step, script, place, began, most, init_s if first else 0.0, cold and first, times)
            began += times * (most + between_s)
            polls += times
        end = max(began + look_s, min(opened + script.phases[-1].request_s, began + most))
        self._looked(step, script, place, began, end - began, init_s if polls == 1 else 0.0, cold and polls == 1)
        # Task and Choice per poll, and a Wait between two.
        world.transitions += 2 * polls + (polls - 1)
        if end > env.now:
            yield env.timeout(end - env.now)
        environments.leave(env.now)
        world.slots.give()
        place.synchronised = True
        place.debt_s += calibration.transition_s

    def _looked(
        self,
        step: Step,
        script: Script,
        place: WhereInRun,
        began: float,
        wall_s: float,
        init_s: float,
        cold: bool,
        times: int = 1,
    ) -> None:
        world = self._world
        stage_s = wall_s - self._own_s(step)
        world.usage.add(
            world.use(step),
            place,
            started_at=began,
            wall_s=wall_s,
            init_s=init_s,
            cold=cold,
            tally=script.tally,
            stages=[("synchronise", stage_s, 1)],
            times=times,
        )
