"""The CDK app: `cdk deploy crossover-<experiment> -c config=config/spirt.yaml`.

`-c set='training.epochs=3 workers=2'` changes fields of the YAML; `-c account=123456789012 -c region=us-east-1` say where the stacks go if
nobody is signed in. Without an experiment it lists those of config/. The only place of the infrastructure that reads what the CDK command
line hands over; everything else takes arguments.
"""

import os
import re
import shlex
import sys
from pathlib import Path

from stacks.synthesis import compose, feature_flags  # isort: skip  (chooses the Node before aws_cdk starts one)
from aws_cdk import Annotations, App, Environment, Stack

from cdk import nag
from crossover import user_code, validation
from crossover.errors import UserError
from crossover.running.account import check_partition
from crossover.validation import account_file, documents


def main() -> int:
    """Synthesize the app. Return 0, or 2 after printing one line that says what to correct."""
    app = App(context=feature_flags() | _arguments())
    try:
        config = app.node.try_get_context("config")
        if not config:
            return _list_experiments()
        overrides = shlex.split(str(app.node.try_get_context("set") or ""))  # a value may be quoted, as in a shell
        experiment = validation.load(config, overrides)
        if current := app.node.try_get_context(
            "current"
        ):  # where `crossover deploy` was called: this process runs elsewhere
            user_code.set_folders(Path(config).parent, current)
        validation.check_deployment(experiment)
        compose(app, experiment, account=account_file.load(), env=_environment(app))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    nag.add_checks(app)
    app.synth()
    return 0


def _environment(app: App) -> Environment | None:
    """Return the account and region that `-c account` and `-c region` name, or else the CDK's command line, which has asked AWS whose the
    credentials are. None if nobody names a region. Raises UserError if the region is not one of AWS's own partition.
    """
    account, region = (
        app.node.try_get_context(name) or os.environ.get(f"CDK_DEFAULT_{name.upper()}")
        for name in ("account", "region")
    )
    if region is None:
        return None
    check_partition(region)
    return Environment(account=account, region=region)


def _list_experiments() -> int:
    """Synthesize one stack for each file of config/, and return 0: `cdk ls` shows these stacks, and `cdk bootstrap` needs one. Each
    carries an error, so none can be deployed, and none has the name of an experiment's stack, so `cdk destroy` cannot hit one.
    """
    app = App(builtin_cloud_formation_validation=False)
    for path in sorted(Path("config").glob("*.yaml")):
        try:
            is_experiment = "architecture" in documents.read(path)
        except UserError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        if is_experiment:
            stack = Stack(app, "{}-without-config".format(re.sub("[^A-Za-z0-9]", "-", path.stem)))
            Annotations.of(stack).add_error(f"no experiment is named: add -c config={path}")
    print("no experiment is named: add -c config=config/NAME.yaml to the CDK's command", file=sys.stderr)
    app.synth()
    return 0


def _arguments() -> dict[str, str]:
    """Return the context given in this process's command line by `-c name=value` or `--context name=value`, as {name: value}; a name
    without "=" has the value "". It is for `python app.py -c config=...`: the CDK's own command passes context by itself.
    """
    given = [value for flag, value in zip(sys.argv, sys.argv[1:], strict=False) if flag in ("-c", "--context")]
    return dict(pair.partition("=")[::2] for pair in given)


if __name__ == "__main__":
    sys.exit(main())
