"""Sets in LEAF's layout, from tiny files: FEMNIST, Sent140, Shakespeare and others."""

import json

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.leaf import LETTERS
from tests.lab.readers.source_files import load_error, refused, sets, write
from tests.lab.readers.test_texts import assert_limited

DARK, LIGHT = [0.0] * 784, [1.0] * 783 + [0.2]


def leaf(**users):
    """LEAF's file of users, each of pairs of a sample and its label."""
    data = {}
    for user, pairs in users.items():
        data[user] = {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]}
    counts = [len(pairs) for pairs in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": data})


def tweet(text):
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "someone", text]


FEMNIST = {
    "train": leaf(f0001_41=[(DARK, 0), (LIGHT, 61)], f0002_10=[(LIGHT, 10)]),
    "test": leaf(f0001_41=[(LIGHT, 36)], f0002_10=[(DARK, 9), (DARK, 1)]),
}
SENT140 = {
    "train": leaf(ann=[(tweet("so good"), 1)], bob=[(tweet("so sad"), 0), (tweet("good"), 1)]),
    "test": leaf(ann=[(tweet("sad"), 0)], bob=[(tweet("unseen good"), 1)]),
}


def made(tmp_path, files, folder="leaf"):
    for part, content in files.items():
        write(tmp_path / folder / part / f"all_data_0_niid_1_{part}_9.json", content)
    return f"leaf:{folder}", tmp_path


def test_femnist(tmp_path):
    dataset = load_dataset(*made(tmp_path, FEMNIST))
    assert dataset.inputs.shape == (6, 28, 28, 1) and dataset.inputs.dtype == np.uint8
    assert dataset.inputs[1, 0, 0, 0] == 255 and dataset.inputs[1, 27, 27, 0] == 51
    assert dataset.num_classes == 62 and dataset.class_names[61] == "z"
    expected = ["0", "z", "A", "a", "9", "1"]
    assert [dataset.class_names[label] for label in dataset.labels] == expected
    assert dataset.groups.tolist() == [0, 0, 1, 0, 1, 1]
    assert dataset.reading.group_names == ("f0001_41", "f0002_10")
    expected = [[[0, 1], [], [3]], [[2], [], [4, 5]]]
    assert [[part.tolist() for part in client] for client in dataset.clients] == expected


def test_integers_are_pixels_too(tmp_path):
    write(tmp_path / "leaf/all_data_0.json", leaf(a=[([255] * 784, 0), ([7] * 784, 1)]))
    dataset = load_dataset("leaf:leaf", tmp_path)
    assert dataset.inputs[:, 0, 0, 0].tolist() == [255, 7] and dataset.official == {}
    assert dataset.clients is None and dataset.class_names == ("0", "1")
    assert load_dataset("leaf:leaf/all_data_0.json", tmp_path).groups.tolist() == [0, 0]
    ones, floats = ([1] * 784, 0), ([1.0] * 784, 1)
    write(tmp_path / "a.json", leaf(a=[floats], b=[ones]))  # of one scale
    assert load_dataset("leaf:a.json", tmp_path).inputs.min() == 255


def test_sent140(tmp_path):
    dataset = load_dataset(*made(tmp_path, SENT140), None, 3)
    assert dataset.class_names == ("negative", "positive") and dataset.vocabulary == 5
    texts = [[dataset.reading.token_texts[i] for i in row] for row in dataset.inputs]
    assert texts[0] == ["so", "good", ""] and texts[4] == ["?", "good", ""]  # learned of train
    assert dataset.labels.tolist() == [1, 0, 1, 0, 1] and len(dataset.clients) == 2


def test_texts_and_numbers(tmp_path):
    files = {part: leaf(a=[("one two", 0)], b=[("two", 1)]) for part in ("train", "test")}
    assert load_dataset(*made(tmp_path, files, "t")).class_names == ("0", "1")
    files = {part: leaf(a=[([0.5, 2], 0)], b=[([-1, 3], 1)]) for part in ("train", "test")}
    dataset = load_dataset(*made(tmp_path, files, "n"))
    assert dataset.inputs.dtype == np.float32 and dataset.inputs[0].tolist() == [0.5, 2]


def test_new_users_have_no_clients(tmp_path):
    files = FEMNIST | {"test": leaf(f0003_1=[(DARK, 0)])}
    dataset = load_dataset(*made(tmp_path, files, "new"))
    assert dataset.clients is None and dataset.groups.tolist() == [0, 0, 1, 2]
    files = FEMNIST | {"test": leaf(f0001_41=[(DARK, 0)])}
    assert load_dataset(*made(tmp_path, files, "some")).clients is None


def test_a_user_may_have_no_samples(tmp_path):
    name, root = made(tmp_path, FEMNIST | {"test": leaf(f0001_41=[], f0002_10=[(DARK, 1)])})
    dataset = load_dataset(name, root)
    assert [client.test.tolist() for client in dataset.clients] == [[], [3]]
    assert dataset.groups.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[1]", "not an object with users and user_data"),
        (b'{"users": ["\xc3"]}', "can't decode byte"),
        (b'{"users": ["a", "a"], "user_data": {"a": 1}}', "users are not the keys of user_data"),
        (b'{"users": ["a"], "user_data": {"a": [1]}}', "'a' must have as many samples x as"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [], "y": [0]}}}', "as many samples x as"),
        (leaf(a=[(DARK, 0), (DARK[1:], 0)]), "user 'a' has samples of several lengths"),
        (leaf(a=[(DARK[1:], 0)]), "some users have images and others rows"),
        (leaf(a=[(None, 0)]), "neither texts nor lists"),
        (leaf(a=[([True] * 784, 0)]), "neither only texts nor only numbers"),
        (leaf(a=[([2.0] * 784, 0)]), "pixels from 2 to 2; they must be floats in [0, 1] or"),
        (leaf(a=[([float("nan")] * 784, 0)]), "pixels from nan to nan"),
        (leaf(a=[([10**30] * 784, 0)]), "'a'"),
        (leaf(a=[(DARK, -1)]), "user 'a': labels run from -1"),
        (leaf(a=[(DARK, "0")]), "user 'a': labels are"),
        (leaf(a=[("short", "t")]), "user 'a' has a text of other than 80 characters"),
        (leaf(a=[("x" * 80, "to")]), "user 'a' has a text of other than 1 characters"),
        (leaf(a=[("x" * 80, "t")]), "some users have images and others letters"),
        (leaf(a=[(["x", "y"], 0)]), "rows of 2 texts; a tweet has 5"),
        (leaf(a=[([], 0)]), "user 'a'"),
    ],
)
def test_damaged_files(tmp_path, content, message):
    name, root = made(tmp_path, FEMNIST | {"test": content})
    line = load_error(ValueError, name, root)
    assert message in line and "preprocess.sh" in line


def test_nothing_to_read(tmp_path):
    name, root = made(tmp_path, {"train": FEMNIST["train"]})
    (tmp_path / "leaf" / "test").mkdir()
    refused("no .json file in it", name, root)
    (tmp_path / "leaf" / "test").rmdir()
    refused("test", name, root, kind=FileNotFoundError)
    name, root = made(tmp_path, {"train": leaf(a=[]), "test": leaf(a=[])}, "none")
    refused("no user has a sample", name, root)
    name, root = made(tmp_path, FEMNIST)
    refused("text_length is 5, but leaf:leaf has no texts", name, root, None, 5)


def roles(**texts):
    """LEAF's file of roles, each with texts (80 characters, the next)."""
    return leaf(**{role: [(x.ljust(80), y) for x, y in rows] for role, rows in texts.items()})


ROLES = {
    "train": roles(HAMLET=[("To be,", "o"), ("\u00e9 or", "\n")], GHOST=[("Mark me}", " ")]),
    "test": roles(HAMLET=[("words,", "w")], GHOST=[("adieu", "A"), ("List", "\u00e9")]),
}


@pytest.fixture
def shakespeare(tmp_path):
    return made(tmp_path, ROLES, "shakespeare")[1]


def test_shakespeare(shakespeare, caplog):
    dataset = load_dataset("leaf:shakespeare", shakespeare)
    assert dataset.inputs.shape == (5, 80) and dataset.inputs.dtype == np.uint16
    assert len(LETTERS) == 80 and dataset.num_classes == 80 and dataset.vocabulary == 81
    letters = (" ", *LETTERS)
    texts = ["".join(letters[i] for i in row).rstrip() for row in dataset.inputs]
    assert texts == ["To be,", "  or", "Mark me}", "words,", "adieu"] and dataset.inputs[1, 0] == 0
    names = [dataset.class_names[label] for label in dataset.labels]
    assert names == ["o", "newline", "space", "w", "A"]
    assert "left out: 1 sample (their next character is not one of LEAF's 80)" in caplog.text
    assert dataset.groups.tolist() == [0, 0, 1, 0, 1]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}
    expected = [[[0, 1], [], [3]], [[2], [], [4]]]
    assert [[part.tolist() for part in client] for client in dataset.clients] == expected


def test_roles_in_several_files(shakespeare):
    write(shakespeare / "shakespeare/train/b.json", roles(OPHELIA=[("a", "b")]))
    assert load_dataset("leaf:shakespeare", shakespeare).groups.tolist() == [0, 0, 1, 2, 0, 1]
    write(shakespeare / "shakespeare/train/c.json", roles(GHOST=[("a", "b")]))
    refused("user 'GHOST' occurs twice", "leaf:shakespeare", shakespeare, None, 80)


def test_limits_of_leaf(shakespeare, monkeypatch):
    leaf = "leaf:shakespeare", shakespeare
    assert_limited(monkeypatch, "TEXTS", 2, "the set has 3 samples, more than the allowed 2", *leaf)
    assert_limited(
        monkeypatch, "JSON_MARKS", 9, "brackets and commas, more than the allowed 9", *leaf
    )
    assert_limited(monkeypatch, "JSON_OBJECTS", 2, "objects, more than the allowed 2", *leaf)
    assert_limited(monkeypatch, "FILE_BYTES", 50, "more than the allowed 50", *leaf)
