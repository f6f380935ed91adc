"""Tables as text."""

import gzip

import numpy as np
import pytest

from fedjax_ht.core.inputs import Standardised
from fedjax_ht.lab.readers import load_dataset
from fedjax_ht.lab.safe import limits
from tests.lab.readers.source_files import load_error, refused, write

TABLE = "age,income,label,city\n30,1.5,yes,1\n40,-2e3,no,2\n50,3,yes,10\n"


def test_a_table(tmp_path):
    write(tmp_path / "own.csv", TABLE)
    dataset = load_dataset("csv:own.csv", tmp_path)
    np.testing.assert_array_equal(
        dataset.inputs, np.float32([[30, 1.5, 1], [40, -2000, 2], [50, 3, 10]])
    )
    assert dataset.inputs.dtype == np.float32 and dataset.class_names == ("no", "yes")
    assert dataset.labels.tolist() == [1, 0, 1] and dataset.groups is None
    assert dataset.name == "csv:own.csv"
    assert isinstance(dataset.preprocess, Standardised) and dataset.input_shape == (3,)


FORMS = {
    "semicolons": TABLE.replace(",", ";"),
    "tabs": TABLE.replace(",", "\t"),
    "byte order mark": "\ufeff"
    + "label,age,income,city\nyes,30,1.5,1\nno,40,-2e3,2\nyes,50,3,10\n",
    "windows": "\ufeff" + TABLE.replace("\n", "\r\n"),
    "quotes": TABLE.replace("yes", '"yes"').replace("age", '"age"'),
    "spaces": TABLE.replace(",", " , "),
    "empty lines": TABLE.replace("\n", "\n\n"),
    "gzip": gzip.compress(TABLE.encode()),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_table(tmp_path, form):
    write(tmp_path / "plain.csv", TABLE)
    write(tmp_path / "own.csv", FORMS[form])
    expected, dataset = (load_dataset(f"csv:{name}.csv", tmp_path) for name in ("plain", "own"))
    np.testing.assert_array_equal(dataset.inputs, expected.inputs)
    assert dataset.class_names == ("no", "yes") and dataset.labels.tolist() == [1, 0, 1]


def test_columns_that_are_named(tmp_path):
    write(tmp_path / "own.csv", "label,who,a,kind\n1,bob,0,10\n2,al,1,9\n3,bob,0,10.0\n")
    dataset = load_dataset("csv:own.csv:kind:who", tmp_path)
    assert load_dataset("csv:own.csv:who:kind", tmp_path).inputs.tolist() == [
        [1, 0],
        [2, 1],
        [3, 0],
    ]
    assert dataset.class_names == ("9", "10") and dataset.labels.tolist() == [1, 0, 1]
    assert dataset.groups.tolist() == [1, 0, 1]
    assert dataset.inputs.tolist() == [[1, 0], [2, 1], [3, 0]]
    write(tmp_path / "numbers.csv", "Target,Person,a\n1,30,0\n0,5,1\n")
    for name in ("csv:numbers.csv", "csv:numbers.csv::Person"):
        dataset = load_dataset(name, tmp_path)
        assert dataset.groups.tolist() == [30, 5] and dataset.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        (TABLE.replace("40", ""), "", "line 3 has no value in column 'age'; fill in such values"),
        (TABLE.replace("40", "NA"), "", "line 3 has no value in column 'age'"),
        (TABLE.replace("40", "nan"), "", "line 3 has nan in column 'age'"),
        (TABLE.replace("40", "1e99"), "", "line 3 has 1e+99 in column 'age'"),
        (TABLE.replace("no", " "), "", "line 3 has no value in column 'label'"),
        (TABLE.replace("10", "Rome"), "", "column 'city' holds text, 'Rome' in line 4; make it"),
        (TABLE.replace("10", "R" * 1000), "", "holds text, 'RRR"),
        (TABLE.replace("3,yes", "yes"), "", "line 4 has 3 cells for 4 columns"),
        (TABLE.replace("label", "kind"), "", "no column is called label, labels, target, class"),
        (TABLE, ":lable", "unknown column 'lable'; did you mean 'label'? The columns are age"),
        (TABLE, ":label:town", "unknown column 'town'; the columns are"),
        (TABLE, ":label:label", "column 'label' is named twice"),
        (TABLE, ":label:city:age", "3 columns are named, label, city, age"),
        ("a,y\n1,1.5\n", "", "column 'y' has 1.5; classes and groups are whole numbers or texts"),
        (TABLE.replace("income", "age"), "", "each needs a name of its own"),
        ("label\n1\n2\n", "", "it has no column of numbers beside label"),
        ("label,a\n", "", "it has no rows"),
        ("", "", "it has no rows"),
        (TABLE.encode() + b"\xff\xfe", "", "utf-8"),
        (TABLE + '"', "", "unexpected end of data"),
        ("a,label\n" + "1" * 200_000 + ",1\n", "", "field larger than field limit"),
        ('a,label\n1,"x\n2,"y\n', "", "',' expected after '\"'"),
        ('a,label\n1,"x"z\n', "", "',' expected after '\"'"),
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
    refused("the table has 12 cells, more than the 10 that are read", "csv:own.csv", tmp_path)
    monkeypatch.setattr(limits, "TABLE_ROWS", 2)
    refused("the table has 3 rows, more than the 2 that are read", "csv:own.csv", tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "CLASSES", 1)
    refused("a column has 2 classes or groups", "csv:own.csv", tmp_path)
