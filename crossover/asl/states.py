"""Adding states to a list of them: names that occur once in the machine, and where a failure leads."""

from dataclasses import dataclass, field

from crossover.asl.events import StateDefinition
from crossover.asl.limits import NAME_LIMIT
from crossover.errors import StaleAttempt


@dataclass(kw_only=True)
class States:
    """One list of states: a machine, a Map's iteration or a Parallel's branch."""

    names: set[str]  # of all states in the machine: Step Functions refuses one that occurs twice, in whatever block
    tolerant: bool = False  # a failure ends this block, not what surrounds it
    times: int = 1  # how often it runs side by side in one execution, which has one history
    states: StateDefinition = field(default_factory=dict)

    def reserve(self, wanted: str) -> str:
        """A name for a state of this block that no other state of the machine has."""
        unique, n = wanted[:NAME_LIMIT], 1
        while unique in self.names:
            n += 1
            unique = f"{wanted[: NAME_LIMIT - len(f' {n}')]} {n}"
        self.names.add(unique)
        return unique

    def add(self, wanted: str, state: StateDefinition, then: str | None) -> str:
        """Add a state that leads on to `then`; its name, made from the one that is wanted."""
        name = self.reserve(wanted)
        self.states[name] = state | ({"Next": then} if then else {"End": True})
        return name

    def ending(self, wanted: str, failure: StateDefinition, *, cause: str) -> str:
        """Add the end of a way that failed; the name of its first state. In a tolerant block it ends that block alone, unless `cause`, a
        path, names StaleAttempt: a worker that gave way to another attempt is no dead worker, so its execution ends.
        """
        name = self.reserve(wanted)
        if not self.tolerant:
            self.states[name] = {"Type": "Fail", **failure}
            return name
        alone, gave_way = self.reserve(f"{wanted} alone"), self.reserve(f"{wanted} late")
        names_it = {"Variable": cause, "StringMatches": f"*{StaleAttempt.__name__}*"}
        self.states[name] = {
            "Type": "Choice",
            "Choices": [{"And": [{"Variable": cause, "IsPresent": True}, names_it], "Next": gave_way}],
            "Default": alone,
        }
        self.states[alone] = {"Type": "Pass", "Result": {}, "End": True}
        self.states[gave_way] = {"Type": "Fail", **failure}
        return name

    def failing(self, subject: str) -> list[StateDefinition]:
        """A Catch that ends the execution with its cause behind the name of the step, worker and round."""
        failed = self.ending(
            f"{subject} failed",
            {
                # Not the caught error's own name: a child's is States.TaskFailed, and a Fail state must not raise a States error.
                "Error": "StepFailed",
                "CausePath": f"States.Format('{subject} failed, worker {{}}, epoch {{}}, round {{}}: {{}}: {{}}', "
                "$.worker, $.epoch, $.round, $.failure.Error, $.failure.Cause)",
            },
            cause="$.failure.Cause",
        )
        return [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.failure", "Next": failed}]
