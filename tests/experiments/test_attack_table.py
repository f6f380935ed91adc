"""The table of attacked runs: what it reads, and which runs it refuses."""

import pytest

from experiments.attack_table import main, scores
from experiments.configs.attacked import get_config
from fedjax_ht.lab.config.base import typed_config
from fedjax_ht.lab.config.typed import to_json
from tests.experiments.folders import edit_fields, history, write_run


def played(folder, **fields):
    """A folder of a run of the config with these fields, of `local` alone."""
    rows = history(0.1, 0.5, clients=[0.25, 0.75])
    write_run(folder, {"local": rows})
    edit_fields(folder, to_json(typed_config(get_config())) | fields)
    (folder / "summary.md").touch()
    return folder


def test_runs_of_other_configs_are_refused(tmp_path, capsys):
    attack = {"kind": "noise", "share": 0.3, "strength": 10.0, "seed": 1}
    folder = played(tmp_path / "runs" / "a", attack=attack)
    assert [score.accuracy for score in scores(folder)] == [0.5]
    arguments = ["attack_table", str(tmp_path / "runs"), str(tmp_path / "a.csv")]
    main(arguments)
    assert "| noise | none | 50.0 |" in capsys.readouterr().out
    played(tmp_path / "runs" / "b", rounds=1)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "b is no run of attacked: rounds is 1 there and 20 here" in capsys.readouterr().err
