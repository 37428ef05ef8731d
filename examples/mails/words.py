"""Text to all-MiniLM-L6-v2's tokens: its own vocabulary, by the rules of BERT's tokenizer (Devlin et al. 2019) and WordPiece."""

import unicodedata
from collections.abc import Iterator, Mapping

FIRST, LAST, UNKNOWN, MASK = 101, 102, 100, 103  # [CLS], [SEP], [UNK], [MASK]
_LONGEST = 100  # characters of a word that is looked up


def tokens(text: str, vocabulary: Mapping[str, int], *, most: int) -> list[int]:
    """Return the tokens of `text`, with the marks FIRST and LAST around them: `most` tokens at most, the rest is cut off. `vocabulary`:
    token by piece of a word.
    """
    found = [FIRST]
    for word in _split_words(text):
        found += _split_into_pieces(word, vocabulary)
        if len(found) >= most:
            break
    return [*found[: most - 1], LAST]


def _split_words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case, without accents and control characters. Each punctuation mark and each Chinese character is
    a word.
    """
    word = ""
    for character in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(character)
        alone = _is_punctuation(character, kind) or _is_chinese(ord(character))
        if kind == "Mn" or (kind[0] == "C" and character not in "\t\n\r") or character == "\ufffd":
            continue
        if (alone or character.isspace()) and word:
            yield word
            word = ""
        if alone:
            yield character
        elif not character.isspace():
            word += character
    if word:
        yield word


def _split_into_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Return the tokens of the longest pieces that the vocabulary has, from the word's start on; [UNKNOWN] if a part is in none, or if the
    word is empty or longer than _LONGEST.
    """
    found, start = list[int](), 0
    while start < len(word) <= _LONGEST:
        ends = (end for end in range(len(word), start, -1) if ("##" if start else "") + word[start:end] in vocabulary)
        if (end := next(ends, None)) is None:
            return [UNKNOWN]
        found.append(vocabulary[("##" if start else "") + word[start:end]])
        start = end
    return found or [UNKNOWN]


def _is_punctuation(character: str, kind: str) -> bool:
    """Return whether a character counts as punctuation: by its Unicode category `kind`, or as an ASCII symbol such as $."""
    return kind[0] == "P" or (
        character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    )


def _is_chinese(code: int) -> bool:
    """Return whether a Unicode code point lies in one of the main blocks of Chinese characters."""
    ranges = (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2FA1F), (0xF900, 0xFAFF)
    return any(first <= code <= last for first, last in ranges)
