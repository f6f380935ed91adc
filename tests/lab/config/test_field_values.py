"""Texts of flags: lists without quotes, of which commas in brackets split nothing."""

import pytest

from fedjax_ht.lab.config.config_files import WordsParser, split_words, to_tuple


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a,b", ["a", "b"]),
        (" a , b,", ["a", "b"]),
        (",a", ["a"]),
        ("fedral:blocks=(2,4),local", ["fedral:blocks=(2,4)", "local"]),
        ("x={'k': [1,2]},y", ["x={'k': [1,2]}", "y"]),
        ("'a,b',c", ["'a,b'", "c"]),
        ('"(",c', ['"("', "c"]),
        ("a person's", ["a person's"]),
        ("", []),
    ],
)
def test_words_are_split_at_commas_outside_brackets_and_quotes(text, entries):
    assert split_words(text) == entries == WordsParser().parse(text)
    assert WordsParser().parse(entries) == entries


@pytest.mark.parametrize("text", ["a=(1,b", "a=1),b", "a person's,b", "a=[1,(2],b"])
def test_a_bracket_or_a_quote_alone_is_refused(text):
    with pytest.raises(ValueError, match="stands alone; write a,b or"):
        split_words(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("('a', 'b')", ("a", "b")),
        ("['a']", ("a",)),
        ("1,2", (1, 2)),
        ("3", (3,)),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        ("()", ()),
    ],
)
def test_a_tuple_is_a_literal_or_words(text, value):
    assert to_tuple(text) == value
