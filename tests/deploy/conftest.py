"""Federations that the tests share, each compiled once. Noise has a known secret."""

import functools

import pytest

from fedjax_ht.deploy.rounds import as_rounds
from fedjax_ht.trust.options import Privacy
from tests.deploy.sites import (
    FIXED,
    fixed,
    fresh,
    private_config,
    server_of,
    simulation_of,
    sites_of,
    small_config,
)


@pytest.fixture(autouse=True)
def fixed_secret(monkeypatch):
    monkeypatch.setattr("fedjax_ht.deploy.noise.fresh_secret", fixed)


@pytest.fixture(scope="session")
def private_federation(tmp_path_factory):
    """Returns unit -> (config, simulation with the fixed secret, its clients); compiled once."""

    @functools.cache
    def of(unit):
        config = private_config(unit)
        privacy = Privacy(**vars(config.privacy), secret=FIXED)
        run, simulation = simulation_of(config, privacy=privacy)
        return config, simulation, sites_of(config, run, tmp_path_factory.mktemp(unit))

    return of


@pytest.fixture(scope="session")
def train_request(private_federation, tmp_path_factory):
    """Returns unit -> client 1's request of the first round, in which only client 3 replies."""

    @functools.cache
    def of(unit):
        requests, (config, _, sites) = {}, private_federation(unit)

        def lost(client, request):
            requests[client, request.header["kind"]] = request
            return request.header["kind"] == "train" and client != 3

        folder = tmp_path_factory.mktemp("asking")
        simulation = as_rounds(server_of(config, fresh(sites, folder), folder, lost))
        simulation.run_round(simulation.init())
        return requests[1, "train"]

    return of


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    """Returns a folder of certificates, see `processes.certificates`."""
    from tests.deploy.processes import certificates

    folder = tmp_path_factory.mktemp("certificates") / "certs"
    certificates(folder)
    return folder


@pytest.fixture(scope="session")
def keys():
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    return {client: ec.generate_private_key(ec.SECP384R1()) for client in range(4)}


@pytest.fixture
def quick(monkeypatch):
    pytest.importorskip("flwr")
    from fedjax_ht.deploy import node

    monkeypatch.setattr(node, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(node, "RETRY_SECONDS", 0.1)


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Returns (config, simulation, its clients by id) of `small_config`; compiled once."""
    config = small_config()
    run, simulation = simulation_of(config)
    return config, simulation, sites_of(config, run, tmp_path_factory.mktemp("sites"))
