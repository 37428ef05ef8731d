"""`crossover probe`: seconds of a training step on this machine's GPU, as a row for `crossover advise --measured`.

It imports PyTorch and typer alone, so that it runs on a notebook beside whatever else is installed there.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossover.errors import ConfigError


def probe(
    model: Annotated[
        str, typer.Argument(help="Your model (file.py:factory) or the name of a built-in model.", show_default=False)
    ],
    device: Annotated[Literal["cuda", "cpu"], typer.Option(help="Device to measure.")] = "cuda",
    precision: Annotated[
        Literal["fp32", "fp16", "bf16"],
        typer.Option(help="The value of training.precision that you will train with. fp16 needs a GPU."),
    ] = "fp32",
    data: Annotated[
        str | None,
        typer.Option(
            metavar="LOADER",
            help="Your samples (file.py:loader). Required for models of tokens.",
            show_default="random numbers",
        ),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Shape of a random sample, such as 3x32x32; for a table, its number of columns.",
            show_default="3x32x32",
        ),
    ] = None,
    classes: Annotated[
        int | None, typer.Option(min=1, help="Number of classes of random labels.", show_default="10")
    ] = None,
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Random labels are numbers (regression), not classes.")
    ] = False,
    batch: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Minibatch sizes, such as 32,128,512.", show_default="chosen by device"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="Seconds to measure after the warm-up.")] = 20.0,
    out: Annotated[Path | None, typer.Option(help="File for the JSON line.", show_default="standard output")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure a model's training steps on this machine's GPU and print them as a line of JSON for `crossover advise --measured`.

    Fails without a GPU, unless --device is cpu.
    """
    from crossover.advice import gpu_probe

    located = gpu_probe.locate_model(model)
    where = gpu_probe.find_device(device, precision)
    if data is None:
        shape = _parse_numbers(input or "3x32x32", "x", "--input", "3x32x32")
        source = gpu_probe.draw_samples(shape, None if numbers else classes or 10)
    elif input is not None or classes is not None or numbers:
        raise ConfigError(
            f"--input, --classes, --numbers: describe random samples, but {data} supplies samples; leave out one of the two"
        )
    else:
        source = gpu_probe.load_samples(data, located)
    row = gpu_probe.measure_row(
        located,
        source,
        device=where,
        precision=precision,
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
    """Return the whole numbers above 0 in `text`, which `between` separates, in order. Raises ConfigError naming `option`, with an
    `example`, if it contains anything else.
    """
    parts = text.split(between)
    if not all(each.isdecimal() and int(each) > 0 for each in parts):
        raise ConfigError(f"{option}: {text!r} is not allowed; expected whole numbers above 0, such as {example}")
    return tuple(map(int, parts))
