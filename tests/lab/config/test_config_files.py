"""A config file is read by path or by name; a wrong one is refused in one line that says where."""

import csv

import numpy as np
import pytest

from fedjax_ht.lab import cli
from fedjax_ht.lab.config.config_files import read_config_file, shipped
from fedjax_ht.lab.report.statistics import mean_interval, paired_difference
from tests.runs import ROOT

START = "from fedjax_ht.lab.config.base import apply_argument, base_config, method_config\n\n\n"
FILES = {
    "def get_config(:\n": "line 1: SyntaxError: invalid syntax",
    "import json\nimport no_such_module\n": "line 2: ModuleNotFoundError: No module named 'no_such_module'",
    "x = 1\n": "line 1: no function get_config(argument=None) in this file",
    "get_config = 1\n": "line 1: no function get_config",
    "\n\ndef get_config():\n    return {'rounds': 1}\n": "line 3: get_config returns dict; it must return a Config",
    "def get_config():\n    return 1 / 0\n": "line 2: ZeroDivisionError: division by zero",
    "def get_config():\n    raise KeyError('a\\nb')\n": "line 2: KeyError: a b",
    "import sys\ndef get_config():\n    sys.exit(0)\n": "line 3: SystemExit: 0",
    "def get_config():\n    open('no/such/file')\n": "line 2: [Errno 2] No such file or directory: 'no/such/file'",
    "def get_config():\n    inner()\n\n\ndef inner():\n    int('x')\n": "line 6: invalid literal for int()",
    START
    + "def get_config():\n    config = base_config()\n    config.method = method_config('fedprto')\n": (
        "line 6: unknown method 'fedprto'; did you mean 'fedproto'? The methods are"
    ),
    START + "def get_config():\n    return base_config().trainin\n": (
        "line 5: AttributeError: unknown config field 'trainin'; did you mean 'training'?"
    ),
}


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@pytest.mark.parametrize("text", FILES)
def test_a_config_file_that_is_wrong_is_named_with_its_line(tmp_path, text):
    file = tmp_path / "wrong.py"
    file.write_text(text)
    with pytest.raises(cli.BadConfigFile) as error:
        read_config_file(str(file))
    assert one_line(error.value).startswith(f"{file}, {FILES[text]}")
    assert "\\n" not in one_line(error.value)


def test_a_config_file_and_its_argument(tmp_path):
    file = tmp_path / "right.py"
    code = "def get_config(argument=None):\n    return apply_argument(base_config(), argument)\n"
    file.write_text(START + code)
    assert read_config_file(f"{file}:method=local").method.name == "local"
    with pytest.raises(cli.BadConfigFile, match=r"right\.py, line 5: unknown method 'x=y'"):
        read_config_file(f"{file}:method=x=y")
    for missing in (tmp_path / "left.py", tmp_path, "/"):
        with pytest.raises(cli.BadConfigFile, match="no config file"):
            read_config_file(str(missing))


def test_a_config_of_a_package_imports_from_it(tmp_path, monkeypatch):
    # as a clone beside an installed package of the same name, which has no such module
    for package in ("installed/studies_here", "clone/studies_here", "clone/studies_here/configs"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "installed")
    folder = tmp_path / "clone/studies_here/configs"
    (folder / "one.py").write_text(START + "def get_config():\n    return base_config()\n")
    (folder / "two.py").write_text("from studies_here.configs.one import get_config\n")
    assert (
        read_config_file(str(folder / "two.py")).rounds
        == read_config_file(str(folder / "one.py")).rounds
    )


def test_the_configs_that_come_with_the_library_have_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_config_file("quickstart").rounds == read_config_file("quickstart.py").rounds > 2
    assert read_config_file("quickstart:runlocal").rounds == 2
    message = r"unknown config 'quikstart'; did you mean 'quickstart'\? .* root of a clone only$"
    with pytest.raises(cli.BadConfigFile, match=message):
        read_config_file("quikstart")
    with pytest.raises(cli.BadConfigFile, match="the library's own is --config=quickstart"):
        read_config_file("here/quickstart.py")
    (tmp_path / "quickstart.py").write_text("def get_config():\n    return 1\n")
    with pytest.raises(cli.BadConfigFile, match=r"quickstart\.py, line 1: get_config returns int"):
        read_config_file("quickstart.py")  # a file that is there comes first


def accuracies_of(name: str, column: str) -> dict[str, list[float]]:
    """Entry -> accuracies in percent, of a CSV of experiments/results."""
    scores: dict[str, list[float]] = {}
    with (ROOT / "experiments" / "results" / f"{name}.csv").open() as file:
        for row in csv.DictReader(file):
            entry = row.get("entry") or row["method"]
            scores.setdefault(entry, []).append(100 * float(row[column]))
    return scores


def docstring_of(name: str) -> str:
    return " ".join(shipped()[name].read_text().split('"""')[1].split())


def test_the_quickstarts_accuracies_are_those_of_its_csv():
    docstring, scores = docstring_of("quickstart"), accuracies_of("quickstart", "best")
    for entry, label in {"fedapen": "FedAPEN", "fedssa@tuned": "FedSSA"}.items():
        lead = paired_difference(scores[entry], scores["local@tuned"]).interval
        lead = f"{lead.mean:.2f} points ({lead.low:.2f} to {lead.high:.2f}) above"
        assert f"{label} {trials_with_interval(scores[entry])}, {lead}" in docstring
    assert f"local {trials_with_interval(scores['local@tuned'])}" in docstring


def trials_with_interval(values: list[float]) -> str:
    mean, low, high = mean_interval(values)
    trials = ", ".join(f"{value:.2f}" for value in values)
    return f"{trials} % ({mean:.2f}, {low:.2f} to {high:.2f})"


def test_fedtgps_accuracies_are_those_of_its_csv():
    docstring = docstring_of("quickstart_fedtgp")
    scores = accuracies_of("quickstart_fedtgp", "best_accuracy")
    for method, label in (("fedtgp", "FedTGP"), ("local", "local")):
        trials = ", ".join(f"{score:.2f}" for score in scores[method])
        spread = f"({np.mean(scores[method]):.2f} ± {np.std(scores[method]):.2f})"
        assert f"{label} {trials} % {spread}" in docstring
