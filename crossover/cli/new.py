"""`crossover schema`, `examples` and `new`."""

import ast
import keyword
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from crossover import user_code
from crossover.cli.arguments import Debug, require_checkout
from crossover.errors import UserError, print_line
from crossover.experiment import Experiment, section_name
from crossover.workflow.architecture import PACKAGES, ROOT, architectures, load

# --- schema -----------------------------------------------------------------------------------------------------------
# `crossover schema`: the JSON Schema of experiment files, and of what commands answer.

SCHEMAS = Path(__file__).with_name("schemas")
SchemaOf = Literal["experiment", "advise", "compare", "doctor", "plan", "project", "status"]


def schema(
    of: Annotated[
        SchemaOf, typer.Argument(help="`experiment` for experiment files, or a command for its --json output.")
    ] = "experiment",
    debug: Debug = False,
) -> None:
    """Print the JSON Schema of experiment files, which editors use, or of a command's --json output."""
    if of == "experiment":
        from crossover.validation.fields import render_schema

        sys.stdout.write(render_schema())
    else:
        sys.stdout.write((SCHEMAS / f"{of}.json").read_text("utf-8"))


# --- examples ---------------------------------------------------------------------------------------------------------
# `crossover examples`: copies the project's experiments and its worked example into a folder.

NO_EXPERIMENTS = (
    "pricing.yaml",
    "published.yaml",
    "held-out.yaml",
)  # data of ours, which no command takes as its argument
PACKED = Path(__file__).parents[1] / "examples"  # in a wheel, which setup.py makes
EXAMPLES = PACKED if PACKED.is_dir() else ROOT / "examples"


def examples(
    out: Annotated[Path, typer.Argument(help="Folder to create.")] = Path("examples"), debug: Debug = False
) -> None:
    """Copy the example experiments, and an example with its own model and data, into a folder."""
    files = {path.name: path for path in sorted((ROOT / "config").glob("*.yaml")) if path.name not in NO_EXPERIMENTS}
    files["experiment.schema.json"] = ROOT / "config" / "experiment.schema.json"
    files |= {
        path.relative_to(EXAMPLES).as_posix(): path
        for path in sorted(EXAMPLES.rglob("*"))
        if path.suffix in (".py", ".yaml")
    }
    schema_line = "$schema=../config/experiment.schema.json"
    texts = {
        name: path.read_text("utf-8").replace(schema_line, "$schema=experiment.schema.json")
        for name, path in files.items()
    }
    _write_files(out, texts)
    print_line(f"written: {len(texts)} files in {out}")
    print_line(f"next: crossover run {shlex.quote(str(out / 'all-reduce-s3.yaml'))} --on inline")


# --- new --------------------------------------------------------------------------------------------------------------
# `crossover new`: creates the files of a new architecture from an existing one. They run as they are.

TO_DO = """\
# Created by `crossover new {name} --like {like}`; it runs as it is. What to fill in, from top to bottom:
# - the first lines of this file: what the architecture is, and who published it;
# - the steps: each is one invocation. Declare the services that it uses (uses=), and whether it computes (torch=True) or waits for
#   others (waits=True). Import everything that needs torch inside the function;
# - the tree: which steps run one after another, in parallel or repeatedly;
# - ARCHITECTURE: where tensors are stored (tensor_hosts), where a failed run finds its state (state), its section of the YAML (settings).
#   `simulation` names the architecture that a projection treats it as; without it there is no projection. `claims`: what tests check.
"""


def new(
    name: Annotated[
        str, typer.Argument(help="Name of the new architecture, such as parameter_server.", show_default=False)
    ],
    like: Annotated[str, typer.Option(help="Existing architecture to start from.")] = "scatter_reduce",
    debug: Debug = False,
) -> None:
    """Create the files of a new architecture in this checkout, as a copy of an existing one. Comments in them say what to fill in. A name
    that is taken, or a file that exists, is refused."""
    require_checkout("new", otherwise="docs/extending.md explains how to put an architecture into your own package")
    files = draft_files(name, like)
    _write_files(ROOT, files)
    for file in files:
        print_line(f"written: {file}")
    if load(like).settings:
        print("next: crossover schema > config/experiment.schema.json (for editors)")
    print_line(f"next: crossover run config/{_hyphenate(name)}.yaml --on inline")


def draft_files(name: str, like: str) -> dict[str, str]:
    """Return {path: text} for the files of a new architecture called `name`: copies of the files of the architecture `like` with names
    replaced, and its experiment file. Paths are relative to the checkout; nothing is written.

    Raises UserError if `name` is invalid or taken, or `like` belongs to another package; ConfigError if `like` does not exist.
    """
    if "." in like:
        raise UserError(f"--like {like}: expected one of {', '.join(architectures())}")
    module, model = name.replace("-", "_"), load(like)
    like = model.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise UserError(
            f"name: {name!r} is not a module name; use lower-case letters, digits and _, starting with a letter"
        )
    ours = {*architectures(), *(each.name for each in fields(Experiment)), "network", "broker", "p2p"}
    if module in ours or user_code.find_name_owner(module):
        raise UserError(f"name: {name!r} is taken; choose another one")
    section = section_name(model.settings) if model.settings else None
    files = {}
    for path in _list_source_files(like, stack=bool(model.program or model.form)):  # that of a tree is derived from it
        text = re.sub(rf"\b({'|'.join(PACKAGES)})\.{like}\b", rf"\1.{module}", path.read_text("utf-8"))
        text = text.replace(_stack_class_name(like), _stack_class_name(module))
        if section == like:  # what messages call its settings
            text = re.sub(rf"\b{like}\.(?=[a-z])", f"{module}.", text)
        if re.search(r"^ARCHITECTURE\b", text, re.MULTILINE):
            text = TO_DO.format(name=module, like=like) + _rewrite_architecture(text, module, model.simulation or like)
        files[str(path.relative_to(ROOT)).replace(like, module)] = text
    text = (ROOT / "config" / f"{_hyphenate(like)}.yaml").read_text("utf-8")
    text = re.sub(rf"^(name: ){_hyphenate(like)}$", rf"\g<1>{_hyphenate(module)}", text, flags=re.MULTILINE)
    text = re.sub(rf"^(architecture: ){like}$", rf"\g<1>{module}", text, flags=re.MULTILINE)
    if section == like:
        text = re.sub(rf"^{like}:", f"{module}:", text, flags=re.MULTILINE)
    files[f"config/{_hyphenate(module)}.yaml"] = re.sub(
        r"^# (?!yaml).*$",
        f"# {name}, copied from {like}: describe here what is trained, and how.",
        text,
        count=1,
        flags=re.MULTILINE,
    )
    return files


def _stack_class_name(name: str) -> str:
    """Return the name of the class of an architecture's stack, such as MyRingStack for my_ring."""
    return name.title().replace("_", "") + "Stack"


def _hyphenate(name: str) -> str:
    """Return the name with hyphens in place of underscores, as files in config/ are named."""
    return name.replace("_", "-")


def _list_source_files(like: str, *, stack: bool) -> list[Path]:
    """Return the existing source files of the architecture `like`: its Python modules and, if `stack` is true, the module of its CDK stack
    at the end.
    """
    own = [ROOT / "stacks" / f"{like}.py"] if stack else []
    modules = [
        path
        for package in PACKAGES
        for path in (ROOT / package / f"{like}.py", *sorted((ROOT / package / like).rglob("*.py")))
    ]
    return [path for path in (*modules, *own) if path.is_file()]


def _rewrite_architecture(text: str, module: str, simulation: str) -> str:
    """Return the module's text with its statement `ARCHITECTURE = ...`, which it must have, rewritten for the architecture name `module`,
    with one argument in each line; comments within the statement are lost. `simulation`: name of the architecture as which the new one is
    simulated.
    """
    statement = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ARCHITECTURE"
    )
    call = statement.value
    assert isinstance(call, ast.Call), "an ARCHITECTURE is made where it is named"
    given = [
        f"{each.arg}={ast.get_source_segment(text, each.value)}" for each in call.keywords if each.arg != "simulation"
    ]
    arguments = [f'"{module}"', *given, f'simulation="{simulation}"']
    lines = text.splitlines(keepends=True)
    made = "".join(f"    {argument},\n" for argument in arguments)
    return "".join(
        [*lines[: statement.lineno - 1], f"ARCHITECTURE = Architecture(\n{made})\n", *lines[statement.end_lineno :]]
    )


def _write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write all files below the folder `root`, or none of them if one fails: what was created is deleted again. `files`: texts by path,
    relative to `root`; folders are created. Raises UserError, before anything is written, if one of them exists already.
    """
    if there := [file for file in files if (root / file).exists()]:
        raise UserError(f"{there[0]} exists already; choose another name, or move it")
    made: list[Path] = []
    try:
        for file, text in files.items():
            path = root / file
            for folder in reversed(path.parents):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
            made.append(path)
            with path.open("x", encoding="utf-8") as out:
                out.write(text)
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        raise
