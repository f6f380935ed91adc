"""Tokenizers of trained models: their files, and the texts that they make token ids of."""

import json
import sys

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.lab.readers import tokens as tokens_module
from fedjax_ht.lab.readers.tokens import Tokenizer, tokenizer_file

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "oil", "price", "##s", "rise")
TEXTS = "label,text\na,oil prices\nb,Rise\na,zzz oil oil oil oil oil oil\nb,oil rise\n"


@pytest.fixture
def folder(tmp_path):
    """A folder with a vocabulary of WordPiece."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(VOCABULARY))
    (tmp_path / "texts.csv").write_text(TEXTS)
    return tmp_path / "model"


def load(folder, **options):
    return fl.load_dataset(f"text:{folder.parent / 'texts.csv'}", **options)


def test_a_tokenizer_makes_the_ids_of_its_file(folder):
    pytest.importorskip("tokenizers")
    dataset = load(folder, tokenizer=folder, text_length=6)
    expected = [[2, 5, 6, 7, 3, 0], [2, 8, 3, 0, 0, 0], [2, 1, 5, 5, 5, 3], [2, 5, 8, 3, 0, 0]]
    np.testing.assert_array_equal(dataset.inputs, expected)
    assert dataset.inputs.dtype == np.uint16 and dataset.vocabulary == len(VOCABULARY)
    assert dataset.reading.token_texts == ("", *VOCABULARY[1:])
    tokenizer = Tokenizer(folder / "vocab.txt")
    saved = folder.parent / "tokenizer.json"
    saved.write_text(tokenizer._tokenizer.to_str())
    again = load(folder, tokenizer=saved, text_length=6)
    np.testing.assert_array_equal(again.inputs, expected)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer(folder / "vocab.txt").encode(["Rise"], 6) == [[2, 1, 3]]


class Given:
    """A tokenizer whose ids are those of each text's numbers."""

    pieces = ("!", "a", "b")

    def encode(self, texts, length):
        return [[int(number) for number in text.split()][:length] for text in texts]


def test_texts_that_end_in_token_0_are_told(monkeypatch, tmp_path):
    """GPT-2's token 0 is an exclamation mark: behind a text it is not told from padding."""
    monkeypatch.setattr(tokens_module, "Tokenizer", lambda path: Given())
    tokens = tokens_module.tokenised(["1 2", "0 2", "1 0", ""], [], 3, tmp_path)
    np.testing.assert_array_equal(tokens.ids, [[1, 2, 0], [0, 2, 0], [1, 0, 0], [0, 0, 0]])
    assert tokens.warnings == ("1 texts end in the token '!', whose id 0 is padding here",)


def test_files_that_are_no_tokenizers_are_refused(folder):
    pytest.importorskip("tokenizers")
    broken = folder.parent / "tokenizer.json"
    for content in ("", "{}", "[" * 100_000, json.dumps({"model": {"type": "BPE"}})):
        broken.write_text(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json is no tokenizer") as caught:
            load(folder, tokenizer=broken)
        assert "\n" not in str(caught.value)
    (folder / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"vocab.txt is no tokenizer \("):
        load(folder, tokenizer=folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    with pytest.raises(ValueError, match="cut to 2 tokens, of which 2 are the tokenizer's special"):
        load(folder, tokenizer=folder, text_length=2)


def test_a_tokenizer_that_is_not_there(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*; name a tokenizer.json, or"):
        tokenizer_file(folder.parent / "other")
    with pytest.raises(ValueError, match=r"tokenizer is .*, but fashion_mnist_10k has no texts"):
        fl.load_dataset("fashion_mnist_10k", tokenizer=folder)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = r"a tokenizer needs tokenizers; run pip install 'fedjax_ht\[text\]'"
    with pytest.raises(ImportError, match=line):
        load(folder, tokenizer=folder)
