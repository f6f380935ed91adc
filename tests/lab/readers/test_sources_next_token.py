"""Next-word prediction: windows of plain texts, and the token behind each."""

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.next_token import windows_of
from tests.lab.readers.source_files import refused, sets, write


def test_no_token_is_in_two_windows():
    windows = windows_of([5, 6, 7, 8, 9, 2, 3, 4], 2)
    np.testing.assert_array_equal(windows.tokens, [[5, 6], [8, 9], [3, 0]])
    np.testing.assert_array_equal(windows.following, [7, 2, 4])
    assert len(windows_of([5, 6, 7, 8], 2).following) == 1  # the last piece is one token
    assert len(windows_of([5], 2).following) == len(windows_of([], 2).following) == 0


def test_a_folder_has_a_text_of_each_author(tmp_path, caplog):
    write(tmp_path / "plays" / "ann.txt", "To be or not to be")
    write(tmp_path / "plays" / "bob.txt", "so be it")
    write(tmp_path / "plays" / "notes.md", "x")
    dataset = load_dataset("next_token:plays", tmp_path, text_length=2)
    texts = dataset.reading.token_texts
    shown = [[texts[i] for i in row] for row in dataset.inputs]
    assert shown == [["to", "be"], ["not", "to"], ["so", "be"]]
    assert [dataset.class_names[label] for label in dataset.labels] == ["or", "be", "it"]
    assert dataset.groups.tolist() == [0, 0, 1] and dataset.inputs.dtype == np.uint16
    assert dataset.reading.group_names == ("ann", "bob") and dataset.vocabulary == len(texts)
    assert "left out: notes.md (no .txt file)" in caplog.text
    assert "have no sample" not in caplog.text


def test_files_are_sets_and_unknown_words_no_answers(tmp_path, caplog):
    write(tmp_path / "play" / "train.txt", "a b a c")
    write(tmp_path / "play" / "test.txt", "a b b a")
    write(tmp_path / "play" / "val.txt", "a unseen a b")
    dataset = load_dataset("next_token:play", tmp_path, text_length=1)
    assert sets(dataset) == {"test": [0, 1], "train": [2, 3], "val": [4]}
    assert [dataset.class_names[label] for label in dataset.labels] == ["b", "a", "b", "c", "b"]
    assert "left out: 1 sample (their next word is unknown)" in caplog.text


def test_a_trained_tokenizer_adds_no_special_tokens(tmp_path):
    pytest.importorskip("tokenizers")
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil", "price", "##s", "rise")
    write(tmp_path / "model" / "vocab.txt", "\n".join(pieces))
    write(tmp_path / "text.txt", "oil prices rise")
    dataset = load_dataset(
        "next_token:text.txt", tmp_path, text_length=3, tokenizer=tmp_path / "model"
    )
    assert dataset.inputs.tolist() == [[5, 6, 7]] and dataset.class_names == ("rise",)
    assert dataset.groups is None and dataset.vocabulary == len(pieces)


def test_what_is_no_text_is_refused(tmp_path):
    write(tmp_path / "a.txt", b"\xff\xfe")
    refused("a.txt is no UTF-8 (byte 0)", "next_token:a.txt", tmp_path)
    write(tmp_path / "b.txt", "alone")
    refused("b.txt has fewer than two", "next_token:b.txt", tmp_path)
    (tmp_path / "empty").mkdir()
    refused("no .txt file in the folder", "next_token:empty", tmp_path)
