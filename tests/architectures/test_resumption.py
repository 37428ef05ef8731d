"""A run that fails on this machine leaves in its folder what it needs to be gone on with, and then ends with the bits of one that was never
disturbed.
"""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossover.errors import ConfigError, RunFailed, UserError
from crossover.experiment import Data, Exchange, Experiment, Functions
from crossover.running import inline, preparing
from crossover.running import resume as keeping
from crossover.running import resume as resumption
from crossover.running.deployed import run_local
from crossover.running.inline import run_inline
from crossover.running.monitor import Progress
from crossover.stores.documents import seal, unseal
from crossover.training import gradients
from crossover.training import progress as agreement
from crossover.workflow.architecture import load
from crossover.workflow.context import Context
from functions import all_reduce, spirt
from tests.architectures.harness import claiming, most_to_lose, small, tree_architectures
from tests.commands import status
from tests.sampling import WHOLE

EPOCHS = 3


def experiment(architecture: str, exchange: Exchange | None = None) -> Experiment:
    """Return a small experiment of EPOCHS epochs with checkpoints every two rounds."""
    found = small(architecture, epochs=EPOCHS)
    return replace(found, exchange=exchange or found.exchange, functions=Functions(checkpoint_every=2, timeout_s=10))


def quietly(progress: Progress) -> None:
    """Report nothing."""


def sha(result: Any) -> str:
    """Return the SHA-256 of the run's final model."""
    return str(result.result["final"]["parameters_sha256"])


@contextmanager
def failing_at(epoch: int) -> Iterator[None]:
    """Let the decision after `epoch` raise RunFailed, for every worker, while the block runs."""
    agree = agreement.create_decision

    def failing(ctx: Context, at: int, **options: Any) -> None:
        """Make the decision. Raises RunFailed for the chosen epoch."""
        if at == epoch:
            raise RunFailed("the disk is full")
        agree(ctx, at, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "create_decision", failing)
        yield


def fail(
    architecture: str, folder: Path, *, at: int = 2, resume: bool = False, exchange: Exchange | None = None
) -> None:
    """Run an experiment, or resume it, and let it fail after the epoch `at`."""
    with failing_at(at), pytest.raises(RunFailed, match=r"disk is full|no worker is left"):
        run_inline(experiment(architecture, exchange), folder, quietly, resume=resume)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the SHA-256 of the model that an undisturbed AllReduce run ends with."""
    return sha(run_inline(experiment("all_reduce"), tmp_path_factory.mktemp("whole"), quietly))


@pytest.fixture(scope="module")
def failed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an AllReduce run that failed after its second epoch; it is not to be changed."""
    folder = tmp_path_factory.mktemp("failed")
    fail("all_reduce", folder)
    return folder


@pytest.fixture
def failed(failed_once: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder of an AllReduce run that failed after its second epoch."""
    return Path(shutil.copytree(failed_once, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "exchange"),
    [
        *((name, None) for name in claiming("resumes")),
        *((name, exchange) for name in claiming("resumes") if (exchange := most_to_lose(name))),
    ],
    ids=lambda value: str(getattr(value, "what", value)),
)
def test_a_failed_run_is_gone_on_with_to_the_same_bits(
    architecture: str, exchange: Exchange | None, tmp_path: Path
) -> None:
    """Check that a run that failed after an epoch resumes without repeating what its state contains, and ends with the bits of an
    undisturbed run.
    """
    whole = run_inline(experiment(architecture, exchange), tmp_path / "whole", quietly)
    folder = tmp_path / "run"
    assert not resumption.holds_unfinished(tmp_path / "whole")
    fail(architecture, folder, exchange=exchange)
    assert [epoch["epoch"] for epoch in json.loads((folder / "result.json").read_text())["epochs"]] == [1]
    computed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        gradient = gradients.compute_gradient

        def counted(ctx: Context, event: Any, batch: Any) -> Any:
            """Record the epoch of the gradient, and compute it."""
            computed.append(event["epoch"])
            return gradient(ctx, event, batch)

        patch.setattr(gradients, "compute_gradient", counted)
        again = run_inline(experiment(architecture, exchange), folder, quietly, resume=True)
    assert 1 not in computed, "the first epoch is not computed again"
    assert sha(again) == sha(whole)
    assert [epoch["epoch"] for epoch in again.result["epochs"]] == [1, 2, 3]
    assert not resumption.holds_unfinished(folder)


@pytest.mark.parametrize("result", ["{}", "[]", "null", '{"final": null}', "{"])
def test_a_result_that_says_nothing_of_the_end_is_no_finished_run(result: str, tmp_path: Path) -> None:
    """Check that a folder with a model counts as finished only if its result.json says how training ended."""
    (tmp_path / resumption.MODEL).write_bytes(b"")
    (tmp_path / resumption.RESULT).write_text(result)
    assert not resumption.has_model(tmp_path)


def test_a_resumed_run_may_fail_and_be_resumed_again(failed: Path, whole: str) -> None:
    """Check that the state which a resumed run began with stays if the run fails before it has a newer one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crossover.running.resume.save_resume_data", lambda *_, **__: None)
        fail("all_reduce", failed, resume=True)
    fail("all_reduce", failed, at=3, resume=True)
    assert sha(run_inline(experiment("all_reduce"), failed, quietly, resume=True)) == whole


# --- what cannot be gone on with --------------------------------------------------------------------------------------


def test_a_finished_run_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    """Check that resuming a finished run is refused."""
    run_inline(
        replace(experiment("all_reduce"), training=replace(experiment("all_reduce").training, epochs=1)),
        tmp_path,
        quietly,
    )
    with pytest.raises(UserError, match="nothing to resume: its run is finished"):
        run_inline(experiment("all_reduce"), tmp_path, quietly, resume=True)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"failure": ',
        b"\xff",
        b"[]",
        b'{"failure": "the disk is full"}',
        b'{"failure": "the disk is full", "architecture": 3}',
    ],
)
def test_a_damaged_result_is_reported_with_what_to_do(tmp_path: Path, text: bytes) -> None:
    """Check that resuming a folder whose result.json is not a run's result is refused with the file's name and advice."""
    (tmp_path / "result.json").write_bytes(text)
    with pytest.raises(UserError, match=r"nothing to resume: result\.json is damaged .*; start a new run"):
        resumption.find_unfinished(tmp_path)


def test_a_finished_run_that_was_killed_while_it_cleared_away_has_nothing_to_go_on_with(
    failed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a finished run killed while it deleted its resume data does not count as unfinished.

    Half of these data, whichever half a file system lists first, would look like a run that has lost its epochs.
    """
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    keeping.discard_resume_data(failed)
    assert not resumption.holds_unfinished(failed)


def test_a_finished_run_that_was_killed_before_it_cleared_away_has_nothing_to_go_on_with(
    failed: Path, tmp_path: Path
) -> None:
    """Check that a finished run whose resume data were not deleted does not count as unfinished and is not resumed."""
    shutil.copytree(failed / "unfinished", tmp_path / "unfinished")
    run_inline(experiment("all_reduce"), failed, quietly, resume=True)
    shutil.copytree(tmp_path / "unfinished", failed / "unfinished")
    assert not resumption.holds_unfinished(failed)
    with pytest.raises(UserError, match="nothing to resume: its run is finished"):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)


@pytest.mark.parametrize(
    ("architecture", "start", "words"),
    [
        pytest.param(
            "all_reduce",
            "crossover.training.long_worker.write_first_checkpoints",
            "failed before there was a checkpoint; start a new run",
            marks=pytest.mark.slow,
        ),
        (
            "spirt",
            "functions.spirt.state.start",
            "its state was in the database, which ended with the run and had no complete round",
        ),
    ],
)
def test_a_run_that_failed_before_any_state_was_kept_has_nothing_to_resume(
    architecture: str, start: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that resuming is refused, with the reason, if a run failed before its first state was saved."""
    monkeypatch.setattr(start, lambda *_, **__: 1 / 0)
    with pytest.raises(RunFailed):
        run_inline(experiment(architecture), tmp_path, quietly)
    with pytest.raises(UserError, match=words):
        run_inline(experiment(architecture), tmp_path, quietly, resume=True)


def test_a_new_run_in_the_folder_takes_its_place(failed: Path) -> None:
    """Check that a new run in the folder of an unfinished one ends, and that no unfinished run is left there."""
    run_inline(experiment("all_reduce"), failed, quietly)
    assert not resumption.holds_unfinished(failed)


def test_other_settings_are_named(failed: Path) -> None:
    """Check that resuming with other settings is refused, that the message names them, and that the unfinished run is kept."""
    other = replace(experiment("all_reduce"), training=replace(experiment("all_reduce").training, epochs=9))
    with pytest.raises(ConfigError, match=r"other settings: training.epochs: 9, there 3; set them as they were"):
        run_inline(other, failed, quietly, resume=True)
    with pytest.raises(ConfigError, match=r'architecture: "scatter_reduce", there "all_reduce"'):
        run_inline(experiment("scatter_reduce"), failed, quietly, resume=True)
    assert resumption.holds_unfinished(failed)


def test_a_higher_budget_is_no_other_setting(failed: Path) -> None:
    """Check that a run may be resumed with a higher budget."""
    found = experiment("all_reduce")
    run_inline(replace(found, lifetime=replace(found.lifetime, budget_usd=1e6)), failed, quietly, resume=True)


def test_another_version_is_named(failed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that resuming with another version of torch is refused, and with another version of Python is not."""
    here = inline.collect_versions()
    monkeypatch.setattr(inline, "collect_versions", lambda: {**here, "torch": "9.9", "python": "3.99"})
    with pytest.raises(
        ConfigError, match=rf"started with torch {re.escape(here['torch'])}; here is torch 9.9, which may compute"
    ):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)
    monkeypatch.setattr(inline, "collect_versions", lambda: {**here, "python": "3.99"})
    assert run_inline(experiment("all_reduce"), failed, quietly, resume=True)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the project's sources, which the test may change. Runs take it for the project's own code."""
    for part in ("crossover", "functions", "peers"):
        shutil.copytree(
            preparing.ROOT / part, tmp_path / "sources" / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(preparing, "ROOT", tmp_path / "sources")
    preparing.digest_project.cache_clear()
    return tmp_path / "sources"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "decisive"),
    [
        ("functions/all_reduce.py", True),
        ("crossover/training/synchronous.py", True),
        ("crossover/algorithms/optimizers.py", True),
        ("crossover/learning/zoo.py", True),
        ("functions/spirt/__init__.py", False),
        ("crossover/reports/bill.py", False),
        ("crossover/cli/plan.py", False),
    ],
)
def test_changed_code_of_the_architecture_is_named_and_no_other(
    file: str, decisive: bool, failed: Path, sources: Path
) -> None:
    """Check that a run is not resumed with changed code of its architecture, and that other changed files do not matter."""
    text = (sources / file).read_text()
    (sources / file).write_text(f"{text}FACTOR = 0.1\n")
    if not decisive:
        assert run_inline(experiment("all_reduce"), failed, quietly, resume=True)
        return
    with pytest.raises(ConfigError, match=rf"other code: {re.escape(file)} is changed; .* restore the earlier code"):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)
    (sources / file).write_text(text)
    preparing.digest_project.cache_clear()
    resumption.find_unfinished(failed).check(
        load("all_reduce").resolve(experiment("all_reduce")),
        where="inline",
        versions=inline.collect_versions(),
        code=preparing.digest_code(experiment("all_reduce")),
    )


def test_what_the_architecture_says_of_itself_is_named(failed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that resuming is refused if a property of the architecture has changed, and that the message names it."""
    changed = replace(all_reduce.ARCHITECTURE, tensor_hosts="per_worker")
    monkeypatch.setattr(all_reduce, "ARCHITECTURE", changed)
    with pytest.raises(ConfigError, match="other code: tensor_hosts: shared then, per_worker now"):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)


def test_the_record_of_a_run_says_which_code_it_was(failed: Path) -> None:
    """Check that result.json contains the digests of the executed code."""
    result = json.loads((failed / "result.json").read_text())
    assert result["code"] == preparing.digest_code(experiment("all_reduce"))
    assert "functions/all_reduce.py" in result["code"]["files"] and len(result["code"]["digest"]) == 64


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["per_worker", "shared"])
def test_state_in_a_database_is_kept_whoever_shares_it(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a SPIRT run can be resumed whether each worker has a database or all share one."""
    monkeypatch.setattr(spirt, "ARCHITECTURE", replace(spirt.ARCHITECTURE, tensor_hosts=hosts))
    whole = run_inline(experiment("spirt"), tmp_path / "whole", quietly)
    fail("spirt", tmp_path / "run")
    assert sha(run_inline(experiment("spirt"), tmp_path / "run", quietly, resume=True)) == sha(whole)


def test_other_data_under_the_same_name_is_noticed(failed: Path) -> None:
    """Check that resuming is refused if the fingerprint of the data has changed."""
    facts = next((failed / "unfinished").rglob("experiment.json"))
    facts.write_bytes(seal({**unseal(facts.read_bytes(), key="facts"), "data": "0" * 64}))
    with pytest.raises(ConfigError, match=r"started on other data \(fingerprint 000000000000, here [0-9a-f]{12}\)"):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)


def test_a_run_is_resumed_only_where_it_was_started(failed: Path) -> None:
    """Check that a run started inline cannot be resumed on the local cloud."""
    with pytest.raises(ConfigError, match="was started --on inline; resume it there"):
        run_local(experiment("all_reduce"), failed, quietly, resume=True)


def test_a_damaged_folder_is_said_to_be(failed: Path) -> None:
    """Check that resuming is refused if the kept configuration is damaged, and that the message names the file."""
    next((failed / "unfinished").rglob("experiment.json")).write_text("{")
    with pytest.raises(UserError, match=r"unfinished is damaged \(runs/.*/experiment\.json: checksum differs"):
        run_inline(experiment("all_reduce"), failed, quietly, resume=True)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_says_how_to_go_on_and_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `run` prints after a failure the command that resumes the run, that it works, and that a second one is refused."""
    config, out = tmp_path / "mine.yaml", tmp_path / "mine"
    config.write_text("name: mine\narchitecture: spirt\nworkers: 2\ntraining: {epochs: 3, batch_size: 240}\n")
    command = ("run", str(config), "--on", "inline")
    with failing_at(2):
        assert status(*command, "--out", str(out)) == 1
    kept = f"{out} holds an unfinished run; to resume it (with unchanged code): "
    assert f"{kept}crossover run {config} --on inline --resume {out}" in capsys.readouterr().err
    assert status(*command, "--resume", str(out), "--out", str(tmp_path / "elsewhere")) == 2
    assert "a resumed run keeps its folder" in capsys.readouterr().err
    assert status(*command, "--resume", str(out)) == 0
    assert (out / "model.safetensors").exists()
    assert status(*command, "--resume", str(out)) == 2
    assert "its run is finished" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["experiment.json", "checkpoint"])
def test_nothing_is_promised_of_a_run_whose_damage_was_just_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that a refused resumption of a damaged run names the file and does not print how to resume."""
    config, out = tmp_path / "mine.yaml", tmp_path / "mine"
    config.write_text("name: mine\narchitecture: all-reduce\nworkers: 2\ntraining: {epochs: 3, batch_size: 240}\n")
    with failing_at(2):
        assert status("run", str(config), "--on", "inline", "--out", str(out)) == 1
    assert "to resume it" in capsys.readouterr().err
    for path in (path for path in (out / "unfinished").rglob("*") if path.is_file() and kind in str(path)):
        path.write_bytes(b"")
    assert status("run", str(config), "--on", "inline", "--resume", str(out)) in (1, 2)
    told = capsys.readouterr().err
    assert kind in told and "to resume it" not in told


# --- on the cloud on one machine --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", claiming("resumes") if WHOLE else ["spirt"])
def test_stopped_by_ctrl_c_on_the_local_cloud(architecture: str, tmp_path: Path) -> None:
    """Check that a run on the local cloud stopped by Ctrl-C can be resumed to the same bits in a new cloud with empty databases."""
    found = replace(experiment(architecture), name="stopped", data=Data(dataset="digits", limit=40, validation=0.02))
    if architecture not in tree_architectures():  # programs are through with so little before anybody stops them
        found = replace(found, training=replace(found.training, epochs=100))

    def stop(progress: Progress) -> None:
        """Raise KeyboardInterrupt at the first report."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_local(found, tmp_path / "run", stop)
    assert resumption.holds_unfinished(tmp_path / "run")
    again = run_local(found, tmp_path / "run", quietly, resume=True)
    assert sha(again) == sha(run_inline(found, tmp_path / "whole", quietly))


def test_a_run_that_diverged_is_not_offered_to_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a run with non-finite values is not offered to be resumed, which would reach the same values again."""
    monkeypatch.setattr("crossover.running.inline.has_unfinished_run", lambda folder: True)
    config, out = tmp_path / "mine.yaml", tmp_path / "mine"
    config.write_text(
        "name: mine\narchitecture: all_reduce\nworkers: 2\ntraining: {epochs: 2, batch_size: 240, learning_rate: 1.0e+30}\n"
        "data: {limit: 480}\n"
    )
    assert status("run", str(config), "--on", "inline", "--out", str(out)) == 1
    said = capsys.readouterr().err
    assert "finite" in said and "holds an unfinished run" not in said
