"""The way from an experiment to a cloud assembly: its own stack, found by its architecture's name, and the shared ones that it needs.

Needs neither network nor credentials nor Docker: assets are existing files, or placeholders.
"""

import importlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

from aws_cdk import App, Environment, Stack

from cdk import organisation
from cdk.experiment_stack import Props
from cdk.expiry import CleanUpAlarm, Expiry
from cdk.guards import stack_tags, tag_resources
from cdk.names import stack_name
from cdk.network import SharedNetwork
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.training.gradients import build_baselines
from crossover.validation.account_file import AccountFile
from crossover.workflow.architecture import architecture_of, import_file
from crossover.workflow.infrastructure import shared_stacks

ROOT = Path(__file__).parent.parent
LAYERS = ROOT / "build"


def compose(
    app: App,
    experiment: Experiment,
    *,
    now: datetime | None = None,
    layers: Path = LAYERS,
    account: AccountFile | None = None,
    env: Environment | None = None,
) -> Stack:
    """Add to the app the stacks that the experiment needs: its own, the shared ones it depends on, and those of its baselines. Return the
    experiment's own stack.

    `now`: when the lifetime begins; it reaches only the manifest, so equal YAMLs give equal templates. `layers`: folder with the built
    layers; `account`: settings of the organisation's AWS account; `env`: account and region; if None, the stacks fit any. Raises
    ConfigError for what cannot be deployed. The app is not synthesized.
    """
    now = now or datetime.now(UTC)
    if account:
        organisation.set_account_file(app, account)
        experiment = account.place_in_zone(experiment)
    stack = _build_with_shared(app, experiment, now=now, layers=layers, env=env)
    for companion in build_baselines(experiment):  # one command deploys all
        stack.add_stack_dependency(_build_with_shared(app, companion, now=now, layers=layers, env=env))
    return stack


def _build_with_shared(
    app: App, experiment: Experiment, *, now: datetime, layers: Path, env: Environment | None
) -> Stack:
    """Build the stack of one experiment and the shared stacks that it needs, with the dependencies between them; return the former. If it
    needs no shared stack, it also contains its own expiry; with `lifetime.notify`, an alarm for a clean-up that does not start.
    """
    shared = [_build_shared_stack(app, part, experiment, now=now, env=env) for part in shared_stacks(experiment)]
    stack = _stack_of(experiment)(app, Props(experiment=experiment, built=layers, now=now, env=env))
    # `shared` names them in the order in which they need one another.
    for later, earlier in combinations([stack, *reversed(shared)], 2):
        later.add_stack_dependency(earlier)
    if not shared:  # no network's expiry would end it
        expiry = Expiry(stack, "Expiry", project=experiment.project, only=stack.stack_name)
        expiry.delete_after(stack.node.children)
    if topic := experiment.lifetime.notify:
        network = SharedNetwork(stack, experiment.project)
        queue = network.id_of("undelivered") if shared else expiry.undelivered.queue_name
        CleanUpAlarm(stack, "CleanUpAlarm", queue=queue, topic=topic)
    return stack


def _build_shared_stack(
    app: App, part: str, experiment: Experiment, *, now: datetime, env: Environment | None
) -> Stack:
    """Return the shared stack `part`, "network" or "broker". The first call builds it, with the settings of that `experiment`; later calls
    return the same stack. `now`: when its lifetime begins; `env`: account and region, None for any.
    """
    name = stack_name(experiment.project, part)
    found = app.node.try_find_child(name)
    if isinstance(found, Stack):
        return found
    made: Stack = importlib.import_module(f"stacks.{part}").STACK(
        app,
        name,
        experiment=experiment,
        env=env,
        description=f"Crossover: the {part} that the project's experiments share",
        tags={**organisation.account_of(app).tags, **stack_tags(experiment, part, now=now)},
        analytics_reporting=False,
    )
    tag_resources(made, experiment, part)
    organisation.apply_account_policy(made)
    return made


def synthesize(
    experiment: Experiment,
    out: Path,
    *,
    now: datetime | None = None,
    layers: Path = LAYERS,
    account: AccountFile | None = None,
) -> Path:
    """Write the experiment's cloud assembly (templates and assets) to the folder `out`, and return that folder.

    `now`: when the stacks' lifetime begins, None for this moment; `layers`: folder with the built layers; `account`: settings of the
    organisation's AWS account. Raises ConfigError for what cannot be deployed. CDK's template validator is off here (app.py has it on).
    The assembly fits accounts that are bootstrapped with CDK's default qualifier, as the local cloud is.
    """
    flags = {name: value for name, value in feature_flags().items() if name != "@aws-cdk/core:bootstrapQualifier"}
    app = App(outdir=str(out.resolve()), context=flags, builtin_cloud_formation_validation=False)
    compose(app, experiment, now=now, layers=layers, account=account)
    app.synth()
    return out


def feature_flags() -> dict[str, Any]:
    """Return the `context` of cdk.json (CDK feature flags), so that the CDK command line and this project synthesize the same templates."""
    return dict(json.loads((ROOT / "cdk.json").read_text(encoding="utf-8"))["context"])


def _stack_of(experiment: Experiment) -> Callable[[App, Props], Stack]:
    """Return the stack class for the experiment's architecture: STACK of `stacks/<architecture>.py`, or of stacks/derived.py if there is no
    such file.

    Raises ConfigError if the file defines no STACK, or if the architecture is a program on EC2 and has no such file.
    """
    file = f"stacks/{experiment.module}.py"
    if not (ROOT / file).exists():
        file = "stacks/derived.py"
        if architecture_of(experiment).program:
            raise ConfigError(
                f"architecture: {experiment.architecture!r}: a program for EC2, whose fleet no tree asks for; expected "
                f"stacks/{experiment.module}.py with a STACK, such as stacks/p2p_instance.py"
            )
    stack: Callable[[App, Props], Stack] | None = getattr(import_file(file), "STACK", None)
    if stack is None:
        raise ConfigError(
            f"architecture: {experiment.architecture!r}: {file} defines no STACK; expected an ExperimentStack, or no such file: the stack "
            "is then derived from the tree"
        )
    return stack
