"""A file of a publisher's name that is not the publisher's gives one line with both sums."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.data.sources import cifar, idx, svhn
from fedjax_ht.data.sources.checksums import check_sum
from fedjax_ht.data.sources.registry import SOURCES, _load
from tests.data.test_sources_raw import _tar, _write_cifar, _write_mnist
from tests.data.test_sources_svhn import _write_svhn

DATA = Path(__file__).parents[2] / "data"


def test_another_sum_is_one_line(tmp_path, caplog):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(b"abc")
    check_sum(cifar.MD5["cifar10"], path)
    check_sum(cifar.MD5["cifar10"], tmp_path / "data_batch_1", b"abc")
    abc = "900150983cd24fb0d6963f7d28e17f72"
    assert caplog.messages == [
        f"{path}: its MD5 sum is {abc}, the publisher's file has c58f30108f718f92721af3b95e74349a; it is read all the same",
        f"{tmp_path / 'data_batch_1'}: its MD5 sum is {abc}, the publisher's file has c99cafc152244af753f735de768cd75f; it is read all the same",
    ]


def test_the_right_sum_and_other_names_say_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setitem(svhn.MD5, "train_32x32.mat", hashlib.md5(b"abc").hexdigest())
    (tmp_path / "train_32x32.mat").write_bytes(b"abc")
    check_sum(svhn.MD5, tmp_path / "train_32x32.mat")
    check_sum(idx.MD5["mnist"], tmp_path / "train_32x32.mat")
    check_sum({tmp_path.name: "0" * 32}, tmp_path)  # an extracted folder
    assert not caplog.messages


def test_sums_are_of_the_form():
    sums = {(file, digest) for source in SOURCES.values() for file, digest in source.md5.items()}
    sums = [digest for _, digest in sums]  # two sets share ag_news' test.csv
    assert all(len(digest) == 32 and int(digest, 16) for digest in sums) and len(set(sums)) == len(
        sums
    )


@pytest.mark.parametrize("compresslevel", [1, 9])
def test_readers_check_what_they_read(tmp_path, caplog, monkeypatch, compresslevel):
    """However gzip wrote it, an idx file is known by what is in it."""
    _write_mnist(tmp_path)
    for path in tmp_path.iterdir():
        content = path.read_bytes()
        monkeypatch.setitem(idx.MD5["mnist"], path.name, hashlib.md5(content).hexdigest())
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content, compresslevel))
        path.unlink()
    _load.__wrapped__("mnist", tmp_path, None)
    assert not caplog.messages
    monkeypatch.setitem(idx.MD5["mnist"], "t10k-labels-idx1-ubyte", "0" * 32)
    _load.__wrapped__("mnist", tmp_path, None)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        str(tmp_path / "t10k-labels-idx1-ubyte")
    ]


def test_every_named_file_is_checked(tmp_path, caplog):
    folder, _, _ = _write_cifar("cifar100", "python", tmp_path)
    _load.__wrapped__("cifar100", tmp_path, None)
    assert len(caplog.messages) == 3
    caplog.clear()
    (tmp_path / "new").mkdir()
    _tar(folder, tmp_path / "new/cifar-100-python.tar.gz")
    _load.__wrapped__("cifar100", tmp_path / "new", None)
    assert len(caplog.messages) == 1
    caplog.clear()
    _write_svhn(tmp_path)
    _load.__wrapped__("svhn", tmp_path, None)
    assert len(caplog.messages) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), [("fashion_mnist", 70_000), ("cifar10", 60_000)])
def test_the_real_files_are_known(caplog, name, samples):
    if not DATA.is_dir():
        pytest.skip("no data/")
    dataset = _load.__wrapped__(name, DATA, None)
    assert len(dataset.labels) == samples and np.ptp(dataset.labels) == 9 and not caplog.messages
