"""A file of a publisher's name that is not the publisher's gives one line with both sums."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.lab.readers import cifar, idx, load_dataset, photographs
from fedjax_ht.lab.readers.registry import SOURCES, _load
from fedjax_ht.lab.readers.source import check_sum
from tests.lab.readers.test_sources_raw import _tar, _write_cifar, _write_mnist
from tests.lab.readers.test_sources_svhn import _write_svhn

DATA = Path(__file__).parents[3] / "data"


def sums_said(caplog) -> list[str]:
    """The lines about sums since the last call."""
    lines = [message for message in caplog.messages if "MD5 sum" in message]
    caplog.clear()
    return lines


def test_another_sum_is_one_line(tmp_path):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"abc")
    lines = check_sum(cifar.MD5["cifar10"], path)
    lines += check_sum(cifar.MD5["cifar10"], tmp_path / "data_batch_1", b"abc")
    abc = "900150983cd24fb0d6963f7d28e17f72"
    assert list(lines) == [
        f"{path}: its MD5 sum is {abc}, the publisher's file has c58f30108f718f92721af3b95e74349a; it is read all the same",
        f"{tmp_path / 'data_batch_1'}: its MD5 sum is {abc}, the publisher's file has c99cafc152244af753f735de768cd75f; it is read all the same",
    ]


def test_the_right_sum_and_other_names_say_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(photographs.SVHN.md5, "train_32x32.mat", hashlib.md5(b"abc").hexdigest())
    (tmp_path / "train_32x32.mat").write_bytes(b"abc")
    assert check_sum(photographs.SVHN.md5, tmp_path / "train_32x32.mat") == ()
    assert check_sum(idx.MD5["mnist"], tmp_path / "train_32x32.mat") == ()
    assert check_sum({tmp_path.name: "0" * 32}, tmp_path) == ()  # an extracted folder


def test_sums_are_of_the_form():
    sums = {(file, digest) for source in SOURCES.values() for file, digest in source.md5.items()}
    sums = [digest for _, digest in sums]  # two sets share ag_news' test.csv
    assert all(len(digest) == 32 and int(digest, 16) for digest in sums)
    assert len(set(sums)) == len(sums)


@pytest.mark.parametrize("compresslevel", [1, 9])
def test_readers_check_what_they_read(tmp_path, caplog, monkeypatch, compresslevel):
    """However gzip wrote it, an idx file is known by what is in it."""
    _write_mnist(tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        monkeypatch.setitem(idx.MD5["mnist"], path.name, hashlib.md5(content).hexdigest())
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content, compresslevel))
        path.unlink()
    load_dataset("mnist", tmp_path)
    assert not sums_said(caplog)
    monkeypatch.setitem(idx.MD5["mnist"], "t10k-labels-idx1-ubyte", "0" * 32)
    _load.cache_clear()
    for _ in range(2):  # the second from memory: the line is there each time
        load_dataset("mnist", tmp_path)
        (line,) = sums_said(caplog)
        assert line.startswith(f"mnist: {tmp_path / 't10k-labels-idx1-ubyte'}: its MD5 sum is")


def test_every_named_file_is_checked(tmp_path, caplog):
    folder, _, _ = _write_cifar("cifar100", "python", tmp_path)
    load_dataset("cifar100", tmp_path)
    assert len(sums_said(caplog)) == 3
    (tmp_path / "new").mkdir()
    _tar(folder, tmp_path / "new/cifar-100-python.tar.gz")
    load_dataset("cifar100", tmp_path / "new")
    assert len(sums_said(caplog)) == 1
    _write_svhn(tmp_path)
    load_dataset("svhn", tmp_path)
    assert len(sums_said(caplog)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), [("fashion_mnist", 70_000), ("cifar10", 60_000)])
def test_the_real_files_are_known(caplog, name, samples):
    if not DATA.is_dir():
        pytest.skip("no data/")
    dataset = load_dataset(name, DATA)
    assert len(dataset.labels) == samples and np.ptp(dataset.labels) == 9 and not caplog.messages
