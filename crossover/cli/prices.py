"""`crossover prices refresh`: config/pricing.yaml with today's prices."""

import os
from datetime import UTC, datetime

import typer

from crossover.cli.arguments import Debug
from crossover.cli.credentials import aws_errors_explained
from crossover.reports import prices as listed

app = typer.Typer(help="What AWS charges, as dated data.", no_args_is_help=True)


@app.callback()
def prices() -> None:
    """What AWS charges, as dated data."""


@app.command()
def refresh(debug: Debug = False) -> None:
    """Ask AWS for the prices of instances and write them into config/pricing.yaml with today's date."""
    import boto3

    from crossover.cli.aws.price_list import refreshed

    path, region = listed.PRICING, listed.load().region
    with aws_errors_explained():
        text, changes = refreshed(path.read_text("utf-8"), boto3.Session(), region=region, now=datetime.now(UTC))
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    listed.load(part)  # whole and readable, or the old one stays
    os.replace(part, path)
    for change in changes:
        print(change)
    print(
        f"{len(changes)} prices of instances changed in {region}; all of them dated today. Other items keep their dates"
    )
