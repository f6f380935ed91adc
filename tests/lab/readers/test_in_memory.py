"""Frames, data sets of PyTorch and of Hugging Face, and .parquet files, which those write."""

import json
import os
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

import fedjax_ht as fl
from fedjax_ht.core.inputs import AsStored, Pixels, Standardised
from fedjax_ht.lab.readers import in_memory, load_dataset, table_files
from fedjax_ht.lab.readers.table import arrow_column
from fedjax_ht.lab.safe import limits
from tests.lab.readers.source_files import encoded, load_error, pixels, refused, write

RNG = np.random.default_rng(0)
COUNT = 30
AGE, DOSE = RNG.uniform(20, 90, COUNT).round(2), RNG.exponential(300, COUNT).round(2)
OUTCOME = np.array(["ill", "well", "well"] * 10, object)
HOSPITAL = np.array([f"H{i // 3 % 2}" for i in range(COUNT)], object)


class Frame(dict):
    """A stand-in for a pandas.DataFrame: names of columns, columns by name, and a length."""

    @property
    def columns(self):
        return list(self)

    def __len__(self):
        return len(next(iter(self.values())))


class HuggingFace:
    """A stand-in for a datasets.Dataset: names of columns, their types, and their Arrow table."""

    def __init__(self, columns, features):
        self.columns, self.features, self.column_names = columns, features, list(columns)
        self.format = {"type": None}

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def __getitem__(self, rows):
        assert rows == slice(None)
        return pa.table({name: arrow_column(name, x) for name, x in self.columns.items()})

    def __len__(self):
        return len(self.columns["label"])


class Pairs(list):
    """A stand-in for a map-style data set of PyTorch."""

    classes = ("a", "b")


def frame(**columns) -> Frame:
    return Frame({"age": AGE, "dose": DOSE, "outcome": OUTCOME} | columns)


def test_a_frame_is_the_table_that_it_is_written_to(tmp_path):
    rows = zip(AGE, DOSE, OUTCOME, HOSPITAL)
    lines = ["age,dose,outcome,hospital", *(",".join(map(str, row)) for row in rows)]
    write(tmp_path / "own.csv", "\n".join(lines))
    expected = load_dataset("csv:own.csv:outcome:hospital", tmp_path)
    dataset = fl.Dataset.from_pandas(frame(hospital=HOSPITAL), "outcome", group="hospital")
    np.testing.assert_array_equal(dataset.inputs, expected.inputs)
    np.testing.assert_array_equal(dataset.labels, expected.labels)
    np.testing.assert_array_equal(dataset.groups, expected.groups)
    assert dataset.class_names == expected.class_names == ("ill", "well")
    assert isinstance(dataset.preprocess, Standardised)
    assert dataset.reading.features == expected.reading.features == ("age", "dose")
    assert dataset.reading.group_names == expected.reading.group_names == ("H0", "H1")


def test_columns_of_sets_and_clients():
    split = np.array(["train", "valid", "Test"] * 10, object)
    table = frame(part=split, hospital=HOSPITAL)
    dataset = fl.Dataset.from_pandas(table, "outcome", split="part", client="hospital")
    assert dataset.official["val"].tolist() == list(range(1, COUNT, 3))
    expected = [list(range(0, COUNT, 6)), list(range(3, COUNT, 6))]
    assert [client.train.tolist() for client in dataset.clients] == expected
    assert sum(len(client.test) for client in dataset.clients) == 10


def test_a_column_of_arrays():
    rows = np.empty(COUNT, object)
    rows[:] = list(RNG.normal(size=(COUNT, 5)))
    dataset = fl.Dataset.from_pandas(Frame(signal=rows, label=OUTCOME))
    assert dataset.inputs.shape == (COUNT, 5) and dataset.inputs.dtype == np.float32
    assert isinstance(dataset.preprocess, AsStored)


class Lazy:
    """A stand-in for a LazyFrame of Polars, which has no rows until it is collected."""

    columns = ("x", "label")

    def __getitem__(self, name):
        raise TypeError("'LazyFrame' object is not subscriptable")


GAPS = np.array([None, *AGE[1:]], object)
FAULTS = {
    "row 0 has nan in column 'gap'; fill in": frame(gap=GAPS),
    "column 'when' has date32": frame(when=np.full(COUNT, "2020-01-01", "datetime64[D]")),
    "texts hospital, numbers age, dose; a sample has one kind": frame(hospital=HOSPITAL),
    "row 0 has no value in column 'outcome'": frame(outcome=GAPS),
    "column 'none' has no values; convert it": frame(none=np.full(COUNT, None)),
    "column 'id' has integers beyond 64 bits": frame(
        id=np.array([2**70 + i for i in range(COUNT)])
    ),
    "row 1 of column 'rows' is a NoneType; give": frame(rows=[np.zeros(3), None] * 15),
    "the frame is a numpy.ndarray; it must be a pandas.DataFrame": np.zeros((3, 3)),
    "collect a lazy frame with frame.collect()": Lazy(),
}

NAMED = {
    "label='LABEL'; the columns are age, dose, outcome": {},
    "features is 'age'; it must be a list, each a string": {"label": "outcome", "features": "age"},
    "unknown split column 'parts'": {"label": "outcome", "split": "parts"},
    "column 'dose' has '": {"label": "outcome", "split": "dose"},
    "client is 'dose', but no rows are called train": {"label": "outcome", "client": "dose"},
    "text_length is 9, but frame has no texts": {"label": "outcome", "text_length": 9},
}


def test_parts_of_a_concatenation_need_the_same_classes():
    def joined(*classes) -> fl.Dataset:
        pairs = Pairs([(row, i % 2) for i, row in enumerate(AGE[:8, None])])
        pairs.datasets = [SimpleNamespace(classes=names) for names in classes]
        return fl.Dataset.from_torch(pairs)

    assert joined(["cat", "dog"], ["cat", "dog"]).class_names == ("cat", "dog")
    assert joined(["cat", "dog"], None).class_names == ("0", "1")
    with pytest.raises(ValueError, match="parts have different classes, or order them"):
        joined(["cat", "dog"], ["dog", "cat"])


def test_pairs_of_torch_are_read_once():
    images = RNG.integers(0, 256, (8, 3, 12, 12), np.uint8)
    floats = (images / 255).astype(np.float32)
    dataset = fl.Dataset.from_torch(Pairs(zip(floats, [0, 1] * 4)))
    np.testing.assert_array_equal(dataset.inputs, images.transpose(0, 2, 3, 1))
    assert dataset.class_names == ("a", "b") and isinstance(dataset.preprocess, Pixels)
    pictures = [Image.fromarray(image) for image in images.transpose(0, 2, 3, 1)]
    dataset = fl.Dataset.from_torch(Pairs(zip(pictures, [0, 1] * 4)))  # without any transform
    np.testing.assert_array_equal(dataset.inputs, images.transpose(0, 2, 3, 1))
    rows = fl.Dataset.from_torch([(row, np.int64(i % 3)) for i, row in enumerate(AGE[:, None])])
    assert rows.inputs.shape == (COUNT, 1) and rows.class_names == ("0", "1", "2")


def test_pipelines_of_torchvision_are_kept_as_floats_channels_last():
    """Normalize by the statistics of a set, of official sets, with a group a sample."""
    images = RNG.integers(0, 256, (8, 3, 12, 12), np.uint8)
    floats = ((images / 255 - 0.4914) / 0.247).astype(np.float32)
    part = Pairs(zip(floats, [0, 1] * 4))
    dataset = fl.Dataset.from_torch({"train": part[:6], "test": part[6:]}, groups=[0, 0, 1, 1] * 2)
    np.testing.assert_array_equal(dataset.inputs, floats.transpose(0, 2, 3, 1))
    assert list(dataset.official["test"]) == [6, 7] and len(dataset.official["train"]) == 6
    assert list(dataset.groups) == [0, 0, 1, 1] * 2


def test_windows_of_torch_are_kept_as_they_are():
    windows = RNG.normal(size=(8, 1, 128, 9)).astype(np.float32)
    dataset = fl.Dataset.from_torch(
        [(x, i % 2) for i, x in enumerate(windows)], np.array(["a", "b"])
    )
    np.testing.assert_array_equal(dataset.inputs, windows)
    assert dataset.class_names == ("a", "b") and not dataset.reading.converted


class Jittered(list):
    def __getitem__(self, i):
        return RNG.normal(size=3), i % 2


class Flipped(list):
    """A transform that leaves the first items as they are, and changes the last."""

    def __getitem__(self, i):
        return np.arange(3.0) + i, int(RNG.integers(1 << 30)) if i == len(self) - 1 else 0


class Swapped(list):
    classes = ("b", "a")


class Broken(list):
    def __getitem__(self, i):
        raise OSError("image file is truncated")


TORCH = {
    "the label of item 0 is a NoneType": [(np.zeros(3), None)],
    "the sample of item 0 has 1 masked values": [(np.ma.array([0.0, 1], mask=[0, 1]), 0)],
    "sample 79 differs when read again": Flipped([0] * 80),
    "item 0 cannot be read: image file is truncated": Broken([0]),
    "it must have a length and samples by index": iter([1]),
    "item 0 is a tuple; it must be a pair": [(1, 2, 3)],
    "torch has no samples": [],
    "torch: samples are float32 and uint8, which may have": {
        "train": [(np.zeros((8, 8), np.float32), 0)],
        "test": [(np.zeros((8, 8), np.uint8), 1)],
    },
    "its sets are train, extra; extra is not": {"train": [], "extra": []},
    "torch: its parts have different classes": {
        "train": Pairs([(1, 0)]),
        "test": Swapped([(1, 0)]),
    },
    "sample 0 differs when read again, as with a random transform": Jittered([0, 0]),
    "the label of sample 0 is [2], not one number": [(np.zeros(3), np.eye(2)[0])] * 2,
    "sample 0 is a str; it must be a tensor": [("text", 0)],
    "torch: x is bool (2, 8, 8); convert images to uint8 with": [(np.ones((8, 8), bool), 0)] * 2,
    "without an image's proportions; convert images to uint8": [(np.ones(9, np.uint8), 0)] * 2,
    "of integers from 9 to 9; convert images to uint8 with 1": [(np.full((3, 8, 8), 9.0), 0)] * 2,
    "of 2 shapes, such as [3, 8, 8] and [3, 9, 8]": [(np.zeros((3, s, 8)), 0) for s in (8, 9)],
}


def hugging_face(images, labels=(0, 1, 0, 1, 0, 1)) -> HuggingFace:
    """A set of images, of which some may be None."""
    label = SimpleNamespace(names=["cat", "dog", "emu"])
    files = [image if image is None else {"bytes": encoded(image)} for image in images]
    columns = {"image": files, "label": list(labels)}
    return HuggingFace(columns, {"image": object(), "label": label})


def test_a_dict_of_hugging_face_by_set():
    train, test = pixels(2, 6, 8, 8, 3)
    sets = {"train": hugging_face(train), "test": hugging_face(test)}
    dataset = fl.Dataset.from_hf(sets)
    np.testing.assert_array_equal(dataset.inputs, [*train, *test])
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dataset.official["test"].tolist() == list(range(6, 12))
    with pytest.raises(ValueError, match="split is 'label', but the data are the sets train, test"):
        fl.Dataset.from_hf(sets, split="label")


def transformed() -> HuggingFace:
    """A data set after set_transform."""
    dataset = HuggingFace({"label": [0]}, {"label": 0})
    dataset.format = {"type": "custom"}
    return dataset


PICTURES = pixels(6, 8, 8, 3)
HF = {
    "it is a list; it must be a datasets.Dataset": [1, 2],
    "column 'label' has -1 in row 2, which is not one": hugging_face(PICTURES, (0, 1, -1, 1, 0, 1)),
    "the images have 2 sizes, from (8, 8)": hugging_face([*PICTURES[:3], *pixels(3, 9, 8, 3)]),
    "it has its own transform (set_transform)": transformed(),
    "row 5 has no image in column 'image'": hugging_face([*PICTURES[:5], None]),
}


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32])
def test_the_remedy_for_samples_of_torch_that_may_be_images(kind):
    samples, labels = np.full((4, 3, 8, 8), 9).astype(kind), np.arange(4) % 2
    images = [(x.astype(np.uint8), label) for x, label in zip(samples, labels)]
    assert fl.Dataset.from_torch(images).inputs.shape == (4, 8, 8, 3)
    x, preprocess = samples.astype(np.float32), fl.AsStored()
    stored = fl.Dataset("torch", x, labels, preprocess=preprocess)
    np.testing.assert_array_equal(stored.inputs, samples)


@pytest.mark.parametrize("line", [*FAULTS, *NAMED, *TORCH, *HF])
def test_other_objects_and_arguments_are_refused_in_one_line(line):
    with pytest.raises(ValueError) as raised:
        if line in TORCH:
            fl.Dataset.from_torch(TORCH[line])
        elif line in HF:
            fl.Dataset.from_hf(HF[line])
        else:
            options = NAMED.get(line, {"label": "outcome"})
            fl.Dataset.from_pandas(FAULTS.get(line, frame()), **options)
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_of_save_to_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    images = [Image.fromarray(each) for each in PICTURES]
    saved = datasets.Dataset.from_dict({"image": images, "label": ["a", "b"] * 3})
    saved.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "saved")
    dataset = load_dataset("hf:saved", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, PICTURES)
    assert dataset.class_names == ("a", "b") and dataset.reading.path == str(tmp_path / "saved")


def test_parquet(tmp_path):
    table = pa.table({"age": AGE, "dose": DOSE, "outcome": OUTCOME, "__index_level_0__": AGE})
    parquet.write_table(table, tmp_path / "own.parquet")
    dataset = load_dataset("parquet:own.parquet:outcome", tmp_path)
    np.testing.assert_array_equal(dataset.inputs, np.stack([AGE, DOSE], 1).astype(np.float32))
    (left_out,) = dataset.reading.left_out
    assert str(left_out) == "column __index_level_0__ (the pandas index)"
    files = [{"bytes": encoded(image), "path": None} for image in PICTURES]
    table = pa.table({"image": files, "label": [0, 1] * 3})
    parquet.write_table(table, tmp_path / "hub.parquet")  # as the hub of Hugging Face has images
    assert load_dataset("parquet:hub.parquet", tmp_path, 4).inputs.shape == (6, 4, 4, 3)


def one_text(rows: int, size: int) -> pa.Array:
    """One text of so many bytes in every row, which takes few bytes in a file."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), ["x" * size])


def lists(rows: int, values: pa.Array) -> pa.Array:
    each = len(values) // rows
    return pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * each, values)


BOMBS = {
    "many rows": lambda: one_text(50_000, 20_000),
    "long texts": lambda: one_text(4000, 2_000_000),
    "structs": lambda: pa.StructArray.from_arrays([one_text(4000, 100_000)], ["bytes"]),
    "lists of texts": lambda: lists(4000, one_text(40_000, 10_000)),
    "lists of numbers": lambda: lists(2000, pa.nulls(5_000_000, pa.float64()).fill_null(0.0)),
}


@pytest.mark.parametrize("with_schema", [True, False])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_parquet_of_much_content_is_not_decoded(bomb, with_schema, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_BYTES", 32 << 20)
    monkeypatch.setattr(limits, "GROWTH", 1)
    column = BOMBS[bomb]()
    table = pa.table({"label": np.arange(len(column)) % 2, "x": column})
    file = tmp_path / "bomb.parquet"
    parquet.write_table(table, file, compression="zstd", store_schema=with_schema)
    assert file.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    with pytest.raises(
        ValueError, match=r"the table has [\d,]+ bytes, more than the allowed 33,554,432"
    ):
        load_dataset("parquet:bomb.parquet", tmp_path)
    assert pool.bytes_allocated() - before < 40 << 20


def test_columns_of_a_parquet_are_those_of_the_file(tmp_path):
    columns = {
        "pairs": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
        "lists": [["a", None], []],
        "structs": [[{"a": "x"}], []],
        "category": pa.array(["a", "b"]).dictionary_encode(),
        "large": pa.array(["a", None], pa.large_string()),
        "number": pa.array([Decimal("1.5"), None], pa.decimal256(60, 2)),
        "fixed": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
    }
    is_new = int(pa.__version__.partition(".")[0]) >= 26
    if is_new:  # those before cannot read what they wrote
        columns["fixed or not"] = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "all.parquet")
    read = table_files._bounded(tmp_path / "all.parquet")
    assert read.equals(table) and read.schema.equals(table.schema)
    if is_new:  # the oldest write none
        views = pa.table({"view": pa.array(["a", None], pa.string_view())})
        parquet.write_table(views, tmp_path / "views.parquet")
        assert table_files._bounded(tmp_path / "views.parquet")["view"].to_pylist() == ["a", None]


def test_wrong_bits_in_a_parquet_with_sums_are_no_other_data(tmp_path):
    file = tmp_path / "sums.parquet"
    table = pa.table({"label": np.arange(200) % 2, "a": RNG.normal(size=200)})
    parquet.write_table(table, file, write_page_checksum=True)
    content, whole = file.read_bytes(), load_dataset("parquet:sums.parquet", tmp_path)
    for place in RNG.integers(len(content), size=40):
        damaged = bytearray(content)
        damaged[place] ^= 4
        file.write_bytes(damaged)
        try:
            read = load_dataset("parquet:sums.parquet", tmp_path)
        except (ValueError, OSError):
            continue
        np.testing.assert_array_equal(read.inputs, whole.inputs)
        np.testing.assert_array_equal(read.labels, whole.labels)


def private_folder(tmp_path, **image):
    """A folder of save_to_disk whose images are named, not held."""
    datasets = pytest.importorskip("datasets")
    kind = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"image": kind, "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [{"bytes": None, "path": None} | image] * 4, "label": [0, 1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    info = tmp_path / "saved" / "dataset_info.json"
    fields = json.loads(info.read_text())
    fields["features"]["image"] = {"_type": "Image"}
    info.write_text(json.dumps(fields))
    return tmp_path / "saved"


def test_a_folders_images_by_path_are_not_opened(tmp_path):
    (tmp_path / "private.png").write_bytes(encoded(PICTURES[0]))
    for path in (str(tmp_path / "private.png"), "http://127.0.0.1:9/a.png"):
        folder = private_folder(tmp_path, path=path)
        refused("row 0 has no image in column 'image'", f"hf:{folder}")
        with pytest.raises(ValueError, match="row 0 has no image in column 'image'"):
            fl.Dataset.from_hf(str(folder))


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("state.json", {"_data_files": [{"filename": "../private.arrow"}]}, "names data outside"),
        ("state.json", {"_data_files": [{"filename": "/etc/passwd"}]}, "names data outside its"),
        ("state.json", {"_data_files": [{"filename": ".."}]}, "names data outside its folder"),
        ("state.json", {"_data_files": [{}]}, "lists no files of data"),
        ("state.json", {"_data_files": 3}, "lists no files of data"),
        ("state.json", [], "lists no files of data"),
        ("dataset_dict.json", {"splits": ["../other"]}, "names data outside its folder"),
    ],
)
def test_a_folder_of_save_to_disk_names_its_own_files(file, content, message, tmp_path):
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{file} {message}"):
        in_memory.refuse_foreign(tmp_path)


def test_a_pipe_in_a_folder_of_save_to_disk_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.arrow")
    with pytest.raises(ValueError, match=r"pipe\.arrow is not a regular file"):
        in_memory.refuse_foreign(tmp_path)


@pytest.mark.parametrize("kind", [None, "zstd", "lz4"])
def test_compressed_files_of_a_folder_are_not_decoded(tmp_path, kind):
    """Of a stream with a dictionary, too, where only its texts are long."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a" * 10_000, "b"]))
    options = pa.ipc.IpcWriteOptions(compression=kind)
    for name, column in {"numbers": pa.array(np.zeros(10_000)), "texts": texts}.items():
        table, file = pa.table({name: column}), tmp_path / f"{name}.arrow"
        with pa.ipc.new_stream(file, table.schema, options=options) as stream:
            stream.write_table(table)
        if kind:
            with pytest.raises(ValueError, match=rf"{name}\.arrow is compressed"):
                in_memory.refuse_foreign(tmp_path)
            file.unlink()
    in_memory.refuse_foreign(tmp_path)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)])
def test_bytes_of_a_parquet_are_names_in_utf_8(tmp_path, kind):
    names = pa.array(["r\u00e9d".encode(), b"blue"] * 15, kind)
    table = pa.table({"age": AGE, "label": names, "site": names.dictionary_encode()})
    parquet.write_table(table, tmp_path / "own.parquet")
    dataset = load_dataset("parquet:own.parquet:label:site", tmp_path)
    assert dataset.class_names == dataset.reading.group_names == ("blue", "r\u00e9d")
    table = table.set_column(1, "label", pa.array([b"\xffred", b"blue"] * 15, kind))
    parquet.write_table(table, tmp_path / "own.parquet")
    line = "column 'label' has bytes that are not UTF-8, b'\\xffred'; convert it to text"
    refused(line, "parquet:own.parquet:label:site", tmp_path)


def test_parquet_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([AGE, DOSE, np.arange(COUNT) % 3], ["dose", "dose", "label"])
    parquet.write_table(table, tmp_path / "own.parquet")
    refused("dose, dose, label; each needs its own name", "parquet:own.parquet", tmp_path)


def test_damaged_parquet_is_one_line(tmp_path):
    write(tmp_path / "own.parquet", "PAR1 or not")
    message = load_error(ValueError, "parquet:own.parquet", tmp_path)
    assert "own.parquet: " in message and "; expected a .parquet file" in message
    refused("none.parquet", "parquet:none.parquet", tmp_path, kind=FileNotFoundError)
