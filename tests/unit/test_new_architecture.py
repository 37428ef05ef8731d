"""An eighth architecture whose files are not finished: one message that names the file and what it lacks."""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import functions
import peers
import stacks
from crossover import algorithms
from crossover.algorithms import averaging
from crossover.errors import ConfigError
from crossover.experiment import Experiment, from_plain
from crossover.running.resume import list_differing_settings
from crossover.validation import fields, validate
from crossover.workflow import architecture
from crossover.workflow.architecture import load
from stacks import synthesis

ROOT = Path(__file__).parents[2]
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Yield a function that writes a module of functions/, peers/ or stacks/ beside those of the project; the modules are forgotten
    afterwards.
    """
    monkeypatch.setattr(architecture, "ROOT", tmp_path)
    monkeypatch.setattr(synthesis, "ROOT", tmp_path)
    for package in (functions, peers, stacks):
        folder = tmp_path / package.__name__
        folder.mkdir()
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])

    def put(name: str, text: str) -> None:
        """Write a module that Python will find."""
        (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    yield put
    for name in [each for each in sys.modules if each.endswith((".eighth", ".ninth", ".tenth"))]:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\nimport no_such_thing\n",
            "functions/eighth.py, line 2: ModuleNotFoundError: No module named 'no_such_thing'",
        ),
        ("def broken(:\n", "functions/eighth.py, line 1: SyntaxError"),
        (
            "ARCHITEKTUR = 1\n",
            r"'eighth': functions/eighth.py defines no ARCHITECTURE = Architecture\('eighth'",
        ),
    ],
)
def test_a_module_without_an_architecture_is_told_with_its_line(write: Write, text: str, said: str) -> None:
    """A new architecture's module that cannot be imported, or has no ARCHITECTURE, raises ConfigError with `said`, its file and line."""
    write("functions/eighth.py", text)
    with pytest.raises(ConfigError, match=said):
        load("eighth")


PROGRAM = (ROOT / "peers" / "p2p_instance.py").read_text().replace('"p2p_instance"', '"eighth"')


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("stacks/eighth.py", "from cdk import names\n", "stacks/eighth.py defines no STACK"),
        # No tree asks for its fleet.
        ("peers/eighth.py", PROGRAM, "a program for EC2, .*; expected stacks/eighth.py with a STACK"),
    ],
)
def test_an_architecture_without_its_stack_says_so(write: Write, file: str, text: str, said: str) -> None:
    """A new architecture without the stack that it needs raises ConfigError, which names the file that must have one."""
    write(file, text)
    with pytest.raises(ConfigError, match=f"'eighth': {said}"):
        synthesis._stack_of(Experiment(name="x", architecture="eighth"))


EIGHTH = """
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from crossover.workflow.architecture import Architecture
from crossover.workflow import step


@dataclass(frozen=True, kw_only=True)
class Settings:
    rate: Annotated[float, Gt(0)] = 0.7
    order: tuple[int, ...] = ()


@step()
def train(ctx, event): ...


def checks(e):
    if e.settings(Settings).rate > e.workers:
        yield "eighth.rate: too much"


ARCHITECTURE = Architecture("eighth", run=train, settings=Settings, checks=checks)
"""


@pytest.fixture
def eighth(write: Write) -> Callable[..., Experiment]:
    """Write the eighth architecture's module and return a function that validates an experiment with the given section of it."""
    write("functions/eighth.py", EIGHTH)
    return lambda **section: validate({"name": "x", "architecture": "eighth", "eighth": section})


def test_its_settings_are_a_section_of_the_yaml(eighth: Callable[..., Experiment]) -> None:
    """A new architecture's settings are a section of the YAML and of the schema, and are stored and read back."""
    settings = load("eighth").settings
    assert settings is not None
    found = eighth(rate=2, order=[1, 2])
    assert found.settings(settings) == settings(rate=2.0, order=(1, 2))
    assert found.to_plain()["eighth"] == {"rate": 2.0, "order": [1, 2]}
    assert from_plain(json.loads(json.dumps(found.to_plain()))) == found
    assert "exclusiveMinimum" in str(json.loads(fields.render_schema())["$defs"]["Settings"])


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"rate": 0}, "eighth.rate: 0 is not allowed; expected a number > 0"),
        ({"rat": 1}, "eighth.rat: is unknown; did you mean rate?; one of rate, order"),
        ({"rate": 5}, "eighth.rate: too much"),
    ],
)
def test_its_settings_are_checked_as_ours_are(
    eighth: Callable[..., Experiment], section: dict[str, Any], said: str
) -> None:
    """Wrong values and names in a new architecture's section raise ConfigError with `said`. `section`: its fields."""
    with pytest.raises(ConfigError) as caught:
        eighth(**section)
    assert str(caught.value) == said


def test_what_the_yaml_leaves_out_is_in_the_result_and_in_the_check_of_a_resumed_run(
    eighth: Callable[..., Experiment],
) -> None:
    """Defaults of a new architecture's section are in the resolved experiment, and differences to them are listed."""
    resolve = load("eighth").resolve
    there = resolve(validate({"name": "x", "architecture": "eighth"}))
    assert there.to_plain()["eighth"] == {"rate": 0.7, "order": []}
    assert list_differing_settings(resolve(eighth(rate=0.8)), there) == ["eighth.rate: 0.8, there 0.7"]
    assert not list_differing_settings(resolve(eighth(rate=0.7)), there)


def test_another_experiment_does_not_mind_a_faulty_eighth(eighth: Callable[..., Experiment], write: Write) -> None:
    """An experiment is valid although another architecture's module is faulty, and one of that architecture raises ConfigError."""
    write("functions/ninth.py", "import no_such_thing\n")
    assert eighth().architecture == "eighth"
    with pytest.raises(ConfigError, match=r"functions/ninth\.py, line 1: ModuleNotFoundError"):
        validate({"name": "x", "architecture": "ninth", "ninth": {"a": 1}})


def refused(name: str = "eighth") -> str:
    """Return the message with which an architecture of that name is refused."""
    with pytest.raises(ConfigError) as caught:
        validate({"name": "x", "architecture": name})
    return str(caught.value)


LINE = (
    EIGHTH.splitlines().index('ARCHITECTURE = Architecture("eighth", run=train, settings=Settings, checks=checks)') + 1
)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "checks=checks)",
            'claims={"resumes", "wins"})',
            f"line {LINE}: claims 'wins', which nothing tests; expected some of equals_reference, same_calls,",
        ),
        (
            'Architecture("eighth"',
            'Architecture("spirt"',
            f"line {LINE}: is named 'spirt'; expected 'eighth', as its file is",
        ),
        (
            " = 0.7",
            "",
            f"line {LINE}: settings=Settings: expected a frozen dataclass of which every field has a default",
        ),
        (
            "run=train, ",
            "",
            f"line {LINE}: expected either run=, the tree of its steps, or program=, what runs on instances",
        ),
        (
            "checks=checks)",
            'tensor_hosts="many")',
            f"line {LINE}: tensor_hosts='many': expected one of per_worker, shared, none",
        ),
        ("checks=checks)", 'state="db")', f"line {LINE}: state='db': expected one of checkpoints, database"),
        (
            "checks=checks)",
            'simulation="zzz")',
            f"line {LINE}: simulation='zzz': crossover/simulation/mirror has no such module",
        ),
        (
            "    order:",
            '    section = "training"\n    order:',
            f"line {LINE + 1}: settings=Settings would be the section 'training', which every experiment has; expected another",
        ),
    ],
)
def test_what_it_says_of_itself_is_checked(write: Write, old: str, new: str, said: str) -> None:
    """A wrong part of an architecture's definition is refused with its file, line and `said`. `old`, `new`: the text and its
    replacement.
    """
    assert old in EIGHTH
    write("functions/eighth.py", EIGHTH.replace(old, new))
    assert refused().startswith(f"architecture: 'eighth': functions/eighth.py, {said}")


@pytest.mark.parametrize("kind", ["complex", '"NotThere"'])
def test_settings_that_no_yaml_could_give_are_its_authors_fault(write: Write, kind: str) -> None:
    """Settings of a type that YAML cannot express are refused as a fault of the architecture. `kind`: the type."""
    write("functions/eighth.py", EIGHTH.replace(": tuple[int, ...] = ()", f": {kind} = 1"))
    assert refused().startswith("architecture: 'eighth': settings=Settings")


def test_two_of_one_name_are_both_named(write: Write) -> None:
    """Two modules that define one architecture are refused, and both are named."""
    write("functions/eighth.py", EIGHTH)
    write("peers/eighth.py", EIGHTH)
    assert refused() == (
        "architecture: 'eighth': functions/eighth.py and peers/eighth.py both define it; give one of them another name"
    )


def test_two_that_describe_one_section_differently_are_both_named(write: Write) -> None:
    """Two architectures with different settings classes for one section are refused, and both are named; they may share one class."""
    write("functions/eighth.py", EIGHTH)
    other = EIGHTH.replace('"eighth"', '"ninth"').replace("    order:", '    section = "eighth"\n    order:')
    write("functions/ninth.py", other)
    told = refused()
    assert told.startswith(
        "architecture: 'ninth': the section 'eighth' is described by functions.eighth.Settings and by functions.ni"
    )
    shared = "from crossover.workflow.architecture import Architecture\nfrom functions.eighth import Settings, train\n"
    write("functions/ninth.py", shared + 'ARCHITECTURE = Architecture("ninth", run=train, settings=Settings)\n')
    sys.modules.pop("functions.ninth")
    assert validate({"name": "x", "architecture": "ninth", "eighth": {"rate": 2}}).sections["eighth"]["rate"] == 2.0


@pytest.mark.parametrize(
    "faulty", [EIGHTH.replace("Annotated[float, Gt(0)]", '"NotThere"').encode(), b"ARCHITECTURE = '\xff'\n"]
)
def test_a_yaml_of_another_architecture_does_not_hear_of_it(write: Write, tmp_path: Path, faulty: bytes) -> None:
    """An experiment is valid although another architecture has faulty settings or an unreadable file."""
    write("functions/ninth.py", EIGHTH.replace('"eighth"', '"ninth"'))
    (tmp_path / "functions" / "eighth.py").write_bytes(faulty)
    assert validate({"name": "x", "architecture": "ninth", "ninth": {"rate": 0.5}}).sections["ninth"]["rate"] == 0.5
    assert refused().startswith("architecture: ") and "eighth" in refused()


def test_two_others_that_describe_one_section_differently_do_not_disturb_a_third(write: Write) -> None:
    """An experiment is valid although two other architectures have different settings classes for one section."""
    other = EIGHTH.replace("    order:", '    section = "eighth"\n    order:')
    for name, text in {"eighth": EIGHTH, "ninth": other, "tenth": EIGHTH}.items():
        write(f"functions/{name}.py", text.replace('"eighth", run', f'"{name}", run'))
    assert validate({"name": "x", "architecture": "tenth", "tenth": {"rate": 0.5}}).sections["tenth"]["rate"] == 0.5


def test_an_unknown_architecture_is_told_before_what_is_unknown_for_it() -> None:
    """An unknown architecture is reported first, and unknown sections after it."""
    with pytest.raises(ConfigError) as caught:
        validate({"name": "x", "architecture": "spirit", "mine": {"a": 1}})
    first, second = str(caught.value).splitlines()
    assert (
        "'spirit' is unknown" in first
        and first.endswith("did you mean spirt?")
        and second.startswith("mine: is unknown")
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("functions.spirt", "architecture: 'functions.spirt' is one of this project's; write spirt"),
        ("pack..mine", "architecture: 'pack..mine' is no name; expected one of all_reduce, "),
        ("pack.mine:ARCHITECTURE", "architecture: 'pack.mine:ARCHITECTURE' is no name; expected one of all_reduce, "),
    ],
)
def test_a_name_that_none_can_have_is_told_in_its_own_words(name: str, said: str) -> None:
    """A name that no architecture can have is refused with `said`, which quotes it."""
    assert refused(name).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\nimport torch\n", "functions/eighth.py, line 2: imports torch when it is imported"),
        (
            "import json\nfrom crossover.algorithms import averaging\n",
            "functions/eighth.py, line 2: imports crossover.algorithms.averaging, which imports torch, when it is imported",
        ),
    ],
)
def test_a_step_that_imports_torch_at_the_top_is_refused_with_its_line(
    write: Write, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of steps that imports PyTorch at its top, itself or through another module, is refused with the line. `said`: part of the
    message.
    """
    monkeypatch.delattr(algorithms, "averaging")
    for name in [each for each in sys.modules if each.split(".")[0] == "torch" or each == averaging.__name__]:
        monkeypatch.delitem(sys.modules, name)
    write("functions/torch.py", "class Tensor: ...")  # importing the real one a second time is its own affair
    write("functions/eighth.py", text + EIGHTH)
    monkeypatch.syspath_prepend(functions.__path__[-1])
    assert refused() == (
        f"architecture: {said}, and functions that do not compute have none; import it inside the step that needs it"
    )
