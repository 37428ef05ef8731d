"""A machine's blocks: lists of states, one for the machine itself and one for each iteration of a Map or branch of a Parallel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from crossover.asl import children
from crossover.asl.events import RETRY, StateDefinition, fields
from crossover.asl.limits import check_history, inline
from crossover.asl.states import States
from crossover.workflow import Child, ForEach, Node, Parallel, Repeat, Sequence, Step


@dataclass
class MachineDefinitions:
    """The definitions of an architecture as they are made. No execution lasts longer than `limit_s`: one that hangs is not paid for without
    end.
    """

    counts: Mapping[str, int | None]
    limit_s: int
    definitions: dict[str, StateDefinition] = field(default_factory=dict)
    _children: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, node: Node) -> None:
        assert name not in self.definitions, f"two subtrees are named {name!r}"
        check_history(name, node, self.counts)
        self.definitions[name] = {}  # taken, while its own children are added
        self.definitions[name] = {
            "Comment": f"{name}: generated from the architecture's tree",
            "TimeoutSeconds": self.limit_s,
            **Block(machines=self, names=set()).of(node),
        }

    def add_child(self, child: Child) -> None:
        """Its machine, once: a tree may start the same subtree in several places."""
        if self._children.get(child.name) != child.body:
            self.add(child.name, child.body)
            self._children[child.name] = child.body


@dataclass(kw_only=True)
class Block(States):
    """One list of states, made from a node of the tree."""

    machines: MachineDefinitions

    def of(self, node: Node, *, silent: bool = False) -> StateDefinition:
        """`silent`: the block's last state returns {} (240 echoed events approach the payload limit)."""
        done = self.add("Done", {"Type": "Pass", "Result": {}}, None) if silent else None
        return {"StartAt": self.emit(node, done), "States": self.states}

    def inner(self, node: Node, *, tolerant: bool = False, items: int = 1) -> StateDefinition:
        """A block inside this one."""
        inner = Block(machines=self.machines, names=self.names, tolerant=tolerant, times=self.times * items)
        return inner.of(node, silent=True)

    def emit(self, node: Node, then: str | None) -> str:
        """Add `node`'s states, leading on to `then` (None: the end); the name of its first state."""
        match node:
            case Step():
                return self._task(node, then)
            case Sequence(nodes=nodes):
                for child in reversed(nodes):
                    then = self.emit(child, then)
                assert then is not None, "an empty Sequence"
                return then
            case Parallel():
                return self._parallel(node, then)
            case ForEach():
                return self._map(node, then)
            case Repeat():
                return self._repeat(node, then)
            case Child():
                return self._child(node, then)
        raise TypeError(f"not a node: {node!r}")

    def _task(self, step: Step, then: str | None) -> str:
        return self.add(
            step.name,
            {
                "Type": "Task",
                "Resource": f"${{step_{step.name}}}",
                "Parameters": fields(),
                "Retry": RETRY,
                "Catch": self.failing(step.name),
            },
            then,
        )

    def _child(self, node: Child, then: str | None, *, timeout_s: int | None = None) -> str:
        self.machines.add_child(node)
        return children.start(self, node, then, timeout_s=timeout_s, limit_s=self.machines.limit_s)

    def _parallel(self, node: Parallel, then: str | None) -> str:
        branches = [self.inner(branch) for branch in node.branches]
        return self.add("side by side", {"Type": "Parallel", "Branches": branches, "ResultPath": None}, then)

    def _map(self, node: ForEach, then: str | None) -> str:
        count = self.machines.counts[node.count]
        within = inline(count)
        name = self.reserve(f"each {node.item}")
        self.states[name] = {
            "Type": "Map",
            "ItemsPath": "$.items",
            "ItemSelector": fields(**{node.item: "$$.Map.Item.Value"}),
            "MaxConcurrency": 0 if within or not node.together else count or 0,
            "ItemProcessor": {
                "ProcessorConfig": {"Mode": "INLINE"}
                if within
                else {"Mode": "DISTRIBUTED", "ExecutionType": "STANDARD"},
                **self.inner(node.body, tolerant=node.tolerant, items=count if within and count else 1),
            },
            # One field takes the iterations' results, and they are dropped: only the event goes on.
            "ResultSelector": {},
            "ResultPath": "$.items",
            **({} if within else {"Label": name.replace(" ", "")}),  # unique in the machine as well
            **({"Next": then} if then else {"End": True}),
        }
        listing = {"items.$": f"States.ArrayRange(0, States.MathAdd($.{node.count}, -1), 1)", **fields()}
        return self.add(f"list {node.item}", {"Type": "Pass", "Parameters": listing}, name)

    def _repeat(self, node: Repeat, then: str | None) -> str:
        choice = self.reserve(f"{node.until}?")
        if then is None:  # a Choice cannot end an execution itself
            then = self.add(f"is {node.until}", {"Type": "Pass"}, None)
        timeout_s = node.timeout_s
        first = (
            self._child(node.body, choice, timeout_s=timeout_s)
            if isinstance(node.body, Child)
            else self.emit(node.body, choice)
        )
        again = (
            self.add(f"wait until {node.until}", {"Type": "Wait", "Seconds": node.every_s}, first)
            if node.every_s
            else first
        )
        met = {"Variable": f"$.{node.until}", "BooleanEquals": True, "Next": then}
        self.states[choice] = {"Type": "Choice", "Choices": [met], "Default": again}
        begin = {**fields(since="$$.State.EnteredTime"), "timeout_s": timeout_s}
        del begin["timeout_s.$"]
        return self.add(f"until {node.until}", {"Type": "Pass", "Parameters": begin}, first)
