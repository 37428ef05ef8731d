"""YAML as people write it: what is read, what is refused, and where the error points."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossover.errors import ConfigError
from crossover.validation import documents


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),  # YAML 1.1 reads text here
        ("5.", 5.0),
        ("1_000", 1000),
        ("-3", -3),
        ("010", "010"),  # YAML 1.1 reads 8
        ("1:30", "1:30"),  # YAML 1.1 reads 90
        ("no", "no"),  # YAML 1.1 reads false
        ("true", True),
        ("", None),
        ("~", None),
        ("'12'", "12"),
        ("2026-11-21", "2026-11-21"),
        ("[1, a]", [1, "a"]),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    """A YAML scalar has the value and the type that it looks like."""
    found = documents.parse(text, source="here")
    assert found == value
    assert type(found) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.none())
def test_json_is_read_back(value: object) -> None:
    """JSON text is parsed to the value that it was made from."""
    import json

    assert documents.parse(json.dumps(value), source="here") == value


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: 1\nb: [1,\n", "line 3, column 1", "expected"),
        ("a:\n  b: 1\n c: 2\n", "line 3, column 2", "expected"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1", "'a' is given twice, first in line 1"),
        ("s:\n  x: 1\n  x: 1\n", "line 3, column 3", "'x' is given twice, first in line 2"),
        ("a: &x {b: 1}\nc: *x\n", "line 2, column 4", "alias *x: write the value out"),
        ("a: !!python/object:os.system {}\n", "line 1, column 4", "could not determine a constructor"),
        ("a: \x07", "", "special characters"),
    ],
)
def test_a_syntax_error_says_where(text: str, where: str, what: str) -> None:
    """A YAML syntax error raises ConfigError with the file, the place and the problem."""
    with pytest.raises(ConfigError) as caught:
        documents.parse(text, source="x.yaml")
    assert str(caught.value).startswith("x.yaml")
    assert where in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("sprit.yaml", b"", r"sprit\.yaml: no such file; did you mean .*spirt\.yaml\?"),
        ("", b"", "is a folder; expected a YAML file"),
        ("spirt.yaml", b"\xff\xfe\x00", "is no text in UTF-8"),
        ("spirt.yaml", b"", "expected fields such as .*, found nothing"),
        ("spirt.yaml", b"- a\n", "expected fields such as .*, found a list"),
        ("spirt.yaml", b"text", "expected fields such as .*, found a single value"),
    ],
)
def test_what_is_no_file_with_fields_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """A missing file, a folder, or a file without fields raises ConfigError. `content`: the bytes of spirt.yaml; `says`: the message."""
    (tmp_path / "spirt.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        documents.read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "my trips.csv",
            r"my trips\.csv: is data; expected .*`crossover advise model\.py:factory --data '.*my trips\.csv'` writes one",
        ),
        *(
            (
                f"x{ending}",
                r"is data; .*`crossover advise model\.py:factory --data mine:load`.* returns the data as Samples",
            )
            for ending in (".npz", ".npy", ".parquet", ".json", ".pt", ".PNG", ".zip")
        ),
        ("trips.txt", r"is no \.yaml file, and its 1,000,002 bytes are too many for one; .*--data .*trips\.txt`"),
        ("trips", r"are too many for one; .*--data mine:load`"),
    ],
)
def test_data_are_refused_unread_with_their_command(
    tmp_path: Path, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data in place of a YAML file raise ConfigError, which `says` the command for them, before they are parsed."""
    monkeypatch.setattr(documents, "parse", pytest.fail)
    (tmp_path / name).write_bytes(b"1,2\n" * 250_000 + b"1\n")
    with pytest.raises(ConfigError, match=says):
        documents.read(tmp_path / name)


def test_an_override_sets_one_field_and_keeps_the_others() -> None:
    """An override sets one field, makes its sections if needed, keeps other fields, and sets None if it has no value."""
    plain = {"training": {"epochs": 20, "momentum": 0.9}, "data": None}
    documents.apply_override(plain, "training.epochs=3")
    documents.apply_override(plain, "functions.memory_mb.default=512")
    documents.apply_override(plain, "data.directory=/tmp/a=b")
    documents.apply_override(plain, "seed=")
    assert plain == {
        "training": {"epochs": 3, "momentum": 0.9},
        "data": {"directory": "/tmp/a=b"},
        "functions": {"memory_mb": {"default": 512}},
        "seed": None,
    }


@pytest.mark.parametrize("override", ["training.epochs", "=3", "training.=3", ".epochs=3", "name.x=3", "workers.a.b=1"])
def test_an_override_that_names_no_field_is_refused(override: str) -> None:
    """An override that is no `field=value` for these fields raises ConfigError."""
    with pytest.raises(ConfigError, match=r"^--set "):
        documents.apply_override({"name": "spirt", "workers": 4}, override)


def test_nesting_of_thousands_of_levels_is_refused() -> None:
    """YAML that is nested thousands of levels deep raises ConfigError."""
    for text in ("a: " + "[" * 50_000, "{a: " * 50_000):
        with pytest.raises(ConfigError, match="nested too deeply"):
            documents.parse(text, source="deep.yaml")
