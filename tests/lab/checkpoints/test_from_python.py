"""A simulation made in Python is saved and goes on."""

import pytest

from fedjax_ht.lab.checkpoints.checkpoint import load, save
from fedjax_ht.lab.checkpoints.writers import read_runs
from tests.lab.checkpoints.toy import COURSE, assert_same, toy_simulation

ROWS = [{"round": 2, "trial": 0, "accuracy": 0.1 + 0.2, "clients": [None, 1 / 3]}]


def test_a_saved_simulation_comes_back(tmp_path):
    save(tmp_path / "mine", toy_simulation(), COURSE[2], ROWS)
    state, history = load(str(tmp_path / "mine"), toy_simulation())
    assert_same(state, COURSE[2])
    assert [history] == read_runs(tmp_path / "mine") == [ROWS]
    assert {"metrics.csv", "clients.csv"} <= {file.name for file in (tmp_path / "mine").iterdir()}


def test_the_two_newest_states_stay(tmp_path):
    rows = [ROWS[0] | {"round": number} for number in (0, 1, 2)]
    for number in (0, 1, 2):
        save(tmp_path, toy_simulation(), COURSE[number], rows[: number + 1])
    assert_same(load(tmp_path, toy_simulation())[0], COURSE[2])
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    assert not list(tmp_path.glob("set_aside*"))


def test_another_course_is_set_aside(tmp_path):
    save(tmp_path, toy_simulation(), COURSE[2], ROWS)
    save(tmp_path, toy_simulation(), COURSE[1], [ROWS[0] | {"accuracy": 0.5}])
    assert_same(load(tmp_path, toy_simulation())[0], COURSE[1])
    assert len(list(tmp_path.glob("set_aside_1/**/2"))) == 1


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"has no checkpoint of this simulation .* fl\.save\("):
        load(tmp_path / "none", toy_simulation())


def test_a_file_in_the_folders_place_is_refused(tmp_path):
    (tmp_path / "mine").write_text("a file")
    with pytest.raises(ValueError, match="mine', a file; give a folder"):
        save(tmp_path / "mine", toy_simulation(), COURSE[2], ROWS)
