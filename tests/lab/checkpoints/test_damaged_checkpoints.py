"""A broken checkpoint falls back to the one before it, and a killed process leaves a whole one."""

import shutil

import pytest

from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints import segments as stored
from fedjax_ht.lab.checkpoints.checkpoint import Checkpointer
from tests.lab.checkpoints.toy import (
    COURSE,
    advance,
    assert_same,
    checkpoints,
    course,
    damage,
    flip,
    segments,
    toy_simulation,
)


@pytest.mark.parametrize("what", ["checkpoint", "segment", "no segment"])
def test_a_broken_newest_falls_back_with_a_warning(folder, what):
    writer = Checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [{"round": state.round}])
    newest = max(segments(folder).items())[1]
    if what == "no segment":
        newest.rename(folder.parent / "elsewhere")
    else:
        damage(newest if what == "segment" else folder / "3")
    warnings = []
    writer = Checkpointer(folder, toy_simulation())
    state, history = writer.restore(warnings.append)
    assert_same(state, COURSE[2])
    assert history == [{"round": 2}]
    assert len(warnings) == 1 and str(folder / "3") in warnings[0] and "\n" not in warnings[0]
    # the run goes on past the broken one, which does not count among the newest
    writer.save(COURSE[4], [])
    assert checkpoints(folder) == [2, 4]
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], COURSE[4])


def test_a_flipped_bit_in_any_file_is_named_or_harmless(folder):
    writer = Checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [{"round": state.round}])
    files = sorted(p for p in folder.parent.rglob("*") if p.is_file() and p.stat().st_size)
    named = set()
    for file in files:
        at, whole, warnings = file.stat().st_size // 2, file.read_bytes(), []
        flip(file, at)
        state, history = Checkpointer(folder, toy_simulation()).restore(warnings.append)
        assert_same(state, COURSE[3 - len(warnings)])
        assert history == [{"round": state.round}]
        named |= {file} if warnings and file.name in warnings[0] else set()
        file.write_bytes(whole)
    folders = {str(folder / "3"), *(str(segments(folder)[s]) for s in stored.held(folder / "3"))}
    newest = {file for file in files if any(str(file).startswith(f"{place}/") for place in folders)}
    assert newest <= named and len(folders) == 3 and len(newest) == 9


def test_a_segment_of_another_run_is_not_taken_for_its_own(folder, tmp_path):
    for place, rows in ((folder, [0, 1]), (tmp_path / "other" / "checkpoints", [2, 3])):
        Checkpointer(place, toy_simulation()).save(course(rows)[1], [])
    shutil.rmtree(segments(folder)[1])
    shutil.copytree(
        segments(tmp_path / "other" / "checkpoints")[1],
        folder.with_name("checkpoints.segments") / "1",
    )
    warnings = []
    assert Checkpointer(folder, toy_simulation()).restore(warnings.append) is None
    assert "checkpoints.segments/1 belongs to another checkpoint" in warnings[0]


def test_unreadable_checkpoints_are_moved_aside_unchanged(folder):
    writer = Checkpointer(folder, toy_simulation())
    for state in COURSE[1:4]:
        writer.save(state, [])
    newest = [folder / "3", *(segments(folder)[s] for s in stored.held(folder / "3"))]
    damage(folder / "3")
    files = [path for part in newest for path in part.rglob("*") if path.is_file()]
    before = {path.relative_to(folder.parent): path.read_bytes() for path in files}
    writer = Checkpointer(folder, toy_simulation())
    writer.restore(lambda line: None)
    writer.save(COURSE[4], [])
    aside = folder.parent / "set_aside_1"
    assert {p.relative_to(aside): p.read_bytes() for p in aside.rglob("*") if p.is_file()} == before
    writer.save(COURSE[5], [])
    assert not (folder.parent / "set_aside_2").exists()


def test_strays_in_the_folders_crash_nothing(folder):
    Checkpointer(folder, toy_simulation()).save(COURSE[1], [])
    for parent in (folder, folder.with_name("checkpoints.segments")):
        for name in (".DS_Store", "7", "notes.txt"):
            (parent / name).write_text("stray")
        for name in ("copy of 1", "²", "007"):
            (parent / name).mkdir()
    writer, warnings = Checkpointer(folder, toy_simulation()), []
    assert_same(writer.restore(warnings.append)[0], COURSE[1])
    writer.save(COURSE[2], [])
    assert_same(Checkpointer(folder, toy_simulation()).restore(warnings.append)[0], COURSE[2])
    assert not warnings and (folder / "notes.txt").exists() and (folder / "copy of 1").exists()


def test_a_checkpoint_of_another_simulation_is_passed_over(folder):
    Checkpointer(folder, toy_simulation()).save(COURSE[1], [])
    warnings = []
    assert Checkpointer(folder, toy_simulation(width=5)).restore(warnings.append) is None
    assert len(warnings) == 1 and "it holds float32[3, 4], expected float32[3, 5]" in warnings[0]


@pytest.mark.parametrize(
    "owner, name, below",
    [
        (sealed, "place", "checkpoints.segments"),
        (sealed, "place", "checkpoints"),
        (sealed, "remove", "checkpoints"),
        (sealed.shutil, "rmtree", "checkpoints"),
        (stored, "delete_unused", ""),
        (sealed.shutil, "rmtree", "checkpoints.segments"),
    ],
)
def test_killed_while_saving(folder, owner, name, below, monkeypatch):
    Checkpointer(folder, toy_simulation(), keep=1).save(COURSE[1], [])
    whole = getattr(owner, name)

    def die(path):
        if below in ("", path.parent.name):
            raise KeyboardInterrupt
        whole(path)

    writer = Checkpointer(folder, toy_simulation(), keep=1)
    writer.restore()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, die)
        writer.save(COURSE[5], [])
    for parent in (folder, folder.with_name("checkpoints.segments")):
        for number in sealed.numbers(parent):
            sealed.check(parent / str(number))  # under its name nothing is ever half there
    half_written = folder.with_name("checkpoints.segments") / "9.tmp"
    half_written.mkdir()
    writer = Checkpointer(folder, toy_simulation(), keep=1)
    warnings = []
    state, _ = writer.restore(warnings.append)
    assert_same(state, COURSE[1 if name == "place" else 5])
    assert not warnings
    final = advance(COURSE[5], [0, 1, 2, 5, 7, 11])
    writer.save(final, [])
    assert checkpoints(folder) == [6]
    assert len(segments(folder)) == 1 and not half_written.exists()
    assert_same(Checkpointer(folder, toy_simulation()).restore()[0], final)
