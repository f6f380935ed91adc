"""A fault in a cache or a download leaves nothing wrong, and the same call again succeeds."""

import errno

import pytest

from fedjax_ht.lab.readers.download import get
from tests.faults import Fault, injected, some_or_all, try_faults
from tests.lab.readers.download_server import TEST, TRAIN, files
from tests.lab.readers.test_cache import assert_whole, load, write_set

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.mark.parametrize("is_kept", [False, True])
@some_or_all
def test_a_fault_in_a_cache(tmp_path, monkeypatch, which, is_kept):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "folder/user"))

    def prepare(folder):
        write_set(folder / "set")
        if is_kept:
            load(f"folder:{folder / 'set'}")

    def read(folder):
        assert_whole(folder / "set")

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
    write_set(tmp_path / "set")
    with (
        injected(tmp_path / "set/train/a", Fault("open", 1, errno.EIO)),
        pytest.raises((OSError, ValueError), match=r"Input/output error: .*set/train/a"),
    ):
        load(f"folder:{tmp_path / 'set'}")
