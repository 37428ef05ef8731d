"""The CDK app: `cdk deploy crossover-<experiment> -c config=config/spirt.yaml`.

`-c set='training.epochs=3 workers=2'` changes fields of the YAML. Without an experiment it lists those of config/. The only place of the
infrastructure that reads what the CDK command line hands over; everything else takes arguments.
"""

import re
import sys
from pathlib import Path

from stacks.synthesis import compose, feature_flags  # isort: skip  (chooses the Node before aws_cdk starts one)
from aws_cdk import Annotations, App, Stack

from cdk import nag
from crossover import own_code, validation
from crossover.errors import UserError
from crossover.validation import account_file, documents


def main() -> int:
    """0, or 2 with one line that says what to mend."""
    app = App(context=feature_flags() | _arguments())
    try:
        config = app.node.try_get_context("config")
        if not config:
            return _list_experiments()
        overrides = str(app.node.try_get_context("set") or "").split()
        experiment = validation.load(config, overrides)
        if current := app.node.try_get_context(
            "current"
        ):  # where `crossover deploy` was called: this process runs elsewhere
            own_code.look_in(Path(config).parent, current)
        validation.check_deployment(experiment)
        compose(app, experiment, account=account_file.load())
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    nag.check(app)
    app.synth()
    return 0


def _list_experiments() -> int:
    """A stack for each file of config/, since `cdk ls` shows and `cdk bootstrap` needs one. None can be deployed, and none has a name that
    `cdk destroy` could be asked for.
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
    """`python app.py -c config=...`: the same as through the CDK command line, which passes context by itself."""
    given = [value for flag, value in zip(sys.argv, sys.argv[1:], strict=False) if flag in ("-c", "--context")]
    return dict(pair.partition("=")[::2] for pair in given)


if __name__ == "__main__":
    sys.exit(main())
