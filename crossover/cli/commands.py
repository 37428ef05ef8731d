"""The sub-commands of `crossover`, as one application. A command's module is imported when the command is called.

`--help` reads the commands' docstrings from their files, so that it imports none of them.
"""

import ast
import importlib
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from crossover import __version__
from crossover.cli.signals import stop_on_signals

# By what they are for: each command's module. Its function has its name, or it is a group of commands, `app`.
PANELS = {
    "Train": {"run": "run", "compare": "run"},
    "Decide": {
        "init": "init",
        "advise": "advise",
        "probe": "probe",
        "breakeven": "projection",
        "project": "projection",
    },
    "Deploy": {
        "plan": "plan",
        "doctor": "deployment",
        "deploy": "deployment",
        "status": "deployment",
        "destroy": "deployment",
    },
    "Research": {
        "study": "study",
        "reproduce": "study",
        "replicate": "study",
        "examples": "new",
        "new": "new",
        "schema": "new",
        "prices": "prices",
    },
}
PLACES = {name: (panel, module) for panel, members in PANELS.items() for name, module in members.items()}


class _CommandGroup(TyperGroup):
    """The group of all commands in PANELS. A command's module is imported only when the command is called, so that the list of commands
    appears quickly. `listed`: whether commands are only listed, by name and help.
    """

    listed = False

    def __init__(self, **given: Any) -> None:
        """Register the names of all commands, with which a mistyped name is compared. `given`: passed on to typer."""
        super().__init__(**given)
        self.commands = cast(Any, dict.fromkeys(PLACES))  # whose names a mistyped one is held against

    def invoke(self, ctx: Any) -> Any:
        """Run the command and return its result. SIGTERM and SIGHUP stop it as Ctrl-C does, with everything that it has started."""
        with stop_on_signals():  # of any command: what it started ends with it, and nothing is left to be cleaned up
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands in the order of PANELS."""
        return list(PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command called `cmd_name`, None if there is none; its module is imported for that. While commands are only listed
        (`self.listed`), return a command that has only name and help, without the import.
        """
        if cmd_name not in PLACES:
            return None
        panel, module = PLACES[cmd_name]
        if self.listed:
            return TyperCommand(cmd_name, help=_read_help(module, cmd_name.replace("-", "_")), rich_help_panel=panel)
        found = importlib.import_module(f"crossover.cli.{module}")
        if hasattr(found, "app"):
            return typer.main.get_group(found.app)
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(getattr(found, cmd_name.replace("-", "_")))
        return typer.main.get_command(alone)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help page. The commands' modules are not imported: their help texts are read from the source files as text. From then
        on `listed` is true.
        """
        self.listed = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return completions of a command line, without importing the commands' modules."""
        self.listed = True
        return super().shell_complete(ctx, incomplete)


def _read_help(module: str, function: str) -> str:
    """Return the help text of a command without importing it: the docstring of `function` in the file of the module called `module`, or the
    module's docstring if it has no such function because it is a group of commands; "" if there is none.
    """
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text("utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return ast.get_docstring(found[0] if found else tree) or ""


app = typer.Typer(
    cls=_CommandGroup,
    epilog="Exit status: 0 success; 1 a run or check failed; 2 an error that you can fix; 3 no option meets advise's limits; 130 Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    """Print the program's version and exit if --version is given (`asked`)."""
    if asked:
        typer.echo(f"crossover {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Deploy, measure and compare one training job on seven distributed architectures, on AWS or on this machine."""
