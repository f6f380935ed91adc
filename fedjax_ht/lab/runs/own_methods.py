"""Finds a run's user-defined methods and partitions through the config file that registers them.

Identifies the user's own code that trained an entry by its checksum.
"""

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_ht.core.user_code import names_object, trusting, user_file, user_modules_in, user_place
from fedjax_ht.data.partition.registry import LIBRARY, PARTITIONS, PLANS
from fedjax_ht.lab.cli import BadConfigFile, config_folder
from fedjax_ht.lab.config.config_files import read_config_file
from fedjax_ht.lab.files import refuse_links
from fedjax_ht.lab.runs.environment import CODE
from fedjax_ht.lab.runs.folder import (
    CONFIG,
    OWN,
    files_read,
    fingerprints,
    naming,
    read_folder,
    read_json,
    read_run,
)
from fedjax_ht.lab.runs.identity import check_run
from fedjax_ht.lab.runs.plan import Plan, Run, named_code
from fedjax_ht.lab.weights.start import checksums
from fedjax_ht.methods import METHODS, is_own, method_factory, names_user_method

MODULES = "own_modules"  # the note of `OWN` whose names need no registration


def read_trusted_run(workdir: Path, trust: bool) -> Plan:
    """Returns the result of `folder.read_run`, also for a run with a user's own methods.

    Args:
      workdir: the folder, which may come from anybody.
      trust: True allows running the code that its config.json names: each "module:function", and
        the config files that register its own methods and partitions.

    Raises:
      ValueError, OSError: see `read_run`; or a method or partition is not registered. One line.
    """
    refuse_links(workdir)
    file = workdir / CONFIG
    content = read_json(file) if file.exists() else {}
    with naming(file):
        names = {note: dict(content.get("run", {}).get(note, {})) for note in OWN}
    modules = names.pop(MODULES)
    with trusting(trust):
        for note, noted in names.items():
            _register(note, noted, trust)
    folders = {config_folder(str(file)) for file in modules.values() if file is not None}
    with user_modules_in(*sorted(folders)):
        return read_run(workdir, trust)


def own_code(run: Run) -> dict[str, str]:
    """Returns the files of a user's own code that train a run: "code.FILE" -> SHA-256.

    They define its method, its partition, and each "module:function" that it names. Modules that
    these import are not included.
    """
    files, entry, config = set(), run.entry, run.config
    if is_own(entry.method):
        for part in entry.method.split("+"):
            if part in METHODS and is_own(part):
                files.add(_file_of(METHODS[part]))
    kind = config.partition.kind
    if kind not in LIBRARY:
        files.add(_file_of((PLANS | PARTITIONS).get(kind)))
    for name in named_code(entry, config):
        files.add(user_file(name))
    sums = {}
    for file in sorted(filter(None, files)):
        with contextlib.suppress(OSError):  # code of a notebook is in no file
            sums[f"{CODE}{Path(file).name}"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return sums


def _file_of(factory: Any) -> str | None:
    while isinstance(factory, functools.partial):
        factory = factory.func
    with contextlib.suppress(TypeError):  # an object without source
        return inspect.getsourcefile(inspect.unwrap(factory))
    return None


def own_names(experiment: Plan) -> dict[str, list[str]]:
    """Returns a run's names with user code, by the note of `folder.OWN`.

    A user has registered these names, or their modules are a user's.
    """
    runs = experiment.runs.values()
    methods = [run.entry.method for run in runs if is_own(run.entry.method)]
    methods = [x for x in methods if not names_user_method(x) and not names_object(x)]
    kinds = {run.config.partition.kind for run in runs} - set(LIBRARY)
    modules = set().union(*(named_code(run.entry, run.config) for run in runs))
    return dict(zip(OWN, (methods, sorted(kinds), sorted(modules))))


def _register(note: str, noted: Mapping[str, Any], trust: bool) -> None:
    """Runs the config files that register a note's names, unless these are registered already."""
    kind = note.removeprefix("own_")
    for name, file in noted.items():
        # a module:function needs no registration; a look-up would import it before it is trusted
        if names_user_method(name) or _is_registered(note, name):
            continue
        register = f"fl.register_{kind.removesuffix('s')}"
        if file is None:
            raise ValueError(
                f"{name} is not one of the library's {kind}, and the run recorded no config file "
                f"that registers it; register it with {register}, and call "
                "fl.report_run or fedjax_ht.lab.runs.evaluate.load_run"
            )
        if not trust:
            raise ValueError(
                f"{name} is not one of the library's {kind}: {file} registers it; if you know "
                "whose code that is, allow it with --trust (trust=True from Python)"
            )
        _run_config(name, str(file))
        if not _is_registered(note, name):
            raise ValueError(f"{file} no longer registers {name!r} with {register}")


def _is_registered(note: str, name: str) -> bool:
    if note == "own_partitions":
        return name in PLANS or name in PARTITIONS
    with contextlib.suppress(ValueError):
        return is_own(name) and method_factory(name) is not None
    return False


def _run_config(name: str, named: str) -> None:
    """Runs a config file at its recorded path, else one of its name in the current folder."""
    file, colon, argument = named.partition(":")
    for path in (Path(file), Path(Path(file).name)):
        if path.is_file():
            try:
                read_config_file(f"{path}{colon}{argument}")
            except BadConfigFile as error:
                raise ValueError(f"{name} cannot be registered: {error}") from error
            return
    raise FileNotFoundError(
        f"no {file}, which registers {name!r}; put it there, or in the current folder"
    )


def noted(experiment: Plan, config_file: str | None = None) -> dict[str, Any]:
    """Returns what config.json records about a run: checksums, and files of a user's own code."""
    noted: dict[str, Any] = dict(fingerprints(experiment.dataset, experiment.partitions))
    noted["weights"] = checksums(files_read(experiment.config))
    if experiment.object_sums:
        noted["objects"] = experiment.object_sums
    for note, names in own_names(experiment).items():
        if names:
            noted[note] = {name: user_place(name) or config_file for name in names}
    return noted


def read_experiment(workdir: Path, trust: bool, experiment: Plan | None) -> Plan:
    """Returns the experiment of a run in a folder.

    Args:
      workdir: the run's folder.
      trust: permission to run code that config.json names, see `read_trusted_run`.
      experiment: the experiment of a run that was given objects from Python; None builds it from
        the run's config.json.

    Raises:
      ValueError, OSError: see `read_trusted_run`; or the folder holds another run. One line.
    """
    if experiment is None or not (workdir / CONFIG).exists():
        experiment = read_trusted_run(workdir, trust)
    check_run(read_folder(workdir), experiment.config, experiment.entries, noted(experiment))
    return experiment
