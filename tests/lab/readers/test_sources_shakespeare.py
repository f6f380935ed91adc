"""Shakespeare, from tiny files as LEAF makes them."""

import json

import numpy as np
import pytest

from fedjax_ht.data.partition import make_partition
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.readers.leaf import LETTERS
from tests.lab.readers.source_files import load_error, refused, sets, write
from tests.lab.readers.test_sources_text import assert_limited


def roles(**texts):
    """LEAF's file of roles, each with texts (80 characters, the next)."""
    data = {
        role: {"x": [x.ljust(80) for x, _ in rows], "y": [y for _, y in rows]}
        for role, rows in texts.items()
    }
    return {
        "users": list(texts),
        "num_samples": [len(rows) for rows in texts.values()],
        "user_data": data,
    }


ROLES = {
    "train": roles(HAMLET=[("To be,", "o"), ("\u00e9 or", "\n")], GHOST=[("Mark me}", " ")]),
    "test": roles(HAMLET=[("words,", "w")], GHOST=[("adieu", "A"), ("List", "\u00e9")]),
}


@pytest.fixture
def shakespeare(tmp_path):
    for part, content in ROLES.items():
        write(
            tmp_path / f"shakespeare/{part}/all_data_niid_1_keep_0_{part}_9.json",
            json.dumps(content),
        )
    return tmp_path


def test_shakespeare(shakespeare, caplog):
    dataset = load_dataset("shakespeare", shakespeare)
    assert dataset.inputs.shape == (5, 80) and dataset.inputs.dtype == np.uint16
    assert len(LETTERS) == 80 and dataset.num_classes == 80 and dataset.vocabulary == 81
    texts = [
        "".join(" " if i == 0 else LETTERS[i - 1] for i in row).rstrip() for row in dataset.inputs
    ]
    assert texts == ["To be,", "  or", "Mark me}", "words,", "adieu"] and dataset.inputs[1, 0] == 0
    names = [dataset.class_names[label] for label in dataset.labels]
    assert names == ["o", "newline", "space", "w", "A"]
    assert "left out: 1 sample (their next character is none of LEAF's 80)" in caplog.text
    assert dataset.groups.tolist() == [0, 0, 1, 0, 1]
    assert sets(dataset) == {"train": [0, 1, 2], "test": [3, 4]}
    partition = make_partition("given", dataset, 2)
    assert [[part.tolist() for part in client] for client in partition] == [
        [[0, 1], [], [3]],
        [[2], [], [4]],
    ]
    assert len(make_partition("natural", dataset, 2, train_share=0.5)) == 2


def test_new_roles_have_no_clients(shakespeare):
    (file,) = (shakespeare / "shakespeare/test").glob("*.json")
    file.write_text(json.dumps(roles(OPHELIA=[("a", "b")])))
    dataset = load_dataset("shakespeare", shakespeare)
    assert dataset.clients is None and dataset.groups.tolist() == [0, 0, 1, 2]


def test_roles_in_several_files(shakespeare):
    write(shakespeare / "shakespeare/train/b.json", json.dumps(roles(OPHELIA=[("a", "b")])))
    assert load_dataset("shakespeare", shakespeare).groups.tolist() == [0, 0, 1, 2, 0, 1]
    write(shakespeare / "shakespeare/train/c.json", json.dumps(roles(GHOST=[("a", "b")])))
    refused("user 'GHOST' occurs twice", "shakespeare", shakespeare, None, 80)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Expecting value"),
        (b"[1]", "no object with users and user_data"),
        (b'{"users": ["a"], "user_data": {}}', "users are not the keys of user_data"),
        (b'{"users": ["a", "a"], "user_data": {"a": 1}}', "users are not the keys of user_data"),
        (b'{"users": ["a"], "user_data": {"a": [1]}}', "user 'a' must have as many samples x as"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [], "y": ["b"]}}}', "as many samples x as"),
        (
            b'{"users": ["a"], "user_data": {"a": {"x": ["b"], "y": ["b"]}}}',
            "a text that is not of 80 characters",
        ),
        (b'{"users": ["\xc3"]}', "can't decode byte"),
    ],
)
def test_damaged_leaf_files(shakespeare, content, message):
    (file,) = (shakespeare / "shakespeare/test").glob("*.json")
    file.write_bytes(content)
    line = load_error(ValueError, "shakespeare", shakespeare)
    assert message in line and "_test_9.json: " in line and "preprocess.sh" in line


def test_limits_of_leaf(shakespeare, monkeypatch):
    leaf = "shakespeare", shakespeare
    assert_limited(
        monkeypatch, "TEXTS", 2, "the set has 3 samples, more than the 2 that are read", *leaf
    )
    assert_limited(
        monkeypatch, "JSON_MARKS", 9, "brackets and commas, more than the 9 that are read", *leaf
    )
    assert_limited(monkeypatch, "FILE_BYTES", 50, "more than the 50 that are read", *leaf)
    refused("text_length is 40, but shakespeare has no texts", "shakespeare", shakespeare, None, 40)
    for file in (shakespeare / "shakespeare/test").glob("*.json"):
        file.unlink()
    refused("no .json file in it", "shakespeare", shakespeare)
