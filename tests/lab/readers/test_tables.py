"""Tables and texts in files: their cells, and the columns that are label, features and group."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import fedjax_ht as fl
from fedjax_ht.core.inputs import Standardised
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.safe import limits
from tests.lab.readers.source_files import load_error, refused, write

RNG = np.random.default_rng(0)
ROWS = 60
LABELS = np.arange(ROWS) % 3
VALUES = RNG.normal(size=(ROWS, 2)).round(3)


def write_table(path: Path, head: str, *columns) -> str:
    """Writes a table of columns, each a list of ROWS values."""
    rows = [",".join(map(str, row)) for row in zip(*columns)]
    write(path, "\n".join([head, *rows]) + "\n")
    return f"csv:{path}"


def features_of(dataset: fl.Dataset) -> tuple[str, ...]:
    return fl.describe(dataset).features


@pytest.fixture
def table(tmp_path):
    """A table of the columns a, b and label."""
    return write_table(tmp_path / "t.csv", "a,b,label", *VALUES.T, LABELS)


def test_columns_that_are_found_are_said_and_those_that_are_named_are_not(tmp_path, caplog):
    name = write_table(tmp_path / "t.csv", "a,b,Target,person", *VALUES.T, LABELS, LABELS // 2)
    dataset = load_dataset(name)
    (line,) = caplog.messages
    assert f"{name}: column 'Target' is used as the label, and a, b as features;" in line
    assert line.endswith(f"{name}:Target:person names it and silences this warning")
    assert features_of(dataset) == ("a", "b") and fl.describe(dataset).label == "Target"
    caplog.clear()
    load_dataset(f"{name}:Target")
    assert "'person' is used as the group and not as a feature" in caplog.messages.pop()
    caplog.clear()
    same = load_dataset(f"{name}:Target:person")
    again = load_dataset(name, label="Target", group="person", features=("b", "a"))
    assert not caplog.messages
    np.testing.assert_array_equal(same.inputs, again.inputs)


@pytest.mark.parametrize("owner", ["subject_id", "Patient ID", "userid", "client"])
def test_the_number_of_a_person_is_a_group_and_no_feature(tmp_path, owner):
    name = write_table(tmp_path / "t.csv", f"a,b,{owner},label", *VALUES.T, LABELS // 2, LABELS)
    dataset = load_dataset(name)
    assert features_of(dataset) == ("a", "b") and dataset.groups is not None


@pytest.mark.parametrize(
    ("giveaway", "column"),
    [
        ("", np.arange(ROWS)),
        ("milliseconds", 500 + 20 * np.arange(ROWS)),
        ("shuffled", RNG.permutation(ROWS)),
        ("row id", RNG.permutation(10_000)[:ROWS]),
    ],
)
def test_a_column_that_gives_the_answer_away_is_refused(tmp_path, giveaway, column):
    name = write_table(tmp_path / "t.csv", f"{giveaway},a,b,label", column, *VALUES.T, LABELS)
    message = load_error(ValueError, name)
    assert f"column {giveaway!r} " in message and f"dataset.features=-{giveaway} " in message
    assert features_of(load_dataset(name, features=[f"-{giveaway}"])) == ("a", "b")
    kept = load_dataset(f"{name}:label", features=("a", giveaway))
    assert kept.inputs.shape == (ROWS, 2)


def test_columns_that_give_nothing_away_are_features(tmp_path):
    flags = np.arange(ROWS) // 2 % 2
    columns = (VALUES[:, 0], flags, [1] * ROWS, LABELS)
    name = write_table(tmp_path / "t.csv", "a,flag,one,label", *columns)
    assert features_of(load_dataset(name)) == ("a", "flag", "one")
    rare = np.where(np.arange(ROWS) == 0, 3, LABELS)  # a class of one row, which a flag may mark
    marked = write_table(tmp_path / "rare.csv", "a,flag,label", VALUES[:, 0], 1 * (rare == 3), rare)
    assert features_of(load_dataset(marked)) == ("a", "flag")
    parted = write_table(tmp_path / "one.csv", "a,label", LABELS, LABELS)  # nothing else to learn
    assert load_dataset(parted).inputs.shape == (ROWS, 1)


def test_y_beside_x_is_a_coordinate_and_the_label_has_another_name(tmp_path):
    name = write_table(tmp_path / "t.csv", "x,y,label", *VALUES.T, LABELS)
    assert features_of(load_dataset(name)) == ("x", "y")
    name = write_table(tmp_path / "u.csv", "a,b,y", *VALUES.T, LABELS)
    assert load_dataset(name).num_classes == 3


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (("a", "-b"), "name those to use, or prefix every name with - to name those to exclude"),
        (("c",), "unknown column 'c'"),
        (("-c",), "unknown column 'c'"),
        (("a", "label"), "column 'label' is named as a feature and as the label or group"),
        (("-a", "-b"), "it has no column of numbers besides label"),
    ],
)
def test_features_that_cannot_be_are_refused(table, features, reason):
    refused(reason, table, features=features)


def test_a_label_that_is_named_twice_is_refused(table):
    refused("the label is named 'a' and 'b'; name it once", f"{table}:a", label="b")
    refused(
        "label is 'a', but fashion_mnist_10k has no named columns", "fashion_mnist_10k", label="a"
    )


# Labels


def test_numbers_to_predict_are_no_classes(tmp_path):
    prices = 1000 + 37 * np.arange(ROWS)[::-1]
    name = write_table(tmp_path / "t.csv", "a,b,target", *VALUES.T, prices)
    refused(f"column 'target' has {ROWS} classes in {ROWS} rows", name)


def test_digits_with_leading_zeros_are_names(tmp_path):
    names = np.array(["007", "7", "10"])[LABELS]
    dataset = load_dataset(write_table(tmp_path / "t.csv", "a,label", VALUES[:, 0], names))
    assert dataset.class_names == ("007", "10", "7")
    write(tmp_path / "x.csv", "".join(f"{name},some text {i}\n" for i, name in enumerate(names)))
    assert load_dataset(f"text:{tmp_path}/x.csv").class_names == ("007", "10", "7")


# Folders of tables


def test_a_file_a_client(tmp_path, caplog):
    (a, b), sites = VALUES.T, tmp_path / "sites"
    write_table(sites / "north.csv", "label,b,a", LABELS, b, a)
    write_table(sites / "south.csv", "a,b,label", a[1:], b[1:], LABELS[1:])
    write_table(sites / "west.csv", "a,label,b", a[2:], LABELS[2:], b[2:])
    write(sites / "readme.md", "about")
    dataset = load_dataset("csv:sites:label", tmp_path)
    assert fl.describe(dataset).groups == {"north": 60, "south": 59, "west": 58}
    np.testing.assert_array_equal(dataset.inputs[60:119], np.float32(VALUES[1:])[:, ::-1])
    assert dataset.groups[[0, 60, 118, 119]].tolist() == [0, 1, 1, 2]
    assert "left out: readme.md (no .csv file)" in caplog.text
    assert len(fl.make_partition("natural", dataset, 3)) == 3


def test_files_that_are_sets(tmp_path):
    write_table(tmp_path / "Train.csv", "a,label", VALUES[:, 0], LABELS)
    write_table(tmp_path / "test.csv", "a,label", VALUES[:9, 1], LABELS[:9])
    dataset = load_dataset(f"csv:{tmp_path}:label")
    assert dataset.groups is None and fl.describe(dataset).splits == {"train": 60, "test": 9}
    write_table(tmp_path / "site.csv", "a,label", VALUES[:, 0], LABELS)
    refused("Train, test are named like sets, but site are not", f"csv:{tmp_path}:label")


@pytest.mark.parametrize(
    "names",
    ["data.train.csv data.test.csv", "a_train.csv a_test.csv", "train-0-of-1.csv test-0-of-1.csv"],
)
def test_files_that_differ_in_the_name_of_a_set_are_sets(tmp_path, caplog, names):
    train, test = names.split()
    write_table(tmp_path / train, "a,label", VALUES[:, 0], LABELS)
    write_table(tmp_path / test, "a,label", VALUES[:9, 1], LABELS[:9])
    dataset = load_dataset(f"csv:{tmp_path}:label")
    assert dataset.groups is None and fl.describe(dataset).splits == {"train": 60, "test": 9}
    assert not caplog.messages


@pytest.mark.parametrize(
    ("names", "clients", "alike"),
    [
        ("site.1.csv site.2.CSV", "site.1 site.2", ""),
        ("a-1.csv a_1.tsv.gz", "a-1 a_1", ""),
        ("a_train.csv b_test.csv", "a_train b_test", "a_train, b_test"),
        ("dev_team.csv sales_team.csv", "dev_team sales_team", "dev_team"),
        ("x_train1.csv x_train2.csv", "x_train1 x_train2", "x_train1, x_train2"),
    ],
)
def test_other_files_are_clients_with_their_whole_names(tmp_path, caplog, names, clients, alike):
    for name in names.split():
        write_table(tmp_path / "t.csv", "a,label", VALUES[:, 0], LABELS)
        content = (tmp_path / "t.csv").read_bytes()
        (tmp_path / "t.csv").unlink()
        write(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content)
    dataset = load_dataset(f"csv:{tmp_path}:label")
    assert fl.describe(dataset).groups == dict.fromkeys(clients.split(), 60)
    line = f"every file is a client, also {alike}; for official sets, name the files train, val"
    assert [line in message for message in caplog.messages] == [True] * bool(alike)


def test_files_of_the_same_name_are_refused(tmp_path):
    for name in ("a.csv", "a.tsv", "b.csv"):
        write_table(tmp_path / name, "a,label", VALUES[:, 0], LABELS)
    refused("a.csv and a.tsv have the same name without their endings", f"csv:{tmp_path}")


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("a,c,label", "u.csv has other columns than t.csv: only one of them has b, c; all files"),
        ("a,b", "u.csv has other columns than t.csv: only one of them has label"),
    ],
)
def test_files_of_other_columns_are_refused(tmp_path, table, head, reason):
    columns = [*VALUES.T, LABELS][: head.count(",") + 1]
    write_table(tmp_path / "u.csv", head, *columns)
    refused(reason, f"csv:{tmp_path}")


def test_files_of_clients_that_have_groups_are_refused(tmp_path):
    for name in ("a", "b"):
        write_table(tmp_path / f"{name}.csv", "a,person,label", *VALUES.T, LABELS)
    refused("every file of the folder is a client, and column 'person' is", f"csv:{tmp_path}")
    (tmp_path / "none").mkdir()
    refused("no .csv, .csv.gz, .tsv, .tsv.gz file", f"csv:{tmp_path}/none")


# Texts

WORDS = ("sun rain wind", "ball goal team", "bank loan rate")
TEXTS = [f"{WORDS[label]} {i % 7} {i}" for i, label in enumerate(LABELS)]


def write_texts(path: Path, head: str, *columns) -> str:
    quoted = [[f'"{cell}"' for cell in column] for column in columns]
    rows = [",".join(row) for row in zip(*quoted)]
    write(path, "\n".join([head, *rows] if head else rows) + "\n")
    return f"text:{path}"


HEADS = {  # head, columns, and the columns of text
    "label,text": ((LABELS, TEXTS), ("text",)),
    "Text,Label": ((TEXTS, LABELS), ("Text",)),
    "Class Index,Title,Description": ((LABELS + 1, TEXTS, TEXTS), ("Title", "Description")),
    "label,text,person": ((LABELS, TEXTS, LABELS // 2), ("text",)),
    "": ((LABELS, TEXTS), ()),
}


@pytest.mark.parametrize("head", HEADS)
def test_texts_with_a_head_and_without(tmp_path, caplog, head):
    columns, features = HEADS[head]
    dataset = load_dataset(write_texts(tmp_path / "t.csv", head, *columns))
    assert dataset.num_classes == 3 and len(dataset.labels) == ROWS
    assert features_of(dataset) == features and len(caplog.messages) == bool(head)
    np.testing.assert_array_equal(dataset.labels, LABELS)
    token_texts = dataset.reading.token_texts
    first = " ".join(token_texts[token] for token in dataset.inputs[1] if token)
    assert first.startswith("ball goal team 1 1") and token_texts[:2] == ("", "?")
    assert (dataset.groups is not None) == ("person" in head)


@pytest.mark.parametrize(
    ("head", "columns", "reason"),
    [
        ("", (TEXTS, LABELS), "column '1' has 60 classes in 60 rows"),
        ("kind,words", (LABELS, TEXTS), "class 'kind' has one sample, in line 1, which looks"),
        ("a kind,its words", (LABELS, TEXTS), "class 'a kind' has one sample, in line 1, which"),
        ("kind,Words", ([*LABELS[1:], "odd"], TEXTS), "class 'kind' has one sample, in line 1"),
        ("", (LABELS, range(ROWS), TEXTS), "column '2' has a different integer in every row"),
        ("text,target,class", (TEXTS, LABELS, LABELS), "may each be the label"),
        ("label,text", (LABELS, [*TEXTS[:3], " ", *TEXTS[4:]]), "line 5 has no text in text; fill"),
    ],
)
def test_texts_whose_columns_are_something_else(tmp_path, head, columns, reason):
    refused(reason, write_texts(tmp_path / "t.csv", head, *columns))


@pytest.mark.parametrize("first", ["rare,good wood", "7,wood"])
def test_a_first_line_of_a_rare_class_is_a_sample(tmp_path, first):
    dataset = load_dataset(write_texts(tmp_path / "t.csv", first, [*LABELS[1:], "odd"], TEXTS))
    assert len(dataset.labels) == ROWS + 1


def test_texts_of_several_files(tmp_path):
    write_texts(tmp_path / "train.csv", "label,text", LABELS[:40], TEXTS[:40])
    write_texts(tmp_path / "valid.csv", "label,text", LABELS[40:], TEXTS[40:])
    dataset = load_dataset(f"text:{tmp_path}:label")
    assert fl.describe(dataset).splits == {"train": 40, "val": 20} and dataset.groups is None
    # the vocabulary is that of the training texts
    assert (dataset.inputs[:40] != 1).all() and (dataset.inputs[40:] == 1).any()


TABLE = "age,income,label,city\n30,1.5,yes,1\n40,-2e3,no,2\n50,3,yes,10\n"


FORMS = {
    "commas": TABLE,
    "semicolons": TABLE.replace(",", ";"),
    "tabs": TABLE.replace(",", "\t"),
    "byte order mark": "\ufeff" + TABLE,
    "windows": TABLE.replace("\n", "\r\n"),
    "quotes": TABLE.replace("yes", '"yes"').replace("age", '"age"'),
    "spaces": TABLE.replace(",", " , "),
    "empty lines": TABLE.replace("\n", "\n\n"),
    "gzip": gzip.compress(TABLE.encode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_table(tmp_path, form):
    write(tmp_path / "own.csv", FORMS[form])
    dataset = load_dataset("csv:own.csv", tmp_path)
    assert dataset.inputs.tolist() == [[30, 1.5, 1], [40, -2000, 2], [50, 3, 10]]
    assert dataset.inputs.dtype == np.float32 and features_of(dataset) == ("age", "income", "city")
    assert dataset.class_names == ("no", "yes") and dataset.labels.tolist() == [1, 0, 1]
    assert dataset.name == "csv:own.csv" and dataset.groups is None
    assert isinstance(dataset.preprocess, Standardised) and dataset.input_shape == (3,)


def test_columns_that_are_named(tmp_path):
    write(tmp_path / "own.csv", "label,who,a,kind\n1,bob,0,10\n2,al,1,9\n3,bob,0,10.0\n")
    dataset = load_dataset("csv:own.csv:kind:who", tmp_path)
    expected = [[1, 0], [2, 1], [3, 0]]
    assert load_dataset("csv:own.csv:who:kind", tmp_path).inputs.tolist() == expected
    assert dataset.class_names == ("9", "10") and dataset.labels.tolist() == [1, 0, 1]
    assert dataset.groups.tolist() == [1, 0, 1]
    assert dataset.inputs.tolist() == [[1, 0], [2, 1], [3, 0]]
    write(tmp_path / "numbers.csv", "Target,Person,a\n1,30,0\n0,5,1\n")
    for name in ("csv:numbers.csv", "csv:numbers.csv::Person"):
        dataset = load_dataset(name, tmp_path)
        assert dataset.groups.tolist() == [30, 5] and dataset.class_names == ("0", "1")


def test_different_integers_that_are_equal_as_floats_are_said(tmp_path, caplog):
    days = 20230101 + np.arange(ROWS) % 14
    large = 10**9 + 1000 * (np.arange(ROWS) % 7)  # rounded, but all different
    head = "day,large,age,label"
    load_dataset(
        write_table(tmp_path / "t.csv", head, days, large, VALUES[:, 0], LABELS) + ":label"
    )
    (line,) = caplog.messages
    assert "column 'day' has 14 different integers, which are 8 numbers in float32; sub" in line


def test_a_group_that_marks_a_missing_value_is_said(tmp_path, caplog):
    sites = np.array(["NA", "north", "south"])[np.arange(ROWS) % 3]
    name = write_table(tmp_path / "t.csv", "a,b,label,site", *VALUES.T, LABELS % 2, sites)
    load_dataset(f"{name}:label:site")
    (line,) = caplog.messages
    assert "20 of 60 samples have the group 'NA', which often marks a missing value" in line


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (TABLE.replace("40", ""), "", "line 3 has no value in column 'age'; fill in these values"),
        (TABLE.replace("40", "nan"), "", "line 3 has nan in column 'age'"),
        (TABLE.replace("40", "1e99"), "", "line 3 has 1e+99 in column 'age'"),
        (TABLE.replace("no", " "), "", "line 3 has no value in column 'label'"),
        (TABLE.replace("10", "Rome"), "", "column 'city' has text, 'Rome' in line 4; convert it"),
        (TABLE.replace("3,yes", "yes"), "", "line 4 has 3 cells for 4 columns"),
        (TABLE.replace("label", "kind"), "", "no column is called label, labels, target, class"),
        (TABLE, ":lable", "unknown column 'lable'; did you mean 'label'? The columns are age"),
        (TABLE, ":label:label", "column 'label' is named twice"),
        (TABLE, ":label:city:age", "3 columns are named, label, city, age"),
        ("a,y\n1,1.5\n", "", "column 'y' has 1.5; classes and groups are integers or strings, an"),
        (TABLE.replace("income", "age"), "", "each needs its own name"),
        ("label\n1\n2\n", "", "it has no column of numbers besides label"),
        ("label,a\n", "", "it has no rows"),
        ("", "", "it has no rows"),
        (TABLE.encode() + b"\xff\xfe", "", "utf-8"),
        (TABLE + '"', "", "unexpected end of data"),
        ("a,label\n" + "1" * 200_000 + ",1\n", "", "field larger than field limit"),
        ('a,label\n1,"x\n2,"y\n', "", "',' expected after '\"'"),
    ],
)
def test_wrong_tables_are_one_line(tmp_path, text, name, reason):
    write(tmp_path / "own.csv", text)
    message = load_error(ValueError, f"csv:own.csv{name}", tmp_path)
    assert message.startswith(str(tmp_path / "own.csv: ")) and reason in message
    assert "csv:PATH:LABEL" in message


def test_other_mistakes_are_one_line(tmp_path, monkeypatch):
    refused("own.csv", "csv:own.csv", tmp_path, kind=FileNotFoundError)
    write(tmp_path / "own.csv", TABLE)
    refused("image_size is 8, but csv:own.csv has no images", "csv:own.csv", tmp_path, 8)
    monkeypatch.setattr(limits, "TABLE_CELLS", 10)
    refused("the table has 12 cells, more than the allowed 10", "csv:own.csv", tmp_path)
    monkeypatch.setattr(limits, "TABLE_ROWS", 2)
    refused("the table has 3 rows, more than the allowed 2", "csv:own.csv", tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "CLASSES", 1)
    refused("a column has 2 classes or groups", "csv:own.csv", tmp_path)
