"""What a server and its clients hold alike before they meet: the config, the method, the models.
Each has its own copy of the config; what crosses the wire is compared with it and never takes its
place."""

import json
from importlib.metadata import version
from typing import Any, NamedTuple

import jax

from fedjax_ht.configs.base import AnyConfig
from fedjax_ht.configs.sections import Config, DevicesConfig
from fedjax_ht.configs.typed import to_json, to_plain
from fedjax_ht.core import wire
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.inputs import InputShape
from fedjax_ht.core.method import Method
from fedjax_ht.core.round import Channel
from fedjax_ht.deploy.noise import by_words, check_scores
from fedjax_ht.deploy.sums import check_reads
from fedjax_ht.experiment.build import settle
from fedjax_ht.experiment.federation import Task, make_clients
from fedjax_ht.experiment.run_folder import FREE_FIELDS, NAMING, flatten
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.trust.privacy import Unit

OWN = (
    *FREE_FIELDS,
    "dataset.name",
    "lanes",
    "precision",
    "evaluate.every",
    "evaluate.sample",
    "evaluate.patience",
)
"""Fields that a client may have otherwise than the server, and all of "partition" but
"num_clients"."""


class Plan(NamedTuple):
    """A config that can be deployed.

    Attributes:
      label: of its first entry, the one that is run.
      config: with what that entry changes.
      method: with the config's privacy and defences; its settings are the words of the noise, see
        `noise.by_words`.
      options: how the federation runs.
      channel: what transforms the messages.
      fields: what both sides must have alike, name -> JSON value.
      secure_sums: whether the server gets sums of uplinks alone, see `sums`.
    """

    label: str
    config: Config
    method: Method
    options: SimulationOptions
    channel: Channel
    fields: dict[str, Any]
    secure_sums: bool

    @property
    def num_clients(self) -> int:
        return self.config.partition.num_clients

    @property
    def unit(self) -> Unit | None:
        """What noise hides, `Privacy.unit`; None without any."""
        return self.options.privacy and self.options.privacy.unit


def make_plan(config: AnyConfig, secure_sums: bool = False) -> Plan:
    """Checks a config for a deployment, with the flag --secure_sums or without.

    Raises:
      ValueError: it is wrong, or asks for what only a simulation can do. One line.
      ImportError: it has privacy, and the accountant is not installed. One line.
    """
    settled = settle(config)
    config = settled.config
    plain = to_plain(config)
    # of several the first, which is the config's `method`
    label, entry = next(iter(settled.entries.items()))
    own, method = settled.configs[label], settled.methods[label]
    for field, value, right in (
        ("trials", config.trials, 1),
        ("drop_rate", config.drop_rate, 0.0),
        ("attack.kind", plain["attack"]["kind"], "none"),
        ("dataset.normalisation", config.dataset.normalisation, "half"),
        ("dataset.shift", plain["dataset"]["shift"], ""),
        ("evaluate.participants", config.evaluate.participants, 1),
        ("profile", config.profile, False),
        ("devices_profile", plain["devices_profile"], to_plain(DevicesConfig())),
    ):
        if value != right:
            raise ValueError(
                f"{field} is {value!r}; a deployment, whose clients are real, takes {right!r} alone"
            )
    if method.sees_data:
        raise ValueError(
            f"the server of {method.name} reads the clients' samples: no real server can run it"
        )
    options = settled.options
    check_scores(config, options.privacy)
    if secure_sums:
        check_reads(method)
        if entry.options.get("weighting") == "samples":
            raise ValueError(
                f"--secure_sums: {method.name} weighs clients by numbers of samples, and a sum "
                "has to weigh alike; "
                "take --config.method.options.weighting=uniform"
            )
        if options.robust:
            raise ValueError(
                f"--secure_sums: robust is {options.robust[0].name}, which compares single uploads"
            )
    channel = Channel(wire.chain(options.uplink), wire.chain(options.downlink))
    shared = {name: value for name, value in to_json(own).items() if name not in NAMING}
    shared["partition"] = {"num_clients": own.partition.num_clients}
    fields = {name: value for name, value in flatten(shared).items() if name not in OWN}
    fields |= {
        f"method.{name}": value for name, value in json.loads(json.dumps(entry.options)).items()
    }
    fields |= {"method": entry.method} | ({"secure_sums": True} if secure_sums else {})
    method = by_words(method, options.privacy, options.robust)
    return Plan(label, own, method, options, channel, fields, secure_sums)


def make_models(plan: Plan, task: Task) -> Federation:
    """The federation's models, and who has which.

    Raises:
      ValueError: the method cannot run on them. One line.
    """
    federation = make_clients(plan.config, task)
    plan.method.check(federation)
    return federation


def about(plan: Plan) -> dict[str, Any]:
    """What one side tells the other of itself."""
    return {
        "version": version("fedjax_ht"),
        "fields": plan.fields | {"secure_sums": plan.secure_sums},
    }


def difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str:
    """What differs between two sides, as `about` has it, in a line that begins with "has"; "" where
    nothing does."""
    if mine["version"] != theirs["version"]:
        return f"has fedjax_ht {theirs['version']}, not {mine['version']}"
    own, other = mine["fields"], theirs["fields"]
    names = [name for name in sorted(own | other) if own.get(name) != other.get(name)]
    shown = ", ".join(f"{name} {other.get(name)!r}, not {own.get(name)!r}" for name in names[:3])
    return f"has another config: {shown}" if names else ""


def task_as_json(task: Task) -> dict[str, Any]:
    """A task for a head; of an input of several arrays there is none.

    Raises:
      ValueError: a sample is not one array.
    """
    leaf = (
        jax.ShapeDtypeStruct(task.input_shape, "float32")
        if type(task.input_shape) is tuple
        else task.input_shape
    )
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        raise ValueError("a deployment takes samples of one array each")
    return {
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "num_classes": task.num_classes,
        "vocabulary": task.vocabulary,
    }


def task_of_json(found: dict[str, Any]) -> Task:
    """The task that `task_as_json` wrote."""
    shape: InputShape = tuple(int(n) for n in found["shape"])
    if found["dtype"] != "float32":
        shape = jax.ShapeDtypeStruct(shape, found["dtype"])
    return Task(shape, int(found["num_classes"]), found["vocabulary"])
