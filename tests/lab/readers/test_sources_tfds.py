"""Sets that tensorflow-datasets prepared, read without TensorFlow."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import load_dataset
from tests.lab.readers.source_files import encoded, load_error, refused, write


def prepare(root: Path, name: str, splits: tuple[str, str] = ("train", "test")) -> None:
    """Prepares a set of this class's name as array_record: 3 images and 2."""
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record")

    class Builder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        # tensorflow-datasets need not look for this file
        name, pkg_dir_path, code_path = "", root, None

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(8, 6, 3)),
                "label": tfds.features.ClassLabel(names=["a", "b"]),
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, dl_manager):
            first, second = map(self._generate_examples, ([0, 1, 2], [3, 4]))
            return {splits[1]: second, splits[0]: first}

        def _generate_examples(self, values):
            for i in values:
                image = encoded(np.full((8, 6, 3), i, np.uint8))
                yield i, {"image": io.BytesIO(image), "label": i % 2}

    Builder.name = name
    Builder(data_dir=root, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A tensorflow-datasets folder with the set "tiny"."""
    root = tmp_path_factory.mktemp("tfds")
    prepare(root, "tiny")
    return root


def test_tfds(prepared):
    dataset = load_dataset("tfds:tiny", prepared)
    values = dataset.inputs[:, 0, 0, 0]
    assert dataset.inputs.shape == (5, 8, 6, 3) and dataset.class_names == ("a", "b")
    expected = {"train": [0, 1, 2], "test": [3, 4]}
    assert {k: sorted(values[v].tolist()) for k, v in dataset.official.items()} == expected
    np.testing.assert_array_equal(dataset.labels, values % 2)
    assert load_dataset("tfds:tiny:1.0.0", prepared, 4).inputs.shape == (5, 4, 4, 3)
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("name", "builder", "splits", "size"),
    [
        ("svhn", "svhn_cropped", ("train", "test"), (8, 6)),
        ("flowers102", "oxford_flowers102", ("train", "test"), (64, 64)),
        ("food101", "food101", ("train", "validation"), (64, 64)),
    ],
)
def test_sets_of_a_name_of_their_own(tmp_path, name, builder, splits, size):
    refused(f"tfds.builder({builder!r}, ", name, tmp_path, kind=FileNotFoundError)
    prepare(tmp_path, builder, splits)
    dataset = load_dataset(name, tmp_path)
    assert dataset.inputs.shape == (5, *size, 3)
    assert {key: len(rows) for key, rows in dataset.official.items()} == {"train": 3, "test": 2}


def test_tfds_not_prepared(tmp_path):
    write(tmp_path / "tiny/1.0.0/dataset_info.json", "{}")
    for name in ("tfds:other", "tfds:tiny:2.0.0"):
        message = load_error(FileNotFoundError, name, tmp_path)
        assert "pip install 'fedjax_ht[tfds]'" in message and "download_and_prepare()" in message


def test_tfds_in_a_format_of_tensorflow(prepared, tmp_path):
    for path in (prepared / "tiny/1.0.0").glob("[!.]*"):
        content = path.read_bytes()
        if path.name == "dataset_info.json":
            assert b'"array_record"' in content
            content = content.replace(b'"array_record"', b'"tfrecord"')
        write(tmp_path / "tiny/1.0.0" / path.name, content)
    message = load_error(ValueError, "tfds:tiny", tmp_path)
    assert "prepared as tfrecord" in message and "download_and_prepare()" in message


def test_tfds_of_two_versions(tmp_path):
    for version in ("1.0.0", "2.0.0"):
        write(tmp_path / f"tiny/{version}/dataset_info.json", "{}")
    refused("(tiny/1.0.0, tiny/2.0.0)", "tfds:tiny", tmp_path)


def test_tfds_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    write(tmp_path / "tiny/1.0.0/dataset_info.json", "{}")
    refused("pip install tensorflow-datasets", "tfds:tiny", tmp_path, kind=ImportError)
