"""Modules of the user's own: where they are found, and what is said of those that cannot be used."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from crossover import bundling, user_code
from crossover.errors import ConfigError, OwnCodeError
from crossover.experiment import Experiment, Training, Weights
from tests.unit.own_code.folders import Folders


def message(name: str, field: str = "training.model") -> str:
    """Return the message with which loading the user code `name` fails."""
    with pytest.raises(ConfigError) as failed:
        user_code.load(name, field=field)
    return str(failed.value)


def test_found_beside_the_experiment_first_then_in_the_current_folder(folders: Folders) -> None:
    """A module is loaded from the experiment's folder if both folders have it, else from the current folder."""
    folders.experiment(both="def who(): return 'experiment'")
    folders.current(both="def who(): return 'current'", other="def who(): return 'current'")
    assert user_code.load("both:who", field="training.model")() == "experiment"
    assert user_code.load("other:who", field="training.model")() == "current"


def test_imports_of_own_packages_are_found_too(folders: Folders) -> None:
    """A module of a user's package finds its relative imports, packages without `__init__`, and modules that a function imports when
    called.
    """
    folders.experiment(
        **{
            "mine/__init__": "",
            "mine/net": "from .parts import width\nfrom mine import deep\ndef who(): import late; return width, deep.depth, late.x",
            "mine/parts": "width = 2",
            "mine/deep": "from names.space import depth",
            "names/space": "depth = 3",
            "late": "x = 4",
        }
    )
    assert user_code.load("mine.net:who", field="training.model")() == (2, 3, 4)


def test_a_second_module_of_a_package_has_its_own_imports(folders: Folders) -> None:
    """A second module of a package that is loaded already still finds the user's modules that it imports."""
    folders.experiment(
        **{
            "mine/__init__": "",
            "mine/net": "x = 1",
            "mine/rows": "from helper import y\ndef who(): return y",
            "helper": "y = 5",
        }
    )
    assert user_code.load("mine.net:x", field="training.model", kind=int) == 1
    assert user_code.load("mine.rows:who", field="data.dataset")() == 5


def test_a_current_folder_within_the_experiments_is_searched_too(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module in the current folder, itself inside the experiment's, is found, and its errors name it relative to the current folder."""
    inner = folders.experiment(**{"inner/task": "def who(): return 1 / 0"}) / "inner"
    monkeypatch.chdir(inner)
    user_code.set_folders(inner.parent, inner)
    assert set(user_code.find_dependencies("task:who", field="training.model").files) == {Path("task.py")}
    who = user_code.load("task:who", field="training.model")
    with pytest.raises(OwnCodeError, match=r"your code, task.py, line 1, in who: ZeroDivisionError"):
        with user_code.attribute_errors("training.model", "task:who", what=who):
            who()


def test_what_own_code_does_not_reach_stands_before_nobodys_package(folders: Folders) -> None:
    """A user's file with the name of an installed package that user code does not import leaves that package importable."""
    folders.experiment(task="def who(): return 1", colorsys_="", sklearn="raise RuntimeError('not this one')")
    assert user_code.load("task:who", field="training.model")() == 1
    import sklearn

    assert hasattr(sklearn, "__version__")


def test_another_experiments_modules_are_forgotten(folders: Folders, tmp_path: Path) -> None:
    """A module of the same name in another experiment's folder is imported anew once the folders are set to that."""
    folders.experiment(task="def who(): return 1")
    user_code.load("task:who", field="training.model")
    other = tmp_path / "other"
    other.mkdir()
    (other / "task.py").write_text("def who(): return 2")
    user_code.set_folders(other)
    assert user_code.load("task:who", field="training.model")() == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef f(:\n", "task.py, line 2: "),
        ("import helper\n", "helper.py, line 3: "),
        ("\nimport no_such_thing\n", "task.py, line 2: ModuleNotFoundError: No module named 'no_such_thing'"),
        ("\n\nraise ValueError('no')\n", "task.py, line 3: ValueError: no"),
        ("import sys\nsys.exit(3)\n", "task.py, line 2: ends the program when it is imported"),
        ("def factoy(): pass\n", "task.py: defines no 'factory'; did you mean factoy?"),
        ("factory = 3\n", "task.py: factory is of type int; a function is expected"),
    ],
)
def test_each_fault_is_told_as_theirs_with_file_and_line(folders: Folders, text: str, said: str) -> None:
    """A module that cannot be imported or lacks the function raises an error with the field and `said`, the user's file, line and cause."""
    folders.experiment(
        task=text,
        helper="\n\nthis is no Python\n",
    )
    found = message("task:factory")
    assert found.startswith("training.model: 'task:factory': your code, "), found
    assert said in found


def test_a_name_that_is_somebody_elses_is_refused(folders: Folders) -> None:
    """A module with the name of a package of this project, of the standard library or of the functions' packages is refused."""
    folders.experiment(torch="", json="", stacks="", crossover="", functions="", redis="")
    assert "stacks is the name of a package of this project" in message("stacks:factory")
    assert "json is the name of a module of Python's standard library" in message("json:factory")
    assert "torch is the name of a package that every function has" in message("torch.nn:Linear")


def test_a_module_that_is_not_there_names_the_folders(folders: Folders) -> None:
    """The error for a missing module names it and the folders that were searched."""
    folders.experiment(task="")
    assert "there is no module tusk; looked in experiment and the current folder" in message("tusk:factory")


def test_printing_is_fine_and_so_are_others_imports(folders: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    """A user's module that prints at import does so on stderr, and its imports of the standard library work."""
    folders.experiment(task="print('hello')\nimport multiprocessing.pool\ndef factory(): return 7")
    assert user_code.load("task:factory", field="training.model")() == 7
    assert capsys.readouterr() == ("", "hello\n")


def far_away(factory: Callable[[], object]) -> None:
    """Raise ValueError: the error of a place that is not the user's code."""
    raise ValueError("far away")


@pytest.mark.parametrize(
    ("task", "fails", "said"),
    [
        (
            "import helper\n\ndef factory():\n    return helper.half(0)",
            lambda factory: factory(),
            "helper.py, line 2, in half: ZeroDivisionError",
        ),
        (
            "\ndef factory(classes):\n    pass",
            lambda factory: factory(3, (2,)),
            r"task.py, line 2: TypeError: .*; expected def factory\(classes, input_shape\)",
        ),
        ("\n\ndef factory():\n    pass", far_away, "task.py, line 3: ValueError: far away"),  # the definition
    ],
)
def test_a_failure_names_the_innermost_own_line(
    folders: Folders, task: str, fails: Callable[[object], None], said: str
) -> None:
    """An exception in user code raises OwnCodeError that names the innermost line of the user's own files, else the definition of the
    factory.

    `fails`: raises the exception, given the factory; `said`: place and cause.
    """
    folders.experiment(task=task, helper="def half(x):\n    return 1 / x")
    factory = user_code.load("task:factory", field="training.model")
    with pytest.raises(OwnCodeError, match=rf"your code, experiment/{said}"):
        with user_code.attribute_errors("training.model", "task:factory", what=factory):
            fails(factory)


def test_failures_of_our_own_models_pass(folders: Folders) -> None:
    """An exception under the name of a built-in model is raised unchanged."""
    with pytest.raises(ZeroDivisionError), user_code.attribute_errors("training.model", "small_cnn"):
        raise ZeroDivisionError
    assert "task" not in sys.modules


def experiment(**fields: str) -> Experiment:
    """Return an experiment with these settings of its training."""
    return Experiment(name="x", architecture="all_reduce", training=Training(**fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "words = open('experiment/words.txt').read()\ndef factory(): pass\n",
            "task.py, line 1: reads experiment/words.txt when",
        ),
        (
            "from pathlib import Path\nw = Path('experiment/words.txt').read_text()\ndef factory(): pass\n",
            "task.py, line 2: reads ",
        ),
        (
            "def factory(): pass\ntry:\n open('experiment/words.txt')\nexcept BaseException: pass\n",
            "task.py, line 3: reads ",
        ),
        (
            "import helper\ndef factory(): pass\n",
            "helper.py, line 3, in words: reads ",
        ),
    ],
)
def test_files_that_functions_will_not_have_are_refused(folders: Folders, text: str, said: str) -> None:
    """A factory's module that reads a file at import is refused with `said`, its file and line, even if it catches the exception."""
    helper = "import pathlib\ndef words():\n    return pathlib.Path('experiment/words.txt').read_text()\nwords()\n"
    (folders.experiment(task=text, helper=helper) / "words.txt").write_text("a b c")
    with pytest.raises(OwnCodeError, match=said) as failed:
        bundling.check_user_code(experiment(model="task:factory"))
    assert "the loader of data.dataset, which runs on this machine" in str(failed.value)


def test_a_package_that_functions_have_not_is_named_with_the_field_that_needs_it(folders: Folders) -> None:
    """A factory's module that imports a package which functions lack is refused with the field, file, line and package."""
    folders.experiment(task="import numpy\ndef factory(): pass\n")
    said = r"^training\.model: 'task:factory': your code, experiment/task\.py, line 1: imports numpy"
    with pytest.raises(OwnCodeError, match=said):
        bundling.check_user_code(experiment(model="task:factory"))


def test_of_two_files_it_is_said_which_is_taken(folders: Folders) -> None:
    """The check of user code returns notes: which of two files of one name is used, and which import in a function would fail on AWS."""
    folders.experiment(both="import late\ndef who(): import colorama_of_mine")
    folders.current(both="def who(): pass", late="")
    assert bundling.check_user_code(experiment(model="both:who")) == [
        "experiment/both.py is taken, not both.py",
        "experiment/both.py, line 2: functions have no colorama_of_mine; only what runs on this machine, such as a data set's loader, "
        "can reach this line",
    ]


def test_digests_follow_what_own_code_reaches(folders: Folders) -> None:
    """The digests of user code cover the files that it imports, and change with those only; without user code the fingerprint is empty."""
    folders.experiment(task="import late\ndef factory(): pass", late="x = 1", other="")
    before = bundling.hash_files(experiment(model="task:factory"))
    assert before.keys() == {"task.py", "late.py"}
    folders.experiment(other="y = 2")
    assert bundling.hash_files(experiment(model="task:factory")) == before
    folders.experiment(late="x = 2")
    after = bundling.hash_files(experiment(model="task:factory"))
    assert {name for name in after if after[name] != before[name]} == {"late.py"}
    assert bundling.compute_fingerprint(experiment(model="small_cnn")) == ""


@pytest.mark.parametrize("file", ["s3://bucket/base.safetensors", "installed:base.safetensors"])
def test_the_place_of_weights_is_no_user_code(folders: Folders, file: str) -> None:
    """The check of user code passes over `training.weights.file`, which has a colon too."""
    folders.experiment(task="def factory(): pass")
    own = experiment(model="task:factory")
    own = replace(own, training=replace(own.training, weights=Weights(file=file)))
    assert bundling.list_user_code(own) == {"training.model": "task:factory"}
    assert bundling.check_user_code(own) == []
