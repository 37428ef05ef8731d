"""What supervisor and workers tell one another is read as it was written, and roles follow from it alike everywhere."""

from crossover.stores.encoding import VectorKind
from functions.mlless.words import StepReport, Word, encode, read_report, read_word


def test_messages_are_read_as_written() -> None:
    """A report and a word, encoded and read, are equal to the originals; a word is encoded as a record."""
    report = StepReport(loss=0.5, samples=7, seconds=1.5, update=True, complaints=(2, 3))
    assert read_report(encode(report), key="k") == report
    word = Word(step=3, senders=(0, 2), leaves={1: 9}, dropped=(3,), loss=0.25, at=12.5)
    assert read_word(encode(word), key="k") == word
    assert encode(word).kind is VectorKind.RECORD


def test_who_computes_and_who_reports() -> None:
    """Workers that were dropped or have left do not compute; one that leaves still reports in the step in which it leaves."""
    word = Word(step=3, leaves={1: 6}, dropped=(3,))
    assert word.list_computing(5, 5) == [0, 1, 2, 4] == word.list_reporting(5, 5)
    assert word.list_computing(5, 6) == [0, 2, 4]
    assert word.list_reporting(5, 6) == [0, 1, 2, 4], "a farewell is a report"
    assert word.list_reporting(5, 7) == [0, 2, 4]
