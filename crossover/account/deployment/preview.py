"""What a deployment would change, before it does: the templates that stand against those that were synthesized.

What is replaced follows AWS's own rules, as the CDK's `@aws-cdk/cloudformation-diff` knows them from CloudFormation's resource
specification. A change set would say it too, but leaves a stack behind that a direct deployment cannot take up.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossover.account.resources import stacks
from crossover.clients import aws_calls
from crossover.errors import UserError
from crossover.experiment import Experiment

PACKAGE = "@aws-cdk/cloudformation-diff"  # of the version that package-lock.json pins
# Told [[stack, old, new], ...] on standard input; prints [[stack, logical id, type, impact, [property, ...]], ...].
PROGRAM = """
const { fullDiff } = require('@aws-cdk/cloudformation-diff'), found = [];
for (const [stack, old, made] of JSON.parse(require('fs').readFileSync(0, 'utf8')))
  fullDiff(old, made).resources.forEachDifference((name, each) => found.push(
    [stack, name, each.newResourceType || each.oldResourceType, each.changeImpact, Object.keys(each.propertyUpdates)]));
console.log(JSON.stringify(found));
"""
VERBS = {
    "WILL_CREATE": "add",
    "WILL_UPDATE": "change",
    "WILL_REPLACE": "replace",
    "MAY_REPLACE": "perhaps replace",
    "WILL_DESTROY": "remove",
    "WILL_ORPHAN": "let go",
}
# A run works on them, or in them: it does not survive that one of them goes.
IN_USE = (
    "AWS::AmazonMQ::Broker",
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::EC2::Instance",
    "AWS::EC2::Subnet",
    "AWS::EC2::VPC",
    "AWS::S3::Bucket",
    "AWS::SecretsManager::Secret",
)
SHOWN = 12
NOT_THERE = ("ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS")  # the CDK makes such a stack anew

Templates = Mapping[str, Mapping[str, Any]]  # by stack, in the order of their deployment
Differ = Callable[[str], str | None]  # what PROGRAM prints for what it is told; None where it cannot be had


@dataclass(frozen=True)
class PreviewedChange:
    """`impact` as the CDK calls it."""

    stack: str
    name: str
    type: str
    impact: str
    properties: tuple[str, ...]

    @property
    def takes_away(self) -> bool:
        return self.impact not in ("WILL_CREATE", "WILL_UPDATE", "NO_CHANGE")

    def __str__(self) -> str:
        because = f" ({', '.join(self.properties)})" if self.properties else ""
        return f"{VERBS.get(self.impact, self.impact)} {self.type} {self.name}{because}"


def show(session: Any, experiment: Experiment, assembly: Path, *, differ: Differ, tell: Callable[[str], None]) -> None:
    """Tell what each stack would become. Raises UserError where a run that is under way would lose what it works on."""
    wanted = synthesized(assembly)
    there = {name: template for name in wanted if (template := deployed(session, name)) is not None}
    differing = [name for name in there if there[name] != wanted[name]]
    changes = _changes([[name, there[name], wanted[name]] for name in differing], differ)
    for name, template in wanted.items():
        for line in _lines(name, template, there, differing, changes):
            tell(line)
    running = runs_under_way(session, experiment.project) if differing else {}
    for name in differing:
        shared = name in [f"{experiment.project}-{kind}" for kind in stacks.SHARED]
        concerned = {each: run for each, run in running.items() if shared or name == each}
        if concerned and changes is None:
            raise UserError(_refusal(name, concerned, "change something that it works on"))
        lost = [each for each in changes or () if each.stack == name and each.takes_away and each.type in IN_USE]
        if concerned and lost:
            raise UserError(_refusal(name, concerned, "; ".join(map(str, lost))))


def _refusal(name: str, concerned: Mapping[str, str], what: str) -> str:
    runs = " and ".join(f"run {run} of {stack}" for stack, run in concerned.items())
    return (
        f"{name}: {runs} is under way, and this deployment would {what}: the run would lose what it works on. Deploy again "
        f"when it has ended; crossover run CONFIG --on aws --resume {next(iter(concerned.values()))} follows it, Ctrl-C there ends it"
    )


def _lines(
    name: str,
    template: Mapping[str, Any],
    there: Templates,
    differing: Sequence[str],
    changes: Sequence[PreviewedChange] | None,
) -> Iterator[str]:
    if name not in there:
        kinds = Counter(str(each["Type"]) for each in template["Resources"].values())
        most = ", ".join(f"{count} {kind.removeprefix('AWS::')}" for kind, count in kinds.most_common(4))
        yield f"{name}: new, {kinds.total()} resources ({most}, ...)"
    elif name not in differing:
        yield f"{name}: no change but its time to live"
    elif changes is None:
        yield f"{name}: changes; what they replace cannot be shown, since {PACKAGE} does not answer: make node_modules"
    else:
        mine = sorted((each for each in changes if each.stack == name), key=lambda each: not each.takes_away)
        yield f"{name}: {len(mine)} changes" if mine else f"{name}: no change of its resources"
        away = sum(each.takes_away for each in mine)
        shown = max(SHOWN, away)
        yield from (f"  {each}" for each in mine[:shown])
        if len(mine) > shown:
            yield f"  and {len(mine) - shown} more"


def _changes(pairs: Sequence[Sequence[Any]], differ: Differ) -> list[PreviewedChange] | None:
    """[] where no template differs, which needs no program; None where it cannot be told."""
    if not pairs:
        return []
    printed = differ(json.dumps(pairs))
    if printed is None:
        return None
    found = [
        PreviewedChange(stack, name, type, impact, tuple(properties))
        for stack, name, type, impact, properties in json.loads(printed)
    ]
    return [each for each in found if each.impact != "NO_CHANGE" and each.type != "AWS::CDK::Metadata"]


def synthesized(assembly: Path) -> dict[str, dict[str, Any]]:
    """The assembly's templates by stack, what others depend on first."""
    artifacts = json.loads((assembly / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    found = {name: each for name, each in artifacts.items() if each["type"] == "aws:cloudformation:stack"}
    order = sorted(found, key=lambda name: len(found[name].get("dependencies", [])))
    return {
        name: json.loads((assembly / found[name]["properties"]["templateFile"]).read_text(encoding="utf-8"))
        for name in order
    }


def deployed(session: Any, name: str) -> dict[str, Any] | None:
    """The template as it was handed to CloudFormation, None where there is no such stack."""
    stack = stacks.look(session, name)
    if stack is None or stack.state in NOT_THERE:
        return None
    body = session.client("cloudformation").get_template(StackName=name, TemplateStage="Original")["TemplateBody"]
    found: dict[str, Any] = json.loads(body) if isinstance(body, str) else json.loads(json.dumps(body))
    return found


def runs_under_way(session: Any, project: str) -> dict[str, str]:
    """Run by its experiment's stack, of the whole project: all of them share network and broker."""
    from crossover.running.unattended import under_way

    names = [name.split("/") for name in aws_calls.parameters(session, f"/crossover/{project}/")]
    experiments = sorted({parts[0] for parts in names if parts[1:] in (["run_machine"], ["fleet"])})
    asked = {each: under_way(Experiment(name=each, architecture="", project=project), session) for each in experiments}
    return {f"{project}-{each}": found.run for each, found in asked.items() if found is not None}
