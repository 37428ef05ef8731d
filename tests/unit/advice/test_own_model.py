"""A model and its data alone become an experiment; this machine stands beside what AWS would take."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from crossover.advice import explain, own_model
from crossover.advice import question as subject
from crossover.advice.advice import Advice, advise
from crossover.advice.own_speed import Probe
from crossover.advice.question import Constraints, Sizes
from crossover.cli import advise as cli
from crossover.errors import ConfigError, OwnCodeError
from crossover.experiment import Experiment, Table
from crossover.learning.datasets import load as load_data
from crossover.validation import load
from tests.commands import status
from tests.unit.advice.few import few_candidates

CONFIG = Path(__file__).parents[3] / "config"
SCHEMA = Path(__file__).parents[3] / "crossover" / "cli" / "schemas" / "advise.json"
NETWORK = """
from torch import nn

def network(classes, input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.Linear(8, classes or 1))
"""

WRONG = """
from torch import nn

def network(classes, input_shape):
    return nn.Linear(4, classes)
"""
FAR = """
import torch
from crossover.learning.datasets import Samples

def rows(experiment):
    return Samples(torch.full((60, 1), torch.inf), torch.zeros(60, 1))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory for the test, with the module of a model in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    return tmp_path


def asked(rows: str, *, model: str = "net.py:network") -> Experiment:
    """Write `rows` into table.csv and return the experiment that is made of the model and this table, with three epochs."""
    Path("table.csv").write_text(rows)
    return load(own_model.write_experiment(model, "table.csv", 3))


def test_a_last_column_of_few_whole_numbers_is_classes(folder: Path) -> None:
    """A table whose last column has few whole numbers gives an experiment of classification, with labels from 0."""
    found = asked("a,b,kind\n" + "".join(f"{n},0.5,{7 * (n % 3)}\n" for n in range(60)))
    assert (found.name, found.training.model, found.training.epochs, found.training.loss) == (
        "net",
        "net:network",
        3,
        "cross_entropy",
    )
    data = load_data(found)
    assert data.classes == 3 and data.train_inputs.shape == (48, 2)
    assert sorted(set(data.train_labels.tolist())) == [0, 1, 2]


def test_any_other_is_a_number_and_a_first_row_of_numbers_is_a_row(folder: Path) -> None:
    """A last column of decimals is a regression label, and a first row of numbers is no header."""
    found = asked("\ufeff" + "".join(f"{n},0.5,{n / 7}\n\n" for n in range(60)))
    assert (found.training.loss, found.training.metric.name) == ("mse", "mean_absolute_error")
    data = load_data(found)
    assert data.classes is None and data.train_labels.shape == (48, 1) and len(data.validation_labels) == 12


@pytest.mark.parametrize(("rows", "words"), [
    ("", "has 0 columns and 0 rows"),
    ("a,b\n1,2\n", "has 2 columns and 1 row below its header"),
    ("a,b\n1,2\n3,4\n", "has 2 columns and 2 rows"),
    ("a,b\n1,2\n3,x\n5,6\n", "row 3: 'x' is no number"),
    ("1,2\n3,4\n5\n", "row 3: has 1 columns, and the first has 2"),
    ("NA,2\n3,4\n5,6\n", "row 1: 'NA' is no number"),
    ("nan,nan\n3,4\n5,6\n", "row 1: 'nan' is no number that float32 holds"),
    ("1,2\n3,4\n1e39,6\n", "row 3: '1e39' is no number that float32 holds"),
    ("1,1\n3,1\n5,1\n", "the last column is 1 in every row"),
    ("1,9007199254740992\n3,9007199254740993\n" * 3, "has the class 9007199254740992, which float64 does not tell"),
])  # fmt: skip
def test_what_is_no_table_of_numbers_is_refused(rows: str, words: str, folder: Path) -> None:
    """A CSV that cannot be read as a table raises ConfigError with `words`, and no file is left."""
    with pytest.raises(ConfigError, match=r"--data: table\.csv: ") as refused:
        asked(rows)
    assert words in str(refused.value)
    assert {path.name for path in folder.iterdir()} == {"net.py", "table.csv"}, "nothing is left of it"


def test_what_is_missing_is_told(folder: Path) -> None:
    """A missing option, file or function, and a name that Python cannot import, raise an error that names it."""
    (folder / "my-net.py").write_text(NETWORK)
    for model, data, words in (
        ("net.py:network", None, "--data: is missing"),
        ("nut.py:network", "table.csv", "nut.py: no such file"),
        ("net.py:network", "none.csv", "none.csv: cannot be read"),
        ("net.py:network", "other.py:rows", "other.py: no such file"),
        ("my-net.py:network", "table.csv", "my-net.py: 'my-net' is not a valid name of a Python module"),
        ("net.py:network", "a\nb.csv", "characters that cannot be printed"),
    ):
        with pytest.raises(ConfigError, match=words):
            own_model.write_experiment(model, data, None)
    with pytest.raises(OwnCodeError, match=r"data.dataset.*defines no 'rows'"):
        own_model.write_experiment("net.py:network", "net:rows", None)


def test_nothing_is_overwritten(folder: Path) -> None:
    """The same model and data leave the written YAML file alone; a file with other content is refused and stays."""
    asked("1,2\n3,4\n5,6\n")
    asked("1,2\n3,4\n5,6\n")
    changed = "name: net\n"
    (folder / "net.yaml").write_text(changed)
    with pytest.raises(ConfigError, match=r"net\.yaml: exists and differs; `crossover advise net.yaml`"):
        own_model.write_experiment("net.py:network", "table.csv", 3)
    assert (folder / "net.yaml").read_text() == changed


def test_other_epochs_leave_the_file_and_other_fields_are_named(folder: Path) -> None:
    """An existing YAML file is kept if only the epochs differ; other differences raise ConfigError that names field and both values."""
    asked("1,2\n3,4\n5,6\n" * 3)
    before = (folder / "net.yaml").read_bytes()
    assert own_model.write_experiment("net.py:network", "table.csv", 20) == Path("net.yaml")
    Path("other.csv").write_text("1,0.5\n3,1.5\n5,2\n")
    with pytest.raises(ConfigError) as refused:
        own_model.write_experiment("net.py:network", "other.csv", 3)
    assert "data.dataset: 'table_rows:rows' in the file, 'other_rows:rows' asked for" in str(refused.value)
    assert "training.loss: 'nothing' in the file, 'mse' asked for" in str(refused.value)
    assert (folder / "net.yaml").read_bytes() == before and not Path("other_rows.py").exists()


@pytest.mark.parametrize(
    "name", ["""x"+open("ran","w").name+".csv""", """x\"\"\"+str(open('ran','w'))+\"\"\".csv""", "a\\x.csv", "2020.csv"]
)
def test_a_files_name_is_data_and_makes_a_module(name: str, folder: Path) -> None:
    """A CSV file of any name gets a loader module that can be imported, and nothing in the name is executed."""
    Path(name).write_text("1,2\n3,4\n5,6\n" * 3)
    found = load(own_model.write_experiment("net.py:network", name, 3))
    assert load_data(found).classes == 3 and not Path("ran").exists()
    assert (name == "2020.csv") == (found.data.dataset == "rows_of_2020:rows")


def test_a_wrong_first_try_leaves_nothing_in_the_way_of_the_second(folder: Path) -> None:
    """If the model or its data fails, the files that the call wrote are deleted, and a correct call then succeeds."""
    with pytest.raises(OwnCodeError, match="defines no 'nope'"):
        asked("1,2\n3,4\n5,6\n", model="net.py:nope")
    assert {path.name for path in folder.iterdir() if path.is_file()} == {"net.py", "table.csv"}
    (folder / "wrong.py").write_text(WRONG)
    with pytest.raises(OwnCodeError, match=r"training\.model: 'wrong:network'.*shapes"):
        asked("1,2\n3,4\n5,6\n" * 3, model="wrong.py:network")
    (folder / "far.py").write_text(FAR)
    with pytest.raises(ConfigError, match="NaN or infinity"):
        own_model.write_experiment("net.py:network", "far.py:rows", None)
    files = {path.name for path in folder.iterdir() if path.is_file()}
    assert files == {"net.py", "wrong.py", "far.py", "table.csv"}
    assert asked("1,2\n3,4\n5,6\n" * 3).training.model == "net:network"


CLICKS = """
import torch
from torch import nn
from crossover.learning.datasets import Samples

class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.out = nn.Embedding(60, 4), nn.Linear(4, 2)
    def forward(self, inputs):
        return self.out(self.users(inputs[:, 0].long()))

def network(classes, input_shape):
    return Clicks()

def rows(experiment):
    return Samples(torch.arange(60.0, dtype=torch.float64).view(60, 1), torch.arange(60) % 2, classes=2)
"""


def test_options_hold_when_a_model_and_its_data_are_first_tried(folder: Path) -> None:
    """A model of ids that the loader returns as float64, normalised on loading, is refused with the option that leaves them as they are;
    with this option the experiment is written, unchanged by it.
    """
    (folder / "clicks.py").write_text(CLICKS)
    with pytest.raises(OwnCodeError, match=r"index out of range.*--set data\.preprocess=none leaves"):
        own_model.write_experiment("clicks.py:network", "clicks.py:rows", 3)
    raw = ["data.preprocess=none"]
    path = own_model.write_experiment("clicks.py:network", "clicks.py:rows", 3, override=raw)
    assert load(path, raw).data.preprocess == "none" and load(path).data.preprocess == "standardize"


def test_a_model_that_does_not_fit_the_data_is_its_owners_fault(folder: Path) -> None:
    """A model that cannot take the data's inputs raises OwnCodeError with model, file, shape and number of classes."""
    (folder / "wrong.py").write_text(WRONG)
    found = asked("".join(f"{n},1,2,3,4,5,6,{n % 3}\n" for n in range(60)))
    wrong = replace(found, training=replace(found.training, model="wrong:network"))
    with pytest.raises(OwnCodeError, match=r"training\.model.*wrong:network.*wrong\.py.*\(7,\).*3 classes"):
        subject.build_question(wrong)


def test_a_file_that_says_its_data_takes_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    """`advise` with an experiment's file and --data ends with status 2."""
    assert status("advise", str(CONFIG / "all-reduce-s3.yaml"), "--data", "data.csv") == 2
    assert "already names its data" in capsys.readouterr().err


def test_a_first_estimate_comes_before_the_model_is_tried(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`advise` prints experiment, data, training and a first estimate, in this order, before it tries the model."""

    def stop(experiment: Experiment) -> None:
        """Raise ConfigError in place of trying the model."""
        raise ConfigError(f"the trial of {experiment.name} begins")

    monkeypatch.setattr("crossover.running.preparing.try_training", stop)
    Path("table.csv").write_text("".join(f"{n},0.5,{n % 2}\n" for n in range(200)))
    assert status("advise", "net.py:network", "--data", "table.csv", "--on-hand", "lambda") == 2
    said = capsys.readouterr().err
    lines = (
        "experiment: net.yaml",
        "data: table.csv: 200 rows",
        "training: minibatches of ",
        "[projected] first estimate: one function",
        "begins",
    )
    places = [said.index(line) for line in lines]
    assert places == sorted(places), said


def test_advise_says_what_it_reads_before_it_reads_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`advise` of a model with a CSV names both on standard error before it reads the CSV."""
    said = list[str]()

    def note_and_stop(*arguments: object, **settings: object) -> Path:
        """Note what was printed so far, in place of reading the data."""
        said.append(capsys.readouterr().err)
        raise ConfigError("read")

    monkeypatch.setattr(own_model, "write_experiment", note_and_stop)
    with pytest.raises(ConfigError, match="read"):
        cli._find_experiment_file(Path("net.py:network"), "table.csv", None, Table(), probe=False)
    assert said == ["reading table.csv, then trying net.py:network on it\n"]


def test_a_minibatch_that_nobody_chose_is_said_to_be_assumed(folder: Path) -> None:
    """A minibatch in a YAML file that was written for a model alone is assumed until somebody edits the file or gives --set."""
    Path("table.csv").write_text("".join(f"{n},0.5,{n % 2}\n" for n in range(200)))
    path = own_model.write_experiment("net.py:network", "table.csv", None)

    def assumes(*override: str) -> bool:
        """Return whether the minibatch is assumed with the --set options `override`."""
        return cli._is_minibatch_assumed(load(path), path, list(override), flags=False)

    assert assumes() and not assumes("training.batch_size=60")
    text = path.read_text()
    path.write_text(text.replace("model: net:network", "model: mobilenet").replace("  batch_size: 60\n", ""))
    assert assumes(), "the data is the user's own"
    path.write_text(text.replace("batch_size: 60", "batch_size: 64"))
    assert not assumes()


@pytest.mark.slow
def test_an_assumed_minibatch_says_what_a_larger_one_would_give(found: Advice) -> None:
    """The sentence on a larger minibatch has the winner's time and dollars with it; there is none if data or memory is too small for it."""
    sizes, base = Sizes(vector_bytes=1_000, kept_bytes=1.0, evaluation_bytes=0), found.question.base
    question = replace(found.question, base=replace(base, training=replace(base.training, batch_size=10)))
    candidate = found.winner.candidate._replace(batch_size=10 * base.workers)
    small = replace(found, question=question, winner=replace(found.winner, candidate=candidate))
    said = explain.describe_larger_minibatch(small, sizes)
    assert said.startswith(f"with 80, {candidate.words} would be ready in ")
    assert said.endswith(" another answer may be better (--set training.batch_size=80)")
    few = replace(small, question=replace(question, samples=160 * base.workers - 1))
    assert explain.describe_larger_minibatch(few, sizes) == ""
    assert explain.describe_larger_minibatch(small, replace(sizes, kept_bytes=1e9)) == ""


@pytest.mark.slow
def test_a_model_alone_is_advised(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`advise` takes a model and a CSV, writes the YAML file first, and answers with an estimate for this machine too."""
    Path("table.csv").write_text("".join(f"{n},0.5,{n % 2}\n" for n in range(200)))
    asked = ("--data", "table.csv", "--epochs", "2", "--on-hand", "lambda", "--json")
    with few_candidates():
        assert status("advise", "net.py:network", *asked) == 0
    said = capsys.readouterr()
    assert said.err.index("experiment: net.yaml") < said.err.index("[projected] first estimate: one function")
    answer = json.loads(said.out)
    jsonschema.validate(answer, json.loads(SCHEMA.read_text()), jsonschema.Draft202012Validator)
    assert answer["this_machine"]["words"].startswith("Your machine does it in ")
    assert (
        "for nothing" in answer["this_machine"]["words"] and answer["winner"]["candidate"]["architecture"] == "single"
    )
    assert load("net.yaml").training.epochs == 2
    assert Path("net-network.speed.json").is_file() and "written: net-network.speed.json" in said.err


# --- this machine -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Advice:
    """Return advice for config/all-reduce-s3.yaml among few candidates on Lambda."""
    question, sizes, _ = subject.build_question(load(CONFIG / "all-reduce-s3.yaml", ["training.epochs=4"]))
    with few_candidates():
        return advise(question, Constraints(on_hand=("lambda",)), sizes, processes=1, repetitions=5)


def measured(seconds: float) -> Probe:
    """Return a measurement in which a minibatch of 50 samples takes `seconds`, after a start of 2 s."""
    return Probe(ratio=1.0, spread=0.1, pairs=3, batch_size=50, seconds=seconds, peak_mb=100.0, start_s=2.0)


@pytest.mark.slow
def test_this_machine_stands_beside_the_soonest_and_outside_the_front(found: Advice) -> None:
    """The estimate for this machine has its seconds and the multiple of the epochs from which the soonest candidate on AWS is quicker."""
    (soonest,) = (card.finalist for card in found.cards if "soonest" in card.names)
    fixed_s, each_s = explain._fit_time_line(found.question, soonest)
    samples = (
        found.question.samples + found.question.calibration.evaluate_share * found.question.workload.validation_samples
    )
    slow = explain.local_estimate_of(found, measured(50 * 2 * each_s / samples))
    before_s, update_s = 2.0 + explain.REPORT_S, explain.UPDATE_S * found.question.samples / 60
    assert slow.before_s == before_s and slow.seconds == pytest.approx(before_s + 4 * (2 * each_s + update_s))
    assert slow.times == pytest.approx((fixed_s - before_s) / (4 * (each_s + update_s)))
    assert f"with {slow.times:,.3g} times the epochs or more, {soonest.candidate.words} is sooner" in slow.words
    quick = explain.local_estimate_of(found, measured(50 * 0.5 * each_s / samples))
    assert quick.times is None and "is never sooner" in quick.words
    behind = explain.local_estimate_of(found, measured(50 * (2 * each_s + fixed_s) / samples))
    assert (
        behind.times is not None
        and behind.times < 1
        and behind.words.endswith(f"the soonest on AWS is {soonest.candidate.words}.")
    )
    beside = replace(found, here=slow)
    assert (
        explain.card_rows(beside)[-1][0] == "this machine"
        and len(explain.card_rows(beside)) == len(explain.card_rows(found)) + 1
    )
    assert beside.front == found.front and beside.winner is found.winner


# --- how a CSV is read --------------------------------------------------------------------------------------------------

FIRST = "kind,a,b\n" + "".join(f"{n % 3},0.{n % 7},{n}.5\n" for n in range(60))


def test_what_is_told_of_a_csv_stands_in_the_yaml(folder: Path) -> None:
    """Options on how to read a CSV are written into the YAML file, with what was guessed."""
    Path("table.csv").write_text(FIRST)
    told = Table(label="kind", drop=("b",))
    found = load(own_model.write_experiment("net.py:network", "table.csv", 3, told))
    assert found.data.table == Table(label="kind", kind="classes", header=True, drop=("b",))
    data = load_data(found)
    assert data.classes == 3 and data.train_inputs.shape == (48, 1)


def test_another_reading_is_written_over_what_nobody_has_changed_and_over_nothing_else(folder: Path) -> None:
    """Another reading of the CSV replaces an unedited YAML file and keeps its epochs; an edited file is refused and stays."""
    Path("table.csv").write_text(FIRST)
    found = load(own_model.write_experiment("net.py:network", "table.csv", 5))
    assert (found.training.loss, found.data.table.label) == ("mse", "b")
    found = load(own_model.write_experiment("net.py:network", "table.csv", 3, Table(label="kind")))
    assert (found.training.loss, found.data.table.label, found.training.epochs) == ("cross_entropy", "kind", 5)
    (folder / "net.yaml").write_text((folder / "net.yaml").read_text().replace("batch_size: 30", "batch_size: 20"))
    changed = (folder / "net.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"net\.yaml: exists and differs"):
        own_model.write_experiment("net.py:network", "table.csv", 3, Table(label="a"))
    assert (folder / "net.yaml").read_bytes() == changed


def test_index_columns_are_left_out_beside_what_is_named_unless_none_is(folder: Path) -> None:
    """An index column is dropped besides the columns that --drop names, but not if `none` is among them."""
    rows = "".join(f"{n},{n % 5}.5,x,{n % 2}\n" for n in range(60))
    Path("table.csv").write_text(f"Id,a,s,kind\n{rows}")

    def dropped(*named: str) -> tuple[str | int, ...] | None:
        """Return the dropped columns of the written experiment. `named`: columns that the option --drop names."""
        return load(own_model.write_experiment("net.py:network", "table.csv", 3, Table(drop=named))).data.table.drop

    assert dropped("s") == ("Id", "s")
    assert dropped("s", "none") == ("s",)


def test_options_of_a_csv_are_refused_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Options on how to read a CSV end with status 2 if the data is a loader or the experiment has a file."""
    (folder / "net.py").write_text(NETWORK + FAR)
    assert status("advise", "net.py:network", "--data", "net.py:rows", "--label", "a") == 2
    assert "apply only to a CSV; net.py:rows is a loader" in capsys.readouterr().err
    assert status("advise", str(CONFIG / "all-reduce-s3.yaml"), "--no-header") == 2
    assert "--set data.table.label=" in capsys.readouterr().err


def test_plan_says_how_data_was_understood(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan` says before the costs how it read the table, and its JSON has the same under `data`; CIFAR-10 has ten classes there."""
    Path("table.csv").write_text(FIRST)
    own_model.write_experiment("net.py:network", "table.csv", 3)
    assert status("plan", "net.yaml") == 0
    said = capsys.readouterr().out
    assert "data: table.csv: 60 rows, of which 48 train and 12 validate (data.validation), 2 inputs, header;" in said
    assert "label b (the last column): numbers 0.5 to 59.5" in " ".join(said.split())
    assert said.index("data: table.csv") < said.index("$")
    assert status("plan", "net.yaml", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, json.loads((SCHEMA.parent / "plan.json").read_text()))
    assert answer["data"]["header"] and answer["data"]["label"]["name"] == "b"
    assert status("plan", str(CONFIG / "all-reduce-s3.yaml"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"]["label"]["classes"] == 10
