"""`crossover probe`: seconds of a training step on this machine's GPU, as a row for `crossover advise --measured`.

It imports PyTorch and typer alone, so that it runs on a notebook beside whatever else is installed there.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossover.errors import ConfigError


def probe(
    model: Annotated[str, typer.Argument(help="Your model, file.py:factory; or a built-in one.", show_default=False)],
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="What to measure.")] = "cuda",
    precision: Annotated[
        Literal["fp32", "fp16", "bf16"], typer.Option(help="What training.precision will be; fp16 needs a GPU.")
    ] = "fp32",
    input: Annotated[str, typer.Option(metavar="SHAPE", help="Of one sample: 3x32x32, or the columns of a table.")] = (
        "3x32x32"
    ),
    classes: Annotated[int, typer.Option(min=1, help="Of the labels.")] = 10,
    numbers: Annotated[bool, typer.Option("--numbers", help="Labels are numbers, not classes.")] = False,
    batch: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Such as 32,128,512.  [default: by device]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="To measure, after the warm-up.")] = 20.0,
    out: Annotated[Path | None, typer.Option(help="File for the row.  [default: standard output]")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure a training step of a model on this machine's GPU and print it as JSON, for `crossover advise --measured`."""
    from crossover.advice import gpu_probe

    row = gpu_probe.measure_row(
        gpu_probe.locate_model(model),
        device=gpu_probe.find_device(device, precision),
        precision=precision,
        input_shape=_parse_numbers(input, "x", "--input", "3x32x32"),
        classes=None if numbers else classes,
        batch_sizes=gpu_probe.BATCH_SIZES[device]
        if batch is None
        else _parse_numbers(batch, ",", "--batch", "32,128,512"),
        seconds=seconds,
    )
    text = json.dumps(row) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _parse_numbers(text: str, between: str, option: str, example: str) -> tuple[int, ...]:
    """Return the whole numbers above 0 in `text`, which `between` separates. Raises ConfigError naming `option`, with an `example`."""
    parts = text.split(between)
    if not all(each.isdecimal() and int(each) > 0 for each in parts):
        raise ConfigError(f"{option}: {text!r} is not allowed; expected whole numbers above 0, such as {example}")
    return tuple(map(int, parts))
