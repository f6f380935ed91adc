"""The plan that server and clients share before they connect: config, method and models.

Each side has its own copy of the config. The other side's values are only compared with it, and
never adopted.
"""

import dataclasses
import json
from typing import Any, NamedTuple

import jax

from fedjax_ht.core import wire
from fedjax_ht.core.contract import require_public_set, require_server_statistics
from fedjax_ht.core.federation import Federation, PublicSet
from fedjax_ht.core.inputs import InputShape
from fedjax_ht.core.keys import random_generator
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel
from fedjax_ht.data.dataset import Dataset
from fedjax_ht.deploy.noise import check_scores, noisy_method
from fedjax_ht.deploy.samples import checksum, public_size, read_public
from fedjax_ht.deploy.secure_sums import check_server_reads
from fedjax_ht.lab.config.base import AnyConfig
from fedjax_ht.lab.config.sections import Config, DevicesConfig
from fedjax_ht.lab.config.typed import to_json, to_plain
from fedjax_ht.lab.runs.federation import Task, make_clients
from fedjax_ht.lab.runs.folder import FREE_FIELDS, differing, files_read, fixed
from fedjax_ht.lab.runs.plan import settle
from fedjax_ht.lab.version import library_version
from fedjax_ht.lab.weights.start import checksums
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.options import Unit

LOCAL_FIELDS = (
    *FREE_FIELDS,
    "dataset.name",
    "lanes",
    "precision",
    "evaluate.every",
    "evaluate.sample",
    "evaluate.patience",
)
"""Fields that may differ between a client and the server, as may all of "partition" except
"num_clients"."""


class DeploymentEnded(Exception):
    """A side of a deployment ends before its last round; the same command resumes it later."""


class Plan(NamedTuple):
    """A config that can be deployed.

    Attributes:
      label: label of the config's first entry, which is run.
      config: the config with that entry's changes.
      method: the method with the config's privacy and defences; its settings are the secret of the
        noise, see `noise.noisy_method`.
      options: options of the federation's rounds.
      channel: transforms of the messages.
      fields: field -> JSON value, for values that both sides must share.
      secure_sums: True if the server gets only sums of uplinks, see `secure_sums`.
      public: this side's copy of the public set; None for methods that read none.
    """

    label: str
    config: Config
    method: Method
    options: SimulationOptions
    channel: Channel
    fields: dict[str, Any]
    secure_sums: bool
    public: Dataset | None = None

    @property
    def num_clients(self) -> int:
        return self.config.partition.num_clients

    @property
    def unit(self) -> Unit | None:
        """`Privacy.unit`; None without privacy."""
        return self.options.privacy and self.options.privacy.unit


def make_plan(config: AnyConfig, secure_sums: bool = False) -> Plan:
    """Checks that a config can be deployed.

    Args:
      config: the config, as for a simulation. Of several entries, the first is run.
      secure_sums: the flag --secure_sums.

    Raises:
      ValueError, OSError: the config is invalid, needs what only a simulation has, or names a
        public set that cannot be read. One line.
      ImportError: it has privacy, but the accountant is not installed. One line.
    """
    settled = settle(config)
    label, run = next(iter(settled.runs.items()))
    entry, method, options = run.entry, run.method, run.options
    _check_simulated_fields(settled.config)
    if settled.config.dataset.public and not method.needs.public_samples:
        raise ValueError(
            f"dataset.public is {settled.config.dataset.public!r}, but {method.name} reads no "
            "public set; leave it empty"
        )
    if method.needs.clients_data:
        raise ValueError(
            f"the server of {method.name} reads the clients' samples, which no real server can; "
            "choose another method"
        )
    check_scores(settled.config, options.privacy)
    if secure_sums:
        _check_secure_sums(method, entry.options, options)
    public, fields = None, _shared_fields(run.config, entry, secure_sums)
    for file, content in checksums(files_read(run.config)).items():
        fields[f"{file} (SHA-256)"] = content
    if method.needs.public_samples:
        public = read_public(settled.config.dataset)
        fields["dataset.public"] = checksum(public)  # sides may name its file differently
    return Plan(
        label=label,
        config=run.config,
        method=noisy_method(method, options.privacy, options.robust),
        options=options,
        channel=Channel(wire.chain(options.uplink), wire.chain(options.downlink)),
        fields=fields,
        secure_sums=secure_sums,
        public=public,
    )


def _check_simulated_fields(config: Config) -> None:
    """Rejects values that only simulated clients can have."""
    plain, state = to_plain(config), config.scoring.state
    for field, value, required in (
        ("trials", config.trials, 1),
        ("drop_rate", config.drop_rate, 0.0),
        ("new_share", config.new_share, 0.0),
        ("attack.kind", plain["attack"]["kind"], "none"),
        ("dataset.task", config.dataset.task, "classification"),
        ("dataset.normalisation", config.dataset.normalisation, "half"),
        ("dataset.shift", plain["dataset"]["shift"], ""),
        ("dataset.backbone", plain["dataset"]["backbone"], ""),
        ("scoring.state", state, "received" if state == "both" else state),
        ("scoring.auc", config.scoring.auc, False),
        ("scoring.neighbours", config.scoring.neighbours or 0, 0),
        ("scoring.adapt_epochs", config.scoring.adapt_epochs or 0, 0),
        ("evaluate.participants", config.evaluate.participants, 1),
        ("time_stages", config.time_stages, False),
        ("track", config.track, ()),
        ("devices_profile", plain["devices_profile"], to_plain(DevicesConfig())),
    ):
        if value != required:
            raise ValueError(
                f"{field} is {value!r}; a deployment, whose clients are real, needs {required!r}"
            )


def _check_secure_sums(
    method: Method, method_options: dict[str, Any], options: SimulationOptions
) -> None:
    check_server_reads(method)
    if method_options.get("weighting") == "samples":
        raise ValueError(
            f"--secure_sums: {method.name} weights clients by sample count, but in a sum all have "
            "the same weight; set --config.method.options.weighting=uniform"
        )
    if options.select is not None:
        raise ValueError(
            f"--secure_sums: select is {options.select.name}, which reads single clients' losses"
        )
    if options.robust:
        raise ValueError(
            f"--secure_sums: robust is {options.robust[0].name}, which compares single uploads"
        )


def _shared_fields(config: Config, entry: Any, secure_sums: bool) -> dict[str, Any]:
    partition = {"num_clients": config.partition.num_clients}
    fields = fixed(to_json(config) | {"partition": partition}, LOCAL_FIELDS)
    # through JSON, like the other side's
    for name, value in json.loads(json.dumps(entry.options)).items():
        fields[f"method.{name}"] = value
    return fields | {"method": entry.method, "secure_sums": secure_sums}


def make_models(plan: Plan, task: Task, public: PublicSet | None = None) -> Federation:
    """Makes the federation's models and assigns them to clients.

    Args:
      plan: the config.
      task: shapes and classes of the samples.
      public: size of the public set; None for that of `samples.public_size`.

    Raises:
      ValueError: the method cannot run on them. One line.
    """
    public = public or public_size(plan.public, task.num_classes)
    federation = dataclasses.replace(make_clients(plan.config, task), public=public)
    require_public_set(plan.method, federation)
    plan.method.check(federation)
    require_server_statistics(plan.method, federation)
    return federation


def description(plan: Plan) -> dict[str, Any]:
    """Returns the version and config that one side reports to the other, as JSON values.

    Both sides draw from keys that they share, so they need the same random generator.
    """
    return {"version": library_version(), "fields": plan.fields | random_generator()}


def difference(description: dict[str, Any], received: dict[str, Any]) -> str:
    """Returns how the other side's `description` differs, in one line; "" if it does not.

    The text continues "it", such as "it has fedjax_ht 0.2.0, not 0.1.0".
    """
    if description["version"] != received["version"]:
        return f"has fedjax_ht {received['version']}, not {description['version']}"
    expected, actual = description["fields"], received["fields"]
    lines = [
        f"{name} {actual.get(name)!r}, not {expected.get(name)!r}"
        for name in differing(expected, actual)
    ]
    return f"has another config: {', '.join(lines[:3])}" if lines else ""


def task_as_json(task: Task) -> dict[str, Any]:
    """Converts a task to JSON values for a header.

    Raises:
      ValueError: a sample is not one array.
    """
    leaf = task.input_shape
    if type(leaf) is tuple:
        leaf = jax.ShapeDtypeStruct(leaf, "float32")
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError(
            "a deployment needs samples of one array each; these have several: join them into one"
        )
    return {
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "num_classes": task.num_classes,
        "vocabulary": task.vocabulary,
    }


def task_from_json(values: dict[str, Any]) -> Task:
    """Reads the task that `task_as_json` wrote."""
    shape: InputShape = tuple(int(n) for n in values["shape"])
    if values["dtype"] != "float32":
        shape = jax.ShapeDtypeStruct(shape, values["dtype"])
    return Task(shape, int(values["num_classes"]), values["vocabulary"])
