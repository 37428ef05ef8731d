"""Refresh the AWS prices that every estimate uses."""

import os
from datetime import UTC, datetime
from typing import Annotated

import typer

from crossover.cli.arguments import Debug, require_checkout
from crossover.errors import CrossoverError, print_line
from crossover.reports import prices
from crossover.running.account import explain_aws_errors

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False)


@app.command()
def refresh(
    region: Annotated[str, typer.Option(help="AWS region of the prices.", show_default="the file's region")] = "",
    debug: Debug = False,
) -> None:
    """Get today's prices from AWS and write them, with today's date, into config/pricing.yaml. Prices that AWS does not list stay.

    If no price can be refreshed, the command fails and the file is not changed.
    """
    require_checkout("prices refresh")
    import boto3

    from crossover.running.price_list import refresh_prices

    path, listed_now = prices.PRICING, prices.load()
    region = region or listed_now.region
    with explain_aws_errors():
        text, changes, kept = refresh_prices(
            path.read_text("utf-8"), boto3.Session(), region=region, now=datetime.now(UTC)
        )
    if len(kept) == len(listed_now.items):
        raise CrossoverError(f"no price could be refreshed, and {path.name} is unchanged; the first reason: {kept[0]}")
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    prices.load(part)  # whole and readable, or the old one stays
    os.replace(part, path)
    for line in [*changes, *(f"kept  {reason}" for reason in kept)]:
        print_line(line)
    asked = len(listed_now.items) - len(kept)
    print_line(
        f"{len(changes)} of {asked} prices changed in {region} and are dated today; {len(kept)} keep their price and date"
    )
