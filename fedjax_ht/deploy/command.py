"""Runs a federation whose clients are elsewhere, by Flower. Needs pip install 'fedjax_ht[flower]'.

    fedjax-ht deploy split  --config=quickstart --workdir=sites       a file a client, to try it out
    fedjax-ht deploy server --config=quickstart --workdir=run --certificates=certs --keys=keys
    fedjax-ht deploy client --config=quickstart --workdir=client3 --client_id=3
    --data=npz:client_3.npz \\
        --superlink=HOST:8000 --certificates=certs --key=client3.key

Every side has the config itself; it must be the same. docs/deploy.md has the whole way. What a side
writes, its own user alone can read.
"""

import importlib.util
import ipaddress
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import jax
from absl import flags

from fedjax_ht.configs.sections import Config
from fedjax_ht.deploy.data import read_own, write_own
from fedjax_ht.deploy.ended import Ended
from fedjax_ht.deploy.masks import NARROWEST, WIDEST
from fedjax_ht.deploy.plan import Plan, make_plan
from fedjax_ht.deploy.serve import serve
from fedjax_ht.deploy.server import Transport
from fedjax_ht.deploy.site import answer, make_site
from fedjax_ht.experiment.build import build
from fedjax_ht.experiment.run_lock import locked
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.processes import check_port, enable_compilation_cache, use_all_cores
from fedjax_ht.runner.program import configured
from fedjax_ht.runner.signals import catch_signals

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "Where this side keeps what is its own.", allow_override=True
)
_CLIENT = flags.DEFINE_integer("client_id", None, "client: its id, from 0.")
_DATA = flags.DEFINE_string("data", None, "client: its samples, such as npz:client_3.npz.")
_SUPERLINK = flags.DEFINE_string("superlink", None, "client: HOST:PORT of the server.")
_CERTIFICATES = flags.DEFINE_string(
    "certificates", None, "A folder with ca.crt, and for the server server.pem, server.key."
)
_KEY = flags.DEFINE_string("key", None, "client: its private key, by which the server knows it.")
_KEYS = flags.DEFINE_string(
    "keys", None, "server: a folder of its clients' public keys, client0.pub and so on."
)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "server: the address to listen at.")
_PORT = flags.DEFINE_integer("port", 8000, "server: the port to listen at.")
_PATIENCE = flags.DEFINE_float(
    "patience",
    300.0,
    "Seconds: server, to wait for clients that are not there; client, to try a server again that "
    "refuses it.",
)
_TIMEOUT = flags.DEFINE_float("timeout", 600.0, "server: seconds that clients have to answer.")
_SUMS = flags.DEFINE_bool(
    "secure_sums", False, "server, client: uplinks are masked, and the server sees their sum alone."
)
_RANGE = flags.DEFINE_float(
    "sum_range", 8.0, "server: what of an uplink is beyond it, up or down, is cut for a sum."
)
_EPSILON = flags.DEFINE_float(
    "most_epsilon",
    math.inf,
    "client: with which it stops to answer, where it adds noise.",
    lower_bound=0.0,
)
_INSECURE = flags.DEFINE_bool(
    "insecure", False, "No TLS: to try it out on one machine, and there alone."
)

COMMANDS = ("split", "server", "client")
OWNER_ALONE = 0o077
"""The umask of all that is written: states, samples, logs and counts."""


def split(config: Config, workdir: Path) -> list[Path]:
    """Writes each client's samples of a config to a file of its own."""
    experiment = build(config)
    paths = [workdir / f"client_{i}.npz" for i in range(config.partition.num_clients)]
    for path, own in zip(paths, experiment.partitions[0]):
        write_own(path, experiment.dataset, own)
    return paths


def client(plan: Plan, workdir: Path) -> None:
    """Answers the server's messages until a signal comes."""
    from fedjax_ht.deploy import node
    from fedjax_ht.deploy.flower import log_to, responder

    for flag in (_CLIENT, _DATA, _SUPERLINK):
        if flag.value is None:
            raise ValueError(f"no --{flag.name}; see fedjax-ht deploy --help")
    certificate = _certificate("ca.crt", _SUPERLINK.value.rpartition(":")[0])
    key = node.read_key(_path(_KEY)) if _KEY.value is not None or certificate else None
    dataset, own = read_own(_DATA.value, "", plan.config.dataset.image_size)
    site = make_site(
        plan, _CLIENT.value, dataset, own, workdir / "states", tell, most_epsilon=_EPSILON.value
    )
    if own.train.size == 0:
        tell(f"client {_CLIENT.value} has no training samples")
    log_to(workdir / "flower.log")
    tell(
        f"client {_CLIENT.value}: {len(own.train)} training samples; the server is "
        f"{_SUPERLINK.value}"
    )
    respond = responder(lambda message: answer(site, message))
    with catch_signals() as caught, jax.default_matmul_precision(plan.config.precision):
        node.attend(
            _SUPERLINK.value, certificate, key, respond, lambda: bool(caught), tell, _PATIENCE.value
        )
    tell(f"stopped by {signal.Signals(caught[0]).name}")


def server(plan: Plan, workdir: Path) -> None:
    """Lets the clients in, and runs the config's rounds with them."""
    from fedjax_ht.deploy import link
    from fedjax_ht.deploy.flower import grid_nodes, log_to

    if not NARROWEST <= _RANGE.value <= WIDEST:
        raise ValueError(
            f"--sum_range is {_RANGE.value}; it must be from {NARROWEST:g} to {WIDEST:g}"
        )
    certificate = _certificate("server.pem", _HOST.value)
    keys = link.read_keys(_path(_KEYS)) if _KEYS.value is not None or certificate else None
    if keys is not None and (missing := sorted(set(range(plan.num_clients)) - set(keys))):
        raise ValueError(
            f"{_KEYS.value} has no keys of clients {', '.join(map(str, missing))}: "
            f"client{missing[0]}.pub"
        )
    check_port(_PORT.value)
    log_to(workdir / "flower.log")
    files = certificate and (certificate, _private(certificate.with_name("server.key")))
    with link.opened(_HOST.value, _PORT.value, files, keys, tell) as opened:
        tell(
            f"server: {_HOST.value}:{_PORT.value}, {len(keys or {})} keys; "
            f"{workdir / 'flower.log'} is Flower's"
        )
        nodes = grid_nodes(opened, _PATIENCE.value, _TIMEOUT.value, tell, _RANGE.value)
        with jax.default_matmul_precision(plan.config.precision):
            serve(plan, workdir, Transport(*nodes), tell, patience=_PATIENCE.value)


def tell(line: str) -> None:
    print(line, flush=True)


def _certificate(name: str, host: str) -> Path | None:
    """A file of --certificates, None without TLS, which this machine's own addresses alone can do
    without."""
    if not _INSECURE.value:
        if _CERTIFICATES.value is None:
            raise ValueError("give --certificates, or --insecure to try it out on one machine")
        return _existing(Path(_CERTIFICATES.value) / name)
    if not _is_loopback(host):
        raise ValueError(
            f"--insecure is for this machine alone, 127.0.0.1, not {host}; give --certificates"
        )
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _path(flag: flags.FlagHolder) -> Path:
    if flag.value is None:
        raise ValueError(f"give --{flag.name}, or --insecure to try it out on one machine")
    return _existing(Path(flag.value))


def _private(path: Path) -> Path:
    if _existing(path).stat().st_mode & OWNER_ALONE:
        raise ValueError(
            f"{path} can be read by others, who could answer as this server; chmod 600 {path}"
        )
    return path


def _existing(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    return path.absolute()


def main(arguments: Sequence[str]) -> None:
    words = list(arguments[1:])
    os.umask(OWNER_ALONE)
    try:
        if len(words) != 1 or words[0] not in COMMANDS:
            raise ValueError(f"give one of {', '.join(COMMANDS)}; see fedjax-ht deploy --help")
        if _WORKDIR.value is None:
            raise ValueError(
                f"no --workdir; for example fedjax-ht deploy {words[0]} --config=quickstart "
                "--workdir=here"
            )
        config, _ = configured()
        workdir = Path(_WORKDIR.value).absolute()
        if words[0] == "split":
            tell("\n".join(map(str, split(config, workdir))))
            return
        if importlib.util.find_spec("flwr") is None:
            raise ImportError("Flower is not installed: pip install 'fedjax_ht[flower]'")
        use_all_cores()  # before the method is made, which may compute
        enable_compilation_cache()
        plan = make_plan(config, _SUMS.value)
        # before Flower is imported
        os.environ.update(FLWR_HOME=str(workdir / "flower"), FLWR_TELEMETRY_ENABLED="0")
        if words[0] == "client":
            # two clients in one folder would mix their states and counts
            with locked(workdir, tell):
                client(plan, workdir)
        else:
            workdir.mkdir(parents=True, exist_ok=True)
            server(plan, workdir)
    except Ended as error:
        fail(error, code=1)
    except (ValueError, OSError, ImportError) as error:
        fail(error)
