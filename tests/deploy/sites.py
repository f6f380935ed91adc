"""A small federation twice: as a simulation, and as clients that are asked by calls, not a wire."""

import copy
import dataclasses
import functools
from pathlib import Path
from unittest import mock

from fedjax_ht.core.function_keys import Keyed, key_of, keyed
from fedjax_ht.core.message_forms import result_form
from fedjax_ht.deploy import server as server_module
from fedjax_ht.deploy.client import answer, make_client
from fedjax_ht.deploy.messages import Envelope, from_bytes, to_bytes
from fedjax_ht.deploy.noise import LEDGER_FILE
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.samples import PUBLIC_FILE, client_dataset, write_split
from fedjax_ht.deploy.server import Server, Transport, make_server
from fedjax_ht.lab.config.base import base_config, method_config, partition_config
from fedjax_ht.lab.runs.plan import plan
from fedjax_ht.lab.runs.play import simulate
from fedjax_ht.models.cnn import mlp
from fedjax_ht.simulation.rows import round_row
from tests.federations import ONE_ARCHITECTURE, SLICES

PUBLIC = ("fedmd", "dsfl", "ktpfl", "fedhenn")
CLOCK = ("seconds_round", "seconds_evaluation", "seconds_client", "wasted_lane_steps")
UNSENT = (
    "macro_f1",
    "class_accuracy",
    "client_class_counts",
)  # clients of a deployment count nothing by class
FIXED = (0xDEADBEEF, 0xCAFEF00D, 0x8BADF00D, 0xFEEDFACE)


def small_config(method: str = "fedproto", rounds: int = 2, clients: int = 4):
    """Returns a config of clients with two perceptrons, and 30 images for each."""
    config = base_config()
    config.method = method_config(method)
    config.partition.num_clients = clients
    config.partition.options.alpha = 1.0
    config.dataset.subset = 30 * clients
    config.rounds = rounds
    config.checkpoint.every = 1
    config.model.group = "mlp2"
    if method in ONE_ARCHITECTURE:
        config.model.group = "tests.deploy.sites:perceptron"
    if method in SLICES:
        config.model.update({"group": "conv4_quarter", "rates": "1,1/2", "norm": "static_batch"})
    config.dataset.seen_before = method == "fedktl"
    if method in PUBLIC:
        config.dataset.public = "hold_out:0.2"
        config.method.options.public_per_round = 8
    return config


def with_public_file(config, run, folder: Path):
    """Returns the config of a deployment, whose public set is in a file; of other methods as it is."""
    if not config.dataset.public:
        return config
    write_split(folder, run.dataset, run.partitions[0])
    config = copy.deepcopy(config)
    config.dataset.public = f"npz:{folder / PUBLIC_FILE}"
    return config


def private_config(unit: str):
    """Returns a config of 4 clients with noise; one model and one size, compiled once."""
    config = small_config("lg_fedavg")
    config.partition = partition_config("iid", 4)
    config.dataset.subset = 80
    config.model.group = "tests.deploy.sites:perceptron"
    config.method.options.weighting = "uniform"
    config.privacy.update({"unit": unit, "clip": 0.5, "noise": 0.5})
    return config


def fixed() -> tuple[int, ...]:
    return FIXED


def perceptron(num_classes, input_shape, feature_dim):
    """Model group of one architecture, compiled sooner than two."""
    return {"mlp": mlp(num_classes, (feature_dim or 8,))}


def simulation_of(config, **options):
    """Builds a config's only run and its simulation, with some options changed."""
    (run,) = plan(config).runs.values()
    run = run._replace(options=dataclasses.replace(run.options, **options))
    return run, simulate(run)


def sites_of(config, run, folder: Path, secure_sums: bool = False) -> dict:
    """Makes the clients, {id: `Client`}; those of one architecture share compiled programs."""
    plan, sites = make_plan(config, secure_sums), {}
    federation = run.federation
    for i, indices in enumerate(run.partitions[0]):
        dataset, parts = client_dataset(run.dataset, indices)
        site = make_client(plan, i, dataset, parts, folder / f"site{i}")
        first = federation.members(federation.buckets[federation.assignment[i]])[0]
        sites[i] = site._replace(programs=sites.get(first, site).programs)
    return sites


def ignore(*_) -> None:
    pass


def never(*_) -> bool:
    return False


def unchanged(client, reply):
    return reply


def moved(site, folder: Path, tell=ignore):
    """Returns a client with another folder, in which nothing is counted yet."""
    noise = site.noise and site.noise._replace(path=folder / LEDGER_FILE)
    return site._replace(folder=folder, noise=noise, tell=tell)


def called(envelope: Envelope) -> Envelope:
    return from_bytes(to_bytes(envelope))


def transport(sites: dict, lost=never, changed=unchanged, tell=print) -> Transport:
    """Returns a transport by calls. `lost` is of (client id, request), `changed` makes of (client id,
    reply) what arrives, and `tell` takes a line for each client that is left out."""

    def meet(hello, min_clients):
        headers = {}
        for client, site in sites.items():
            if lost(client, hello):
                continue
            header = called(answer(site, called(hello))).header
            if "error" in header:
                tell(f"client {client} is left out: {header['error']}")
            else:
                headers[client] = header
        return headers

    def exchange(requests, max_bytes):
        replies = {}
        for client, request in requests.items():
            if not lost(client, request):
                reply = called(answer(sites[client], called(request)))
                replies[client] = changed(client, reply)
        return replies

    def add(requests, groups, lengths, problem_of):
        raise ValueError("a secure sum is Flower's, see test_secagg")

    return Transport(meet, exchange, add, tell)


def fresh(sites, folder, **changes):
    """Returns clients with new folders below one, see `moved`."""
    return {i: moved(site, folder / f"home{i}", **changes) for i, site in sites.items()}


@functools.lru_cache(4)
def _first_alike(server: Keyed) -> Server:
    return server.value


@functools.lru_cache(32)
def _first_form(arguments: Keyed):
    return result_form(*arguments.value)


def make_server_once(*args, **options) -> Server:
    """`make_server`, with the traced forms and programs of an earlier one of the same plan."""
    forms = mock.patch.object(server_module, "result_form", lambda *of: _first_form(keyed(of)))
    with forms:
        server = make_server(*args, **options)
    first = _first_alike(Keyed(server, key_of((server.plan, server.federation))))
    return server._replace(send=first.send, serve=first.serve, first=first.first)


def server_of(config, sites, folder, lost=never, **options) -> Server:
    """Makes a server that reaches clients by calls."""
    plan = make_plan(config, **options)
    return make_server_once(plan, transport(sites, lost), "a", folder)


def rounds_of(simulation, rounds=2):
    """Runs rounds; returns the final state and a row for each round."""
    state, rows, flops = simulation.init(), [], simulation.client_flops()
    for _ in range(rounds):
        state, report = simulation.run_round(state)
        rows.append(round_row(report, simulation.rules, flops))
    return state, rows


def assert_same_rows(simulated: list[dict], deployed: list[dict]) -> None:
    """Checks that rows are equal bit for bit, but for their clocks and what is not sent."""
    assert [without_clock(row) for row in simulated] == [without_clock(row) for row in deployed]


def without_clock(row: dict) -> dict:
    """Returns a row without the columns that depend on time, and those of `UNSENT`."""
    return {name: value for name, value in row.items() if name not in (*CLOCK, *UNSENT)}
