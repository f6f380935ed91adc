"""Files that ask for too much are refused in one line, at once, and with little memory."""

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_ht.check.names import short
from fedjax_ht.lab.safe import limits
from fedjax_ht.lab.safe.safe_pickle import load_pickle
from tests.lab.readers import attacks
from tests.lab.readers.attacks import bombs
from tests.lab.safe.test_torch_files import refused, write

# Not in the fast suite: bombs of 4 GB, pickles of a million steps, files of 100 MB, and millions of
# rows, words or classes, whose limits test_leaf.py, test_motion.py, test_texts.py and test_tables.py
# lower instead.
SLOW = (
    *("bomb", "claim: JSON of 100 MB", "claim: table of 20"),
    *("claim: table of a million", "claim: words", "claim: texts of", "claim: as many"),
    *("claim: table of one long cell", "claim: LEAF of", "claim: labels of 100 MB", "claim: a "),
    *("pickle: empty", "pickle: nested", "pickle: deep", "pickle: integers"),
)


def _ends(folder: Path, names: list[str]) -> dict[str, dict]:
    command = [sys.executable, "-m", "tests.lab.readers.attacks", str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    return {result.pop("attack"): result for result in map(json.loads, done.stdout.splitlines())}


def _check(results: dict[str, dict], names: list[str]) -> None:
    assert list(results) == names
    # an empty dict, after all
    harmless = [name for name in names if "memo index" in name and "weights" in name]
    for name, result in results.items():
        assert result["end"] == ("read" if name in harmless else "refused"), (name, result)
        assert "\n" not in result["line"] and len(result["line"]) < 1000, (name, result)
        # The limit of its processor's time would have ended it by a signal.
        assert result["mib"] < 1024, (name, result)
        # such as "no weights at PATH"
        if name.startswith("pipe: ") and not result["line"].startswith("no "):
            assert "is not a regular file" in result["line"], (name, result)


def test_refused(tmp_path):
    names = [
        name
        for name in attacks.all_attacks()
        if not name.startswith(SLOW) and not name.endswith(("client", "weights"))
    ]
    assert len(names) > 40
    _check(_ends(tmp_path, names), names)


@pytest.mark.slow
def test_refused_in_full(tmp_path):
    names = list(attacks.all_attacks())
    results = _ends(tmp_path, names)
    for group in ("bomb", "claim", "pickle", "pipe"):
        outcomes = [result for name, result in results.items() if name.startswith(f"{group}:")]
        ended = [result["end"] for result in outcomes].count("refused")
        most = {what: max(x[what] for x in outcomes) for what in ("seconds", "busy", "mib")}
        print(f"{group}: {ended}/{len(outcomes)} refused, at most {most}")
    _check(results, names)


# The same with small limits, in this process.


@pytest.mark.parametrize("name", bombs(1 << 20))
def test_bombs_by_limit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(limits, "FILE_BYTES", 1 << 20)
    how = bombs(8 << 20)[name](tmp_path)
    reasons = {"zip that lies": "Bad CRC", "weights": "is compressed"}
    message = reasons.get(name, "more than the allowed 1,048,576")
    with pytest.raises(ValueError, match=message) as error:
        attacks.read(tmp_path, *how)
    assert "\n" not in str(error.value)


def test_contents_of_a_bomb_are_read_below_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "FILE_BYTES", 1 << 20)
    np.savez_compressed(
        tmp_path / "x.npz", images=np.zeros((200, 64, 64), np.uint8), labels=[0] * 200
    )
    attacks.read(tmp_path, "dataset", "npz:x.npz")
    monkeypatch.setattr(limits, "FILE_BYTES", 800 << 10)
    with pytest.raises(ValueError, match="more than the allowed 819,200"):
        # another name, since the first set is kept
        attacks.read(tmp_path, "dataset", "npz:./x.npz")
    monkeypatch.setattr(limits, "GROWTH", 10_000)
    attacks.read(tmp_path, "dataset", "npz:./x.npz")


@pytest.mark.parametrize(
    ("limit", "value", "content", "unit"),
    [
        ("PICKLE_STEPS", 1000, b"K\x01]" * 2000, "steps"),
        ("PICKLE_NAMES", 10, b"cnumpy\ndtype\n0" * 20, "names"),
    ],
)
def test_limits_of_pickles(monkeypatch, limit, value, content, unit):
    monkeypatch.setattr(limits, limit, value)
    with pytest.raises(ValueError, match=f"more than the allowed {value:,}"):
        load_pickle(io.BytesIO(content + b"."))


def test_a_state_dict_in_itself_is_refused(tmp_path):
    content = pickle.dumps("state_dict", 2)[2:-1]
    path = write(tmp_path / "x.pth", b"\x80\x02}q\0" + content + b"h\0s.")
    refused("the entry 'state_dict' is not a tensor", path)


def test_a_value_in_values_is_shown_in_short():
    value = 0
    for _ in range(100):
        value = (value, value)  # 2^100 numbers
    assert len(short(value)) < 100
