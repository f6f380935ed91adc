r"""Runs a federation of real clients, by Flower. Needs pip install 'fedjax_ht[flower]'.

    fedjax-ht deploy split  --config=quickstart:runlocal --workdir=sites   one file per client
    fedjax-ht deploy keys   --workdir=keys --client_id=3 --superlink=HOST:8000
    fedjax-ht deploy server --config=quickstart:runlocal --workdir=run --certificates=certs \
        --keys=keys
    fedjax-ht deploy client --config=quickstart:runlocal --workdir=client3 --client_id=3 \
        --data=npz:client_3.npz --superlink=HOST:8000 --certificates=certs --key=keys/client3

Server and clients each have the config, and it must be the same. docs/deploy.md describes every
step. Only its own user can read what a side writes.
"""

import functools
import ipaddress
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from fedjax_ht.check.packages import require
from fedjax_ht.core.compiling import enable_compilation_cache
from fedjax_ht.data.standardise import completed
from fedjax_ht.deploy.audit import lifetime, open_audit
from fedjax_ht.deploy.client import answer, bind_to_client, make_client, request_bytes
from fedjax_ht.deploy.plan import DeploymentEnded, Plan, make_plan
from fedjax_ht.deploy.rounds import serve
from fedjax_ht.deploy.samples import read_samples, write_split
from fedjax_ht.deploy.secure_sums import MAX_RANGE, MIN_RANGE
from fedjax_ht.deploy.server import CLIENTS_FILE, MOST_SAMPLES
from fedjax_ht.lab.cli import fail
from fedjax_ht.lab.config.sections import Config, DatasetConfig
from fedjax_ht.lab.readers.description import describe
from fedjax_ht.lab.runs.folder import locked
from fedjax_ht.lab.runs.objects import READ_BY
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.processes import check_port, use_all_cores
from fedjax_ht.lab.runs.run import configured, end_interrupted
from fedjax_ht.lab.runs.signals import Interrupted, catch_signals
from fedjax_ht.lab.version import library_version

_WORKDIR = flags.DEFINE_string("workdir", None, "This side's folder.", allow_override=True)
_CLIENT = flags.DEFINE_integer("client_id", None, "keys, client: its id, from 0.")
_DATA = flags.DEFINE_string("data", None, "client: its samples, such as npz:client_3.npz.")
_SUPERLINK = flags.DEFINE_string("superlink", None, "keys, client: HOST:PORT of the server.")
_CERTIFICATES = flags.DEFINE_string(
    "certificates",
    None,
    "A folder with ca.crt; for the server also server.pem and server.key; for a client of a server "
    "with --client_ca also client.pem and client.key.",
)
_KEY = flags.DEFINE_string("key", None, "client: its private key, which proves its identity.")
_KEYS = flags.DEFINE_string(
    "keys", None, "server: a folder of the clients' public keys, client0.pub and so on."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "server: the address to listen on.")
_PORT = flags.DEFINE_integer("port", 8000, "server: the port to listen on.")
_PATIENCE = flags.DEFINE_float(
    "patience",
    300.0,
    "Seconds a server waits for clients, and a client retries a server that refuses it.",
)
flags.register_validator(_PATIENCE, lambda x: x >= 0, "it must be 0 or more seconds")
_TIMEOUT = flags.DEFINE_float("timeout", 600.0, "server: seconds that clients have to answer.")
flags.register_validator(
    _TIMEOUT, lambda x: 0 < x < math.inf, "it must be a number of seconds above 0"
)
_SUMS = flags.DEFINE_bool(
    "secure_sums", False, "server, client: uplinks are masked, so the server only sees their sum."
)
_RANGE = flags.DEFINE_float(
    "sum_range",
    8.0,
    "server: largest magnitude of a number in a summed uplink; others are clipped.",
)
_SAMPLES = flags.DEFINE_integer(
    "most_samples",
    MOST_SAMPLES,
    "server: a client that reports more samples in a split is excluded.",
    lower_bound=1,
)
_EPSILON = flags.DEFINE_float(
    "most_epsilon",
    math.inf,
    "client: refuse answers that would take epsilon above this, where the client adds noise.",
    lower_bound=0.0,
)
_CLIENT_CA = flags.DEFINE_string(
    "client_ca", None, "server: the authority for clients' certificates, which clients then need."
)
_INSECURE = flags.DEFINE_bool("insecure", False, "No TLS; only to try it out on one machine.")

COMMANDS = {
    "split": (),
    "keys": ("client_id", "superlink"),
    "server": (
        "certificates",
        "keys",
        "host",
        "port",
        "patience",
        "timeout",
        "secure_sums",
        "sum_range",
        "most_samples",
        "client_ca",
        "insecure",
    ),
    "client": (
        "client_id",
        "data",
        "superlink",
        "certificates",
        "key",
        "patience",
        "secure_sums",
        "most_epsilon",
        "insecure",
    ),
}
"""Command -> the flags above that it reads, besides --workdir."""
OTHERS_BITS = 0o077  # the umask of states, samples, logs and counts

tell = functools.partial(print, flush=True)


def split(config: Config, workdir: Path) -> list[Path]:
    """Writes a config's samples to files (see `samples.write_split`); returns the paths."""
    experiment = plan(config)
    partition = experiment.partitions[0]
    # With the moments of all clients, as in a simulation.
    return write_split(workdir, completed(experiment.dataset, partition), partition)


def keys(workdir: Path) -> None:
    """Makes a client's key for one server."""
    from fedjax_ht.deploy.keys import make_key

    client_id, superlink = _values(_CLIENT, _SUPERLINK)
    _check_superlink(superlink)
    if client_id < 0:
        raise ValueError(f"--client_id is {client_id}; ids start at 0")
    private, public = make_key(workdir, client_id, superlink)
    tell(f"{private} is the key for {superlink}; send {public} to its operator")


def client(plan: Plan, workdir: Path) -> None:
    """Answers the server's requests until a signal arrives.

    Raises:
      Interrupted: it has.
    """
    from fedjax_ht.deploy import node
    from fedjax_ht.deploy.flower import log_to
    from fedjax_ht.deploy.keys import bind_to_server, check_private, read_private_key

    client_id, samples, superlink = _values(_CLIENT, _DATA, _SUPERLINK)
    bind_to_client(workdir / "states", client_id)
    _check_superlink(superlink)
    certificate = _certificate("ca.crt", superlink.rpartition(":")[0])
    key, identity = None, None
    if _KEY.value is not None or certificate is not None:
        key = read_private_key(_path(_KEY))
        bind_to_server(_path(_KEY), superlink, certificate)
    if certificate is not None and certificate.with_name("client.pem").exists():
        identity = certificate.with_name("client.pem"), certificate.with_name("client.key")
        check_private(_existing(identity[1]), "client")
    _check_read(samples, plan.config.dataset)
    dataset, indices = read_samples(samples, "", plan.config.dataset.image_size)
    for line in describe(dataset).lines:
        tell(line)
    this_client = make_client(
        plan,
        client_id,
        dataset,
        indices=indices,
        folder=workdir / "states",
        tell=tell,
        max_epsilon=_EPSILON.value,
    )
    log_to(workdir / "flower.log")
    audit = open_audit(workdir, tell)
    tell(f"client {client_id}: {len(indices.train) or 'no'} training samples; server {superlink}")
    respond = node.responder(functools.partial(answer, this_client))
    with (
        lifetime(audit, client=client_id, server=superlink, version=library_version()),
        catch_signals() as caught,
        jax.default_matmul_precision(plan.config.precision),
    ):
        node.run_node(
            superlink,
            certificate,
            key,
            respond=respond,
            stop=lambda: bool(caught),
            tell=tell,
            patience=_PATIENCE.value,
            identity=identity,
            max_bytes=request_bytes(this_client),
            audit=audit,
        )
        raise Interrupted(caught[0])


def server(plan: Plan, workdir: Path) -> None:
    """Admits the clients, and runs the config's rounds with them."""
    from fedjax_ht.deploy import link
    from fedjax_ht.deploy.flower import flower_transport, log_to
    from fedjax_ht.deploy.gate import read_public_keys
    from fedjax_ht.deploy.keys import check_private

    if not MIN_RANGE <= _RANGE.value <= MAX_RANGE:
        raise ValueError(
            f"--sum_range is {_RANGE.value}; it must be from {MIN_RANGE:g} to {MAX_RANGE:g}"
        )
    if _RANGE.value != _RANGE.default and not _SUMS.value:
        raise ValueError("--sum_range bounds the numbers of a sum; add --secure_sums")
    certificate = _certificate("server.pem", _HOST.value)
    public, files = None, None
    client_ca = None if _CLIENT_CA.value is None else _existing(Path(_CLIENT_CA.value))
    if client_ca is not None and certificate is None:
        raise ValueError("--client_ca needs TLS; remove --insecure")
    if _KEYS.value is not None or certificate is not None:
        public = read_public_keys(_path(_KEYS))
        check_keys(public, plan.num_clients, _path(_KEYS), (workdir / CLIENTS_FILE).exists())
    check_port(_PORT.value)
    log_to(workdir / "flower.log")
    if certificate is not None:
        files = certificate, _existing(certificate.with_name("server.key"))
        check_private(files[1], "server")
    audit, address = open_audit(workdir, tell), f"{_HOST.value}:{_PORT.value}"
    with (
        lifetime(audit, address=address, clients=plan.num_clients, version=library_version()),
        link.open_link(
            _HOST.value, _PORT.value, files, public, tell, client_ca=client_ca, audit=audit
        ) as opened,
    ):
        tell(
            f"server: listening at {address}, {len(public or {})} client keys; "
            f"Flower's log is {workdir / 'flower.log'}"
        )
        transport = flower_transport(
            opened, _PATIENCE.value, _TIMEOUT.value, tell, _RANGE.value, audit=audit
        )
        with jax.default_matmul_precision(plan.config.precision):
            serve(plan, workdir, transport._replace(most_samples=_SAMPLES.value))


def check_keys(public: Mapping[int, Any], num_clients: int, folder: Path, has_begun: bool) -> None:
    """Checks that a run begins with the keys of all clients; later, some may be withdrawn."""
    if missing := sorted(set(range(num_clients)) - set(public)):
        problem = f"{folder} has no keys for clients {', '.join(map(str, missing))}"
        if not has_begun:
            raise ValueError(f"{problem}: add client{missing[0]}.pub")
        tell(f"{problem}: they cannot take part")


def check_flags(command: str) -> None:
    """Rejects flags that a command does not read.

    Raises:
      ValueError: one of them is given. One line.
    """
    for name in sorted({*itertools.chain(*COMMANDS.values())} - {*COMMANDS[command]}):
        if flags.FLAGS[name].present:
            readers = " and ".join(other for other, own in COMMANDS.items() if name in own)
            raise ValueError(f"--{name} is a flag of {readers}, not of {command}; remove it")


def _values(*needed: flags.FlagHolder) -> list[Any]:
    """Returns the values of flags that a command requires."""
    for flag in needed:
        if flag.value is None:
            raise ValueError(f"--{flag.name} is missing; see fedjax-ht deploy --help")
    return [flag.value for flag in needed]


def _check_superlink(superlink: str) -> None:
    import httpx

    host, _, port = superlink.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16
    # what httpx refuses would end the client when it connects
    is_host = re.fullmatch(r"\[[^][\s/?#@]+\]|[^][\s/?#@:]+", host) is not None
    try:
        httpx.URL(f"https://{superlink}")
    except httpx.InvalidURL:
        is_host = False
    if not (is_host and is_port):
        raise ValueError(
            f"--superlink is {superlink!r}; it must be HOST:PORT, such as fl.example.org:8000 or "
            "[::1]:8000"
        )


def _check_read(samples: str, dataset: DatasetConfig) -> None:
    """Rejects fields that change samples, unless `split` wrote these, and so has applied them."""
    default = DatasetConfig()
    for name in (*READ_BY, "text_length", "tokenizer", "standardise", "classes", "subset"):
        value = getattr(dataset, name)
        if value != getattr(default, name) and not samples.startswith("npz:"):
            raise ValueError(
                f"dataset.{name} is {value!r}, which a client does not read by; write its samples "
                "with fedjax-ht deploy split, and give --data=npz:FILE"
            )


def _certificate(name: str, host: str) -> Path | None:
    """Returns a file of --certificates; None without TLS, which is allowed only on loopback."""
    if not _INSECURE.value:
        if _CERTIFICATES.value is None:
            raise ValueError("give --certificates, or --insecure to try it out on one machine")
        return _existing(Path(_CERTIFICATES.value) / name)
    if _CERTIFICATES.value is not None:
        raise ValueError("--certificates and --insecure exclude each other; remove one of them")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback:
        raise ValueError(
            f"--insecure is only for this machine, 127.0.0.1, not {host}; give --certificates"
        )
    return None


def _path(flag: flags.FlagHolder) -> Path:
    if flag.value is None:
        raise ValueError(f"give --{flag.name}, or --insecure to try it out on one machine")
    return _existing(Path(flag.value))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    return path.absolute()


def main(arguments: Sequence[str]) -> None:
    """Runs the command that a command line names."""
    os.umask(OTHERS_BITS)
    try:
        command = arguments[1] if len(arguments) == 2 else ""
        if command not in COMMANDS:
            raise ValueError(f"give one of {', '.join(COMMANDS)}; see fedjax-ht deploy --help")
        check_flags(command)
        if not _WORKDIR.value:
            raise ValueError(
                f"--workdir is missing; for example fedjax-ht deploy {command} "
                "--config=quickstart:runlocal --workdir=here"
            )
        workdir = Path(_WORKDIR.value).absolute()
        if command == "keys":
            require("fedjax-ht deploy keys", "flower")
            keys(workdir)
            return
        config, _ = configured()
        if command == "split":
            tell("\n".join(map(str, split(config, workdir))))
            return
        require(f"fedjax-ht deploy {command}", "flower")
        use_all_cores()  # before the method is made, which may compute
        enable_compilation_cache()
        plan = make_plan(config, _SUMS.value)
        # before Flower, which reads them, is imported
        os.environ.update(FLWR_HOME=str(workdir / "flower"), FLWR_TELEMETRY_ENABLED="0")
        # two programs in one folder would mix their states and counts; and the logs, which are
        # opened first, must not be links to other files
        with locked(workdir, tell):
            try:
                (client if command == "client" else server)(plan, workdir)
            except Interrupted as stop:
                end_interrupted(stop, workdir)
    except DeploymentEnded as error:
        fail(error, code=1)
    except (ValueError, OSError, ImportError) as error:
        fail(error)
