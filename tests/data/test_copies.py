"""Samples that stand in two sets are told, and a test set that is the training set is refused."""

import logging

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.data.copies import same_samples
from fedjax_ht.data.partition.notes import split_notes
from fedjax_ht.lab.readers import load_dataset

RNG = np.random.default_rng(0)
COUNT = 40
NONE, FIRST, SECOND = np.arange(0), np.arange(COUNT), np.arange(COUNT, 2 * COUNT)
LABELS, NAMES = np.arange(COUNT) % 2, ("a", "b")
FORMS = {
    "rows": RNG.normal(size=(COUNT, 3)),
    "images": RNG.integers(0, 256, (COUNT, 8, 8, 3), np.uint8),
    "tokens": RNG.integers(0, 50, (COUNT, 6)),
    "a dict": {"x": RNG.normal(size=(COUNT, 5, 2)), "age": RNG.normal(size=COUNT)},
}
WHOLE = f"all {COUNT} test samples are also training samples"


def doubled(form: str, labels=LABELS, changed: int = 0, **fields) -> fl.Dataset:
    """A set whose second half is the first one, but for some changed samples."""

    def twice(x):
        other = x.copy()
        other[:changed] = other[:changed] * 2 + 1
        return np.concatenate([x, other])

    x = FORMS[form]
    inputs = {key: twice(leaf) for key, leaf in x.items()} if isinstance(x, dict) else twice(x)
    return fl.Dataset("d", inputs, np.concatenate([LABELS, labels]), NAMES, **fields)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", ["official", "clients"])
def test_a_test_set_that_is_the_training_set_is_refused(form, of, caplog):
    sets = {"official": {"train": FIRST, "test": SECOND}}
    if of == "clients":
        clients = [fl.ClientIndices(FIRST[i::2], NONE, SECOND[i::2]) for i in range(2)]
        sets = {"clients": tuple(clients)}
    with pytest.raises(ValueError, match=f"^d: {WHOLE}, so .*; give other test samples"):
        doubled(form, **sets)
    assert (
        "10 of 40 test samples (25.0%) are also train"
        in doubled(form, changed=30, **sets).copied[0]
    )
    assert "d: 10 of 40 test samples (25.0%) are also train samples: scores on" in caplog.text
    assert not doubled(form, changed=COUNT, **sets).copied
    assert doubled(form, 1 - LABELS, **sets).copied  # as others have labelled them


@pytest.mark.parametrize("name", ["csv", "npz", "next_token"])
def test_every_reader_refuses_it(name, tmp_path):
    rows = FORMS["rows"].round(3)
    (tmp_path / "t").mkdir()
    for part in ("train", "test"):
        lines = [f"{a},{b},{c},{NAMES[k]}" for (a, b, c), k in zip(rows, LABELS)]
        content = "u,v,w,label\n" + "\n".join(lines)
        if name == "next_token":
            content = " ".join(f"w{k}" for k in np.random.default_rng(1).integers(0, 9, 33 * COUNT))
        (tmp_path / "t" / f"{part}.{'txt' if name == 'next_token' else 'csv'}").write_text(content)
    images = FORMS["images"]
    sets = {"x_train": images, "y_train": LABELS, "x_test": images, "y_test": LABELS}
    np.savez(tmp_path / "t.npz", **sets)
    with pytest.raises(ValueError, match=WHOLE):
        load_dataset(f"{name}:t" + ".npz" * (name == "npz"), tmp_path)


def test_repeated_rows_of_few_values_are_told_alone(caplog):
    rows = RNG.integers(0, 2, (2 * COUNT, 2)).astype(float)
    with caplog.at_level(logging.WARNING):
        sets = {"train": FIRST, "test": SECOND}
        dataset = fl.Dataset("d", rows, np.tile(LABELS, 2), NAMES, official=sets)
    assert "d: 40 of 40 test samples (100.0%) are also train samples" in caplog.text
    plain = fl.Dataset("d", rows, np.tile(LABELS, 2), NAMES)
    for each in (dataset, plain):  # told before, and what chance makes
        assert not split_notes(each, fl.make_partition("iid", each, 2))


def test_equal_middles_are_not_equal_samples():
    images = np.zeros((4, 5, 5), np.uint8)
    images[[0, 1, 3], 0, 0] = 1, 2, 1
    assert same_samples(images, np.array([0]), images, np.arange(1, 4)).tolist() == [0, 0, 1]
