"""A fault in a cache or a download leaves nothing wrong, and the same call again succeeds."""

import errno

import numpy as np
import pytest

from fedjax_ht.lab.readers.download import get
from tests.faults import Fault, injected, some_or_all, try_faults
from tests.lab.readers.download_server import TEST, TRAIN, files
from tests.lab.readers.source_files import encoded, write
from tests.lab.readers.test_cache import load

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.mark.parametrize("is_kept", [False, True])
@some_or_all
def test_a_fault_in_a_cache(tmp_path, monkeypatch, which, is_kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "folder/user"))

    def prepare(folder):
        for i, name in enumerate(["a/1", "b/1", "b/2"]):
            write(folder / f"set/{name}.png", encoded(np.full((4, 4), i, np.uint8)))
        if is_kept:
            load(f"folder:{folder / 'set'}")

    def read(folder):
        dataset = load(f"folder:{folder / 'set'}")
        assert dataset.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
        assert dataset.labels.tolist() == [0, 1, 1]

    def check(folder, is_through):
        read(folder)

    tried = try_faults(tmp_path, prepare, read, check, **which)
    assert tried.faults > 2, tried


@some_or_all
def test_a_fault_in_a_download(tmp_path, server, pair, which):
    whole = {"pair/train.bin": TRAIN, "pair/test.bin": TEST}

    def download(folder):
        get("pair", folder, lambda line: None, pair)

    def check(folder, is_through):
        left = files(folder)
        if is_through:
            assert left == whole
        for name, content in left.items():  # a part has no file's name
            assert whole[name.removesuffix(".part")].startswith(content)
            assert name.endswith(".part") or whole[name] == content

    tried = try_faults(tmp_path, lambda folder: None, download, check, **which)
    assert tried.faults > 5, tried


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path):
    for i, name in enumerate(["a/1", "b/1"]):
        write(tmp_path / f"set/{name}.png", encoded(np.full((4, 4), i, np.uint8)))
    with (
        injected(tmp_path / "set/a", Fault("open", 1, errno.EIO)),
        pytest.raises((OSError, ValueError), match=r"Input/output error: .*set/a"),
    ):
        load(f"folder:{tmp_path / 'set'}")
