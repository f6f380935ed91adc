"""Runs a federation whose clients are elsewhere, by Flower. Needs pip install 'fedjax_ht[flower]'.

    fedjax-ht deploy split  --config=quickstart --workdir=sites       a file a client, to try it out
    fedjax-ht deploy server --config=quickstart --workdir=run --certificates=certs --keys=keys
    fedjax-ht deploy client --config=quickstart --workdir=client3 --client_id=3 --data=npz:client_3.npz \\
        --superlink=HOST:8000 --certificates=certs --key=client3.key

Every side has the config itself; it must be the same. docs/deploy.md has the whole way.
"""

import importlib.util
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import jax
from absl import flags
from ml_collections import ConfigDict

from fedjax_ht.deploy import app
from fedjax_ht.deploy.data import read_own, write_own
from fedjax_ht.deploy.masks import WIDEST
from fedjax_ht.deploy.pipe import listen
from fedjax_ht.deploy.plan import Plan, make_plan
from fedjax_ht.deploy.serve import DONE
from fedjax_ht.deploy.site import answer, make_site
from fedjax_ht.deploy.tether import end
from fedjax_ht.runner.build import build
from fedjax_ht.runner.cli import fail
from fedjax_ht.runner.main import configured
from fedjax_ht.runner.signals import catch_signals
from fedjax_ht.runner.train import check_port, enable_compilation_cache, use_all_cores

_WORKDIR = flags.DEFINE_string("workdir", None, "Where this side keeps what is its own.", allow_override=True)
_CLIENT = flags.DEFINE_integer("client_id", None, "client: its id, from 0.")
_DATA = flags.DEFINE_string("data", None, "client: its samples, such as npz:client_3.npz.")
_SUPERLINK = flags.DEFINE_string("superlink", None, "client: HOST:PORT of the server.")
_CERTIFICATES = flags.DEFINE_string(
    "certificates", None, "A folder with ca.crt, and for the server server.pem, server.key."
)
_KEY = flags.DEFINE_string("key", None, "client: its private key, by which the server knows it.")
_KEYS = flags.DEFINE_string("keys", None, "server: a folder of its clients' public keys, *.pub.")
_HOST = flags.DEFINE_string("host", "127.0.0.1", "server: the address to listen at.")
_PORT = flags.DEFINE_integer("port", 8000, "server: the port to listen at.")
_PATIENCE = flags.DEFINE_float("patience", 300.0, "server: seconds to wait for clients that are not there yet.")
_TIMEOUT = flags.DEFINE_float("timeout", 600.0, "server: seconds that clients have to answer.")
_SUMS = flags.DEFINE_bool(
    "secure_sums", False, "server, client: uplinks are masked, and the server sees their sum alone."
)
_RANGE = flags.DEFINE_float("sum_range", 8.0, "server: what of an uplink is beyond it, up or down, is cut for a sum.")
_EPSILON = flags.DEFINE_float(
    "most_epsilon", math.inf, "client: with which it stops to answer, where it adds noise.", lower_bound=0.0
)
_INSECURE = flags.DEFINE_bool("insecure", False, "No TLS and no keys: to try it out on one machine.")

COMMANDS = ("split", "server", "client")
RETRY_SECONDS = 3.0


def split(config: ConfigDict, workdir: Path) -> list[Path]:
    """Writes each client's samples of a config to a file of its own."""
    experiment = build(config)
    paths = [workdir / f"client_{i}.npz" for i in range(config.partition.num_clients)]
    for path, own in zip(paths, experiment.partitions[0]):
        write_own(path, experiment.dataset, own)
    return paths


def client(plan: Plan, workdir: Path) -> None:
    """Answers the server's messages until a signal comes, or the connection's program ends."""
    for flag in (_CLIENT, _DATA, _SUPERLINK):
        if flag.value is None:
            raise ValueError(f"no --{flag.name}; see fedjax-ht deploy --help")
    secured = _secured("ca.crt", _KEY)
    dataset, own = read_own(_DATA.value, "", plan.config.dataset.image_size or None)
    site = make_site(plan, _CLIENT.value, dataset, own, workdir / "states", tell, most_epsilon=_EPSILON.value)
    if own.train.size == 0:
        tell(f"client {_CLIENT.value} has no training samples")
    folder = Path(tempfile.mkdtemp(prefix="fedjax_ht_"))  # the path of a socket must be short
    words = ["flower-supernode", "--superlink", _SUPERLINK.value, "--node-config", f'socket="{folder / "socket"}"']
    words += ["--port", str(app.free_port())]
    words += (
        ["--insecure"]
        if secured is None
        else ["--root-certificates", str(secured), "--auth-supernode-private-key", _KEY.value]
    )
    node = app.start(words, workdir / "flower", workdir / "flower.log")
    tell(f"client {_CLIENT.value}: {len(own.train)} training samples; the server is {_SUPERLINK.value}")

    def over() -> bool:
        nonlocal node
        if node.poll() is not None and not caught:  # the server is not up yet, or does not know the key yet
            tell(f"no connection to {_SUPERLINK.value}, trying again; {workdir / 'flower.log'} says why")
            time.sleep(RETRY_SECONDS)
            node = app.start(words, workdir / "flower", workdir / "flower.log")
        return bool(caught)

    try:
        with catch_signals() as caught, jax.default_matmul_precision(plan.config.precision):
            listen(folder / "socket", lambda message: answer(site, message), over)
    finally:
        end(node)
        shutil.rmtree(folder, ignore_errors=True)
    tell(f"stopped by {signal.Signals(caught[0]).name}")


def server(plan: Plan, config: ConfigDict, workdir: Path) -> None:
    """Starts a SuperLink, lets the clients in, and runs the config's rounds as a Flower app."""
    secured = _secured("ca.crt", _KEYS)
    if not 1 <= _RANGE.value <= WIDEST:
        raise ValueError(f"--sum_range is {_RANGE.value}; it must be from 1 to {WIDEST:g}")
    home, address = workdir / "flower", f"{_HOST.value}:{_PORT.value}"
    check_port(_PORT.value)
    words = ["flower-superlink", "--host", _HOST.value, "--port", str(_PORT.value)]
    words += ["--disable-runtime-dependency-installation"]
    keys = []
    if secured is None:
        words += ["--insecure"]
    else:
        own = {name: str(secured.with_name(name)) for name in ("server.pem", "server.key")}
        words += ["--ssl-ca-certfile", str(secured), "--ssl-certfile", own["server.pem"]]
        words += ["--ssl-keyfile", own["server.key"], "--enable-supernode-auth"]
        keys = sorted(Path(_KEYS.value).glob("*.pub"))
    local = f"{'127.0.0.1' if _HOST.value == '0.0.0.0' else _HOST.value}:{_PORT.value}"
    app.write_connection(home, local, secured)
    given = {"config": config.to_json_best_effort(), "workdir": str(workdir)}
    given |= {"patience": _PATIENCE.value, "timeout": _TIMEOUT.value}
    given |= {"secure_sums": plan.secure_sums, "sum_range": _RANGE.value}
    app.write_app(workdir / "app", version("fedjax_ht"), given)
    (workdir / DONE).unlink(missing_ok=True)
    with catch_signals() as caught:
        link = app.start(words, home, workdir / "flower.log")
        try:
            _until_up(link, home, workdir)
            for key in keys:
                app.run(["flwr", "supernode", "register", str(key), "here"], home)
            tell(f"server: {address}, {len(keys)} keys; {workdir / 'flower.log'} is Flower's")
            started = app.start(["flwr", "run", str(workdir / "app"), "here", "--stream"], home, None)
            while started.poll() is None and link.poll() is None and not caught:
                time.sleep(0.5)
            end(started)
        finally:
            end(link)
    if caught:
        tell(f"stopped by {signal.Signals(caught[0]).name}; the same command goes on from the last checkpoint")
        sys.exit(128 + caught[0])
    if not (workdir / DONE).exists():
        raise OSError(f"the run has ended before its last round; {workdir / 'flower.log'} says why")


def tell(line: str) -> None:
    print(line, flush=True)


def _secured(name: str, keys: flags.FlagHolder) -> Path | None:
    """The certificate that this side trusts, None without TLS."""
    if _INSECURE.value:
        return None
    if _CERTIFICATES.value is None or keys.value is None:
        raise ValueError(f"give --certificates and --{keys.name}, or --insecure to try it out on one machine")
    found = Path(_CERTIFICATES.value) / name
    for path in (found, Path(keys.value)):
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}")
    return found.absolute()


def _until_up(link: subprocess.Popen, home: Path, workdir: Path, seconds: float = 60.0) -> None:
    late = time.monotonic() + seconds
    while True:
        try:
            app.run(["flwr", "list", "here"], home)
            return
        except OSError as error:
            if link.poll() is not None or time.monotonic() > late:
                raise OSError(f"the SuperLink does not start; {workdir / 'flower.log'} says why ({error})") from None
            time.sleep(0.5)


def main(arguments: Sequence[str]) -> None:
    words = list(arguments[1:])
    try:
        if len(words) != 1 or words[0] not in COMMANDS:
            raise ValueError(f"give one of {', '.join(COMMANDS)}; see fedjax-ht deploy --help")
        if _WORKDIR.value is None:
            raise ValueError(
                f"no --workdir; for example fedjax-ht deploy {words[0]} --config=quickstart --workdir=here"
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
        workdir.mkdir(parents=True, exist_ok=True)
        if words[0] == "client":
            client(plan, workdir)
        else:
            server(plan, config, workdir)
    except (ValueError, OSError, ImportError) as error:
        fail(error)
