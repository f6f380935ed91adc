"""A run of a method of the user's own is shown and evaluated again, where its code is trusted."""

import hashlib
import json
import shutil
import sys

import pytest

from fedjax_ht.data.partition.registry import SPLITS
from fedjax_ht.lab import cli
from fedjax_ht.lab.config.base import base_config, method_config, typed_config
from fedjax_ht.lab.config.config_files import absolute, read_config_file
from fedjax_ht.lab.config.entries import entries_of, method_of
from fedjax_ht.lab.runs import train
from fedjax_ht.lab.runs.evaluate import load_run
from fedjax_ht.lab.runs.list import listed
from fedjax_ht.lab.runs.own_methods import own_code, own_names, read_trusted_run
from fedjax_ht.lab.runs.plan import settle
from fedjax_ht.lab.runs.report import report_run
from fedjax_ht.lab.runs.train import train_and_evaluate
from fedjax_ht.methods import METHODS, is_own, local
from fedjax_ht.methods.registry import FACTORIES
from tests.lab.runs.folders import edited, refused

METHOD = """
import numpy as np
import fedjax_ht as fl

def beside(training, weight: fl.NonNegative = 1.0):
    return fl.local(training)._replace(name="beside")

def in_turn(dataset, num_clients, rng):
    parts = [np.arange(i, len(dataset.labels), num_clients) for i in range(num_clients)]
    return tuple(fl.ClientIndices(part[2:], part[:0], part[:2]) for part in parts)
"""
CONFIG = """
import fedjax_ht as fl
from fedjax_ht.lab.config.base import method_config, partition_config
from method_beside import beside, in_turn
from tests.runs import config_of

{register}
fl.register_partition("in_turn", in_turn)

def get_config(argument=None):
    import method_beside  # at any time, while the file is read
    config = config_of("{tiny}")
    config.method, config.entries = method_config("beside"), ()
    config.partition = partition_config("in_turn", config.partition.num_clients)
    config.rounds = 1
    return config
"""
REGISTER = 'fl.register_method("beside", beside)'


def forget():
    FACTORIES.pop("beside", None)
    SPLITS.pop("in_turn", None)
    sys.modules.pop("method_beside", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_config):
    """A folder with a config file, its method beside it, and their run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "own").mkdir()
    file = folder / "own" / "own.py"
    (folder / "own" / "method_beside.py").write_text(METHOD)
    file.write_text(CONFIG.format(tiny=tiny_config, register=REGISTER))
    config = typed_config(read_config_file(str(file)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "write_results", lambda *args: [])
        train_and_evaluate(config, folder / "run", config_file=absolute(str(file)))
    forget()
    return folder


def test_an_entry_notes_the_checksum_of_the_code_that_trained_it(trained):
    (folder,) = (trained / "run").glob("beside*")
    (versions,) = json.loads((folder / "identity.json").read_text())["versions"]
    content = (trained / "own" / "method_beside.py").read_bytes()
    assert versions["code.method_beside.py"] == hashlib.sha256(content).hexdigest()
    assert [name for name in versions if name.startswith("code.")] == ["code.method_beside.py"]


@pytest.fixture
def written(trained, tmp_path):
    """A copy of the config file; its method is registered by nobody."""
    shutil.copytree(trained / "own", tmp_path / "own")
    yield tmp_path / "own" / "own.py"
    forget()


@pytest.fixture
def run(trained, written, tmp_path):
    """A copy of the run, as that config file would have left it."""
    folder = shutil.copytree(trained / "run", tmp_path / "run")
    content = (folder / "config.json").read_text()
    noted = str((trained / "own" / "own.py").resolve())
    assert json.loads(content)["run"]["own_methods"] == {"beside": noted}
    assert json.loads(content)["run"]["own_partitions"] == {"in_turn": noted}
    (folder / "config.json").write_text(content.replace(noted, str(written)))
    return folder


def test_a_config_imports_the_modules_beside_it(written, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert read_config_file("own/own.py").method.name == "beside" and sys.path == path
    forget()
    with pytest.raises(cli.BadConfigFile, match="line 4: ModuleNotFoundError"):
        shutil.move("own/method_beside.py", "method_beside.py")
        read_config_file("own/own.py")


def test_a_run_is_known_again_where_it_is_trusted(run, written):
    line = rf"beside is not one of the library's methods: {written} registers it; .* with --trust"
    for call in (load_run, report_run):
        with refused(line):
            call(run)
        assert "beside" not in METHODS
    assert load_run(run, trust=True).state.round == 1
    forget()
    text, _ = report_run(run, trust=True)
    assert "* beside: at its defaults" in text


def test_a_partition_of_ones_own_is_known_again_too(run, written, monkeypatch):
    def beside(training):
        return local.local(training)

    beside.__module__, beside.__qualname__ = "method_beside", "beside"
    monkeypatch.setitem(FACTORIES, "beside", beside)
    line = (
        rf"in_turn is not one of the library's partitions: {written} registers it; .* with --trust"
    )
    with pytest.raises(ValueError, match=line):
        load_run(run)
    assert load_run(run, trust=True).run.partitions[0][1].test.tolist() == [1, 5]


def test_a_registered_method_needs_no_trust(run, written):
    read_config_file(str(written))
    assert load_run(run).state.round == 1


def test_a_config_file_that_has_moved_is_looked_for_here(run, written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    moved = written.rename(written.with_name("gone.py"))
    with pytest.raises(FileNotFoundError, match=r"own\.py, which registers 'beside'; put"):
        read_trusted_run(run, trust=True)
    shutil.copy(moved, "own.py")
    shutil.copy(moved.with_name("method_beside.py"), "method_beside.py")
    assert load_run(run, trust=True).state.round == 1


def test_a_config_file_that_registers_it_no_more_is_named(run, written, tiny_config):
    broken = CONFIG.format(tiny=tiny_config, register="1 / 0")
    another = CONFIG.format(tiny=tiny_config, register="")
    another = another.replace('method_config("beside")', "config.method")
    line = r"own\.py no longer registers 'beside' with fl\.register_method"
    for text, message in ((broken, "Zero"), (another, line)):
        written.write_text(text)
        with refused(message):
            load_run(run, trust=True)


def test_a_run_that_knows_no_config_file_says_what_to_do(run):
    with edited(run / "config.json") as content:
        content["run"]["own_methods"] = {"beside": None}
    with pytest.raises(ValueError, match=r"recorded no config file that registers it; register"):
        load_run(run, trust=True)


def test_which_methods_are_a_users_own():
    assert not any(map(is_own, [*METHODS, "fedrolex+dfrd"]))
    assert is_own("beside") and is_own("beside+dfrd")


DATA = """
import fedjax_ht as fl

def dataset():
    return fl.load_dataset("npz:{data}")
"""


def test_a_module_beside_the_config_file_is_found_again(run, written, tiny_config, monkeypatch):
    """The run's data come from a function now."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    module = DATA.format(data=tiny_config.parent / "data.npz")
    (written.parent / "data_beside.py").write_text(module)
    with edited(run / "config.json") as content:
        assert "own_modules" not in content["run"]
        content["run"]["own_modules"] = {"data_beside:dataset": str(written)}
        content["dataset"]["name"] = "data_beside:dataset"
    with edited(run / "beside" / "identity.json") as content:
        content["data"]["name"] = "data_beside:dataset"
    read_config_file(str(written))
    line = rf"names data_beside:dataset, which would be imported from {written.parent} or .*--trust"
    with pytest.raises(ValueError, match=line):
        load_run(run)
    loaded = load_run(run, trust=True)
    assert loaded.state.round == 1
    assert set(own_code(loaded.run)) == {"code.method_beside.py", "code.data_beside.py"}
    names = own_names(read_trusted_run(run, True))
    assert names["own_modules"] == ["data_beside:dataset"]


def test_a_command_looks_beside_its_config_file(run_script, written, tmp_path):
    """The command ends before anything is compiled: the function returns no data set."""
    (written.parent / "no_data.py").write_text("def dataset(): return [1, 2]")
    arguments = ("run", f"--config={written}", "--config.dataset.name=no_data:dataset")
    done = run_script(*arguments, f"--workdir={tmp_path / 'never'}")
    assert done.returncode == 2 and not (tmp_path / "never").exists()
    assert done.stderr.strip().splitlines() == [
        "error: dataset 'no_data:dataset' returns a list; it must return an fl.Dataset"
    ]


def test_code_that_has_changed_since_it_trained_is_reported(run, written, monkeypatch):
    monkeypatch.setattr(train, "write_results", lambda *args: [])
    for comment, files in (("", []), ("# other code", ["method_beside.py"])):
        (written.parent / "method_beside.py").write_text(METHOD + comment)
        config, heard = typed_config(read_config_file(str(written))), []
        train_and_evaluate(config, run, config_file=str(written), warn=heard.append)
        lines = [line for line in heard if "has changed since it trained this entry" in line]
        assert [line.split()[1] for line in lines] == files
        forget()


@pytest.fixture
def by_module(run, monkeypatch):
    """The run as it would be of the method "method_beside:beside", which nobody registers."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    name = "method_beside:beside"
    (run / "beside").rename(run / name)
    for file in (run / "config.json", run / "report.json", run / name / "identity.json"):
        content = file.read_text().replace('"beside"', f'"{name}"')
        file.write_text(content.replace('"own_methods"', '"own_modules"'))
    return run


def test_a_method_by_module_and_function(by_module, written, monkeypatch):
    monkeypatch.setitem(SPLITS, "in_turn", lambda *_: None)  # registered: it is no question here
    monkeypatch.setattr(sys, "path", [*sys.path, str(written.parent)])
    with refused(r"names method_beside:beside, which .*--trust"):
        load_run(by_module)
    assert "method_beside" not in sys.modules
    SPLITS.pop("in_turn")
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    run = load_run(by_module, trust=True)
    assert run.run.label == "method_beside:beside" and run.state.round == 1
    assert "code.method_beside.py" in own_code(run.run)
    names = own_names(read_trusted_run(by_module, True))
    assert (names["own_methods"], names["own_modules"]) == ([], ["method_beside:beside"])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("beside_by:number", "method 'beside_by:number' returns an int; it must return an fl.Meth"),
        ("fedprotoo:x", "no module fedprotoo in .*; did you mean 'fedproto'"),
    ],
)
def test_a_module_and_function_that_is_no_method(tmp_path, monkeypatch, name, line):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    number = "def number(training): return 3\n"
    (tmp_path / "beside_by.py").write_text(METHOD + number)
    config = base_config()
    config.entries = (name,)
    with refused(line):
        settle(config)


def test_entries_and_options_of_a_method_by_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_it.py").write_text(METHOD)
    config = base_config()
    config.method = method_config("beside_it:beside", weight=3.0)
    config.entries = ("beside_it:beside:weight=2.0", "fedproto:weight=2.0")
    first, second, _ = entries_of(typed_config(config))
    assert (first.method, first.options) == ("beside_it:beside", {"weight": 3.0})
    assert second.options == {"weight": 2.0} and method_of(second.label) == "beside_it:beside"
    assert method_of("beside_it:beside@tuned:weight=2.0") == "beside_it:beside"
    assert "weight=1.0  a number of at least 0" in listed(["methods", "beside_it:beside"], 100)
