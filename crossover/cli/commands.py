"""The sub-commands of `crossover`, as one application. Nothing heavy is imported here: `--help` and a mistake in a file answer at once."""

import typer

from crossover.cli import (
    advise,
    chaos,
    compare,
    deployment,
    destruction,
    doctor,
    new,
    plan,
    price_refresh,
    projection,
    replicate,
    run,
    schema,
    status,
    verification,
)

app = typer.Typer(
    help="One training job on seven distributed architectures: deployed, measured, compared, torn down.",
    epilog="Exit status: 0 done; 1 a run or check failed; 2 yours to mend; 3 nothing holds what advise was asked; 130 Ctrl-C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run,
    compare.compare,
    advise.advise,
    projection.breakeven,
    projection.project,
    replicate.replicate,
    plan.plan,
    doctor.doctor,
    deployment.deploy,
    status.status,
    destruction.destroy,
    verification.verify_aws,
    schema.schema,
    new.new,
    chaos.chaos,
):
    app.command()(command)
app.add_typer(price_refresh.app, name="prices")
