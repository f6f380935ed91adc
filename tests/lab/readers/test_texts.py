"""Sets of texts, tokenizers of trained models, and next-word prediction."""

import csv
import json
import sys

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers import tokens as tokens_module
from fedjax_ht.lab.readers.next_token import windows_of
from fedjax_ht.lab.readers.registry import SOURCES
from fedjax_ht.lab.readers.tokens import Tokenizer, tokenised, tokenizer_file, vocabulary, words
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.bounded import in_one_line
from tests.lab.readers.source_files import load_error, refused, sets, write

TRAIN = [
    ("3", "Fears for T N pension", 'Unions say they are "disappointed".'),
    ("4", "The race: a second team", "A rocket, a rocket; a\\team"),
    ("2", "Goal!", "A goal (two) in it's second half"),
]
TEST = [("1", "The summit", "A summit of leaders"), ("4", "Rocket", "unseen words")]


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


@pytest.fixture
def ag_news(tmp_path):
    write_csv(tmp_path / "ag_news/train.csv", TRAIN)
    write_csv(tmp_path / "ag_news/test.csv", TEST)
    return tmp_path


def test_words():
    split = words('The "B-52\'s" said: It cost $1.50, (really)?<br />Yes!; \tEnd\u00a0of it')
    assert " ".join(split) == "the b-52 ' s said it cost $1 . 50 , ( really ) ? yes ! end of it"


def test_the_vocabulary_is_by_frequency_and_then_by_first_appearance(monkeypatch):
    monkeypatch.setattr(tokens_module, "WORDS", 4)
    learned = ["b a c", "c d b", "e"]
    assert vocabulary(learned) == {"b": 2, "c": 3, "a": 4, "d": 5}
    ids, pieces = tokenised([*learned, "c e b", "", "a a a a a"], range(3), 4, None)
    np.testing.assert_array_equal(ids[3:], [[3, 1, 2, 0], [0] * 4, [4] * 4])
    assert ids.dtype == np.uint16 and pieces == ("", "?", "b", "c", "a", "d")


def test_ag_news(ag_news):
    dataset = load_dataset("ag_news", ag_news)
    assert dataset.inputs.shape == (5, 200) and dataset.inputs.dtype == np.uint16
    assert dataset.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert dataset.labels.tolist() == [2, 3, 1, 0, 3]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}
    learned = vocabulary(" ".join(row[1:]) for row in TRAIN)
    assert dataset.vocabulary == len(learned) + 2 and learned["a"] == 2
    back = {i: word for word, i in learned.items()} | {1: "?"}
    texts = [" ".join(back[i] for i in row if i) for row in dataset.inputs.tolist()]
    assert texts[0] == "fears for t n pension unions say they are disappointed ."
    assert texts[1] == "the race a second team a rocket , a rocket a\\team"
    assert texts[3:] == ["the ? a ? ? ?", "rocket ? ?"]  # of the training texts alone
    places = SOURCES["ag_news"].places("", ag_news)
    assert [path.name for path in places] == ["train.csv", "test.csv"]


def test_how_long_texts_are(ag_news):
    whole, cut = load_dataset("ag_news", ag_news), load_dataset("ag_news", ag_news, None, 5)
    np.testing.assert_array_equal(cut.inputs, whole.inputs[:, :5])
    assert load_dataset("ag_news", ag_news, text_length=300).inputs.shape == (5, 300)
    refused("text_length is 0; it must be an integer", "ag_news", ag_news, None, 0)
    refused("image_size is 8, but ag_news has no images", "ag_news", ag_news, 8)
    refused("text_length is 8, but fashion_mnist_10k has no", "fashion_mnist_10k", None, None, 8)


@pytest.mark.parametrize("file", ["ag_news_test.csv", "ag_news/test.csv", "ag_news_csv/test.csv"])
def test_the_test_set_alone(tmp_path, file):
    write_csv(tmp_path / file, TEST)
    dataset = load_dataset("ag_news_test", tmp_path)
    assert dataset.labels.tolist() == [0, 3] and dataset.num_classes == 4 and not dataset.official
    assert dataset.vocabulary == 10 and (dataset.inputs > 1).sum() == 9  # every word is known
    refused("not found", "ag_news", tmp_path, kind=FileNotFoundError)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no rows"),
        (b'"5","a","b"\n', "a class is '5', not 1 to 4"),
        (b'"1","a","b"\n"2","a"\n', "line 2 has 2 cells for 3 columns"),
        (b'"1"\n', "line 1 has 1 column, not a class and texts"),
    ],
)
def test_damaged_csv(ag_news, content, message):
    (ag_news / "ag_news/test.csv").write_bytes(content)
    line = load_error(ValueError, "ag_news", ag_news)
    assert message in line and "test.csv: " in line
    assert "rows of class (1 to 4), title and description" in line


def assert_limited(monkeypatch, limit, value, message, name, data_dir):
    """With this limit the set is refused in a line that has the message."""
    with monkeypatch.context() as patched:
        patched.setattr(limits, limit, value)
        refused(message, name, data_dir)


def test_limits_of_texts(ag_news, monkeypatch):
    for limit, value, message in (
        ("TEXTS", 4, "the set has 5 texts, more than the allowed 4"),
        ("WORDS", 5, "different words, more than the allowed 5"),
        ("TEXTS_BYTES", 50, "more than the allowed 50"),
    ):
        assert_limited(monkeypatch, limit, value, message, "ag_news", ag_news)


def test_the_vocabulary_of_a_dataset():
    tokens, labels = np.array([[1, 4], [0, 2]]), np.array([0, 1])
    assert Dataset("d", tokens, labels, ("a", "b"), vocabulary=5).vocabulary == 5
    with pytest.raises(ValueError, match="d: token ids run from 0 to 4; with vocabulary 4 they"):
        Dataset("d", tokens, labels, ("a", "b"), vocabulary=4)
    with pytest.raises(ValueError, match="vocabulary is 4, but inputs are not tokens, integers"):
        Dataset("d", tokens.astype(float), labels, ("a", "b"), vocabulary=4)


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


def test_files_that_are_no_tokenizers_are_refused(folder):
    pytest.importorskip("tokenizers")
    broken = folder.parent / "tokenizer.json"
    texts = f"text:{folder.parent / 'texts.csv'}"
    for content in ("", "{}", "[" * 100_000, json.dumps({"model": {"type": "BPE"}})):
        broken.write_text(content)
        refused("tokenizer.json is not a tokenizer", texts, tokenizer=broken)
    refused("only has room for 2 special tokens", texts, tokenizer=folder, text_length=2)
    (folder / "vocab.txt").write_bytes(b"\xff\xfe")
    refused("vocab.txt is not a tokenizer: ", texts, tokenizer=folder)


# the package's PanicException is no Exception
@pytest.mark.parametrize("error", [type("PanicException", (BaseException,), {}), RuntimeError])
def test_errors_of_the_package_are_one_line(error):
    line = "^x is not a tokenizer: index out of range$"
    with pytest.raises(ValueError, match=line), in_one_line("x is not a tokenizer"):
        raise error("index out of range\nbacktrace")
    with pytest.raises(KeyboardInterrupt), in_one_line("x"):
        raise KeyboardInterrupt


NO_SPACE = {"add_prefix_space": False}
BEGUN = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>"}
DIFFERENT = {
    "do_lower_case False": ({"do_lower_case": False}, {"normalizer": {"lowercase": True}}),
    "strip_accents True": ({"strip_accents": True}, {"normalizer": {"strip_accents": False}}),
    "add_prefix_space True": ({"add_prefix_space": True}, {"pre_tokenizer": NO_SPACE}),
    "add_bos_token True": (BEGUN, {"normalizer": None}),
}


@pytest.mark.parametrize("message", DIFFERENT)
def test_two_files_of_a_tokenizer_agree(message):
    settings, content = DIFFERENT[message]
    with pytest.raises(ValueError, match=f"tokenizer_config.json has {message}, but this file"):
        tokens_module._compare(content, settings, ["[CLS]"])
    tokens_module._compare({"normalizer": {"lowercase": None}}, {"do_lower_case": True}, [])


def test_a_word_piece_has_the_special_tokens_of_its_folder(folder):
    pytest.importorskip("tokenizers")
    (folder / "vocab.txt").write_text("\n".join(("<pad>", "<unk>", "<s>", "</s>", "caf\u00e9")))
    names = {"unk_token": "<unk>", "cls_token": {"content": "<s>"}, "sep_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    (folder / "tokenizer_config.json").write_text('{"strip_accents": false}')
    assert Tokenizer(folder / "vocab.txt").encode(["Caf\u00e9 zzz"], 6) == [[2, 4, 1, 3]]
    (folder / "tokenizer_config.json").write_text('{"never_split": ["oil"]}')
    with pytest.raises(
        ValueError, match=r"vocab.txt is not a tokenizer: tokenizer_config.json has"
    ):
        Tokenizer(folder / "vocab.txt")


def test_added_tokens_are_of_the_vocabulary(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))
    made.post_processor = tokenizers.processors.TemplateProcessing("X $A", None, [("X", 70_000)])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="adds a token with id 70000, but its vocabulary has 1"):
        Tokenizer(tmp_path / "tokenizer.json").encode(["a"], 6)


def test_dropout_of_a_tokenizer_is_off(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9)
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    trained = Tokenizer(tmp_path / "tokenizer.json")
    assert trained.encode(["ab"] * 50, 6) == [[2]] * 50


def test_a_tokenizer_that_is_not_there(folder, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"no tokenizer at .*; name a tokenizer.json, or"):
        tokenizer_file(folder.parent / "other")
    with pytest.raises(ValueError, match=r"tokenizer is .*, but fashion_mnist_10k has no texts"):
        fl.load_dataset("fashion_mnist_10k", tokenizer=folder)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    line = r"a tokenizer needs tokenizers; run pip install 'fedjax_ht\[text\]'"
    with pytest.raises(ImportError, match=line):
        load(folder, tokenizer=folder)


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
    assert "have no samples" not in caplog.text


def test_files_of_authors_keep_the_dots_of_their_names(tmp_path, caplog):
    for name in ("j.doe", "j.test"):
        write(tmp_path / "plays" / f"{name}.txt", "so be it")
    dataset = load_dataset("next_token:plays", tmp_path)
    assert fl.describe(dataset).groups == {"j.doe": 1, "j.test": 1}
    assert "every file is a client, also j.test; for official sets" in caplog.text


def test_files_are_sets_and_unknown_words_no_answers(tmp_path, caplog):
    write(tmp_path / "play" / "train.txt", "a b a c")
    write(tmp_path / "play" / "test.txt", "a b b a")
    write(tmp_path / "play" / "val.txt", "a unseen a b")
    dataset = load_dataset("next_token:play", tmp_path, text_length=1)
    assert sets(dataset) == {"test": [0, 1], "train": [2, 3], "val": [4]}
    assert [dataset.class_names[label] for label in dataset.labels] == ["b", "a", "b", "c", "b"]
    assert "left out: 1 sample (their next word is unknown)" in caplog.text


def test_a_trained_tokenizer_adds_no_special_tokens(folder, tmp_path):
    pytest.importorskip("tokenizers")
    write(tmp_path / "text.txt", "oil prices rise")
    dataset = load_dataset("next_token:text.txt", tmp_path, text_length=3, tokenizer=folder)
    assert dataset.inputs.tolist() == [[5, 6, 7]] and dataset.class_names == ("rise",)
    assert dataset.groups is None and dataset.vocabulary == len(VOCABULARY)


def test_what_is_no_text_is_refused(tmp_path):
    write(tmp_path / "a.txt", b"\xff\xfe")
    refused("a.txt is not UTF-8 (byte 0)", "next_token:a.txt", tmp_path)
    write(tmp_path / "b.txt", "alone")
    refused("b.txt has fewer than two", "next_token:b.txt", tmp_path)
    (tmp_path / "empty").mkdir()
    refused("no .txt file in the folder", "next_token:empty", tmp_path)
