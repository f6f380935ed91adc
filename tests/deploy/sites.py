"""A small federation twice: as a simulation, and with a client a process could be, by calls instead
of a wire."""

import dataclasses
import json
from pathlib import Path

from fedjax_ht.configs.base import base_config, method_config, partition_config
from fedjax_ht.deploy.data import alone
from fedjax_ht.deploy.envelope import Envelope, from_bytes, to_bytes
from fedjax_ht.deploy.noise import LEDGER
from fedjax_ht.deploy.plan import make_plan
from fedjax_ht.deploy.server import Transport
from fedjax_ht.deploy.site import answer, make_site
from fedjax_ht.experiment.build import build
from fedjax_ht.models.cnn import mlp
from fedjax_ht.runner.train_entry import simulate
from tests.federations import ONE_ARCHITECTURE, SLICES

CLOCK = ("seconds_round", "seconds_evaluation", "seconds_client", "wasted_lane_steps")
FIXED = (0xDEADBEEF, 0xCAFEF00D, 0x8BADF00D, 0xFEEDFACE)


def small_config(method: str = "fedproto", rounds: int = 2):
    """4 clients of two perceptrons with 100 images in all."""
    config = base_config()
    config.method = method_config(method)
    config.partition.num_clients = 4
    config.partition.options.alpha = 1.0
    config.dataset.subset = 120
    config.rounds = rounds
    config.checkpoint.every = 1
    config.model.group = "mlp2"
    if method in ONE_ARCHITECTURE:
        config.model.group = "tests.deploy.sites:perceptron"
    if method in SLICES:
        config.model.update({"group": "conv4_quarter", "rates": "1,1/2", "norm": "static_batch"})
    config.dataset.seen_before = method == "fedktl"
    return config


def private_config(unit: str):
    """4 clients of one perceptron and as many samples, which are compiled once, with noise."""
    config = small_config("lg_fedavg")
    config.partition = partition_config("iid", 4)
    config.dataset.subset = 80
    config.model.group = "tests.deploy.sites:perceptron"
    config.method.options.weighting = "uniform"
    config.privacy.update({"unit": unit, "clip": 0.5, "noise": 0.5})
    return config


def fixed() -> tuple[int, ...]:
    """Words of noise, the same every time."""
    return FIXED


def perceptron(num_classes, input_shape, feature_dim):
    """A model group of one, compiled sooner than two."""
    return {"mlp": mlp(num_classes, (feature_dim or 8,))}


def simulation_of(config, **options):
    """The simulation that a deployment of this config is compared with, with other options."""
    experiment = build(config)
    experiment = experiment._replace(options=dataclasses.replace(experiment.options, **options))
    (label,) = experiment.methods
    return experiment, simulate(label, experiment)


def sites_of(config, experiment, folder: Path, secure_sums: bool = False) -> dict:
    """Each client at home; those of one architecture share what is compiled."""
    plan, sites, (federation,) = make_plan(config, secure_sums), {}, experiment.federations.values()
    for i, own in enumerate(experiment.partitions[0]):
        site = make_site(plan, i, *alone(experiment.dataset, own), folder / f"site{i}")
        first = federation.members(federation.buckets[federation.assignment[i]])[0]
        sites[i] = site._replace(programs=sites.get(first, site).programs)
    return sites


def moved(site, folder: Path, entropy=fixed, tell=lambda line: None):
    """A client in another folder, with nothing told yet."""
    noise = site.noise and site.noise._replace(path=folder / LEDGER, entropy=entropy)
    return site._replace(folder=folder, noise=noise, tell=tell)


def called(envelope: Envelope) -> Envelope:
    """An envelope as it comes out of a wire."""
    arrays = {name: from_bytes(to_bytes(x), x.dtype.name) for name, x in envelope.arrays.items()}
    return Envelope(json.loads(json.dumps(envelope.head)), arrays)


def transport(
    sites: dict, lost=lambda *_: False, changed=lambda _, reply: reply, tell=print
) -> Transport:
    """Calls instead of a wire; `lost` and `changed` are what can happen to a client and to its
    answer."""

    def there(hello):
        return {i: site for i, site in sites.items() if not lost(i, hello)}

    def meet(hello, wanted):
        heads = {i: called(answer(site, called(hello))).head for i, site in there(hello).items()}
        for client, head in heads.items():
            if "error" in head:
                tell(f"client {client} is left out: {head['error']}")
        return {client: head for client, head in heads.items() if "error" not in head}

    def exchange(letters, most):
        reached = {i: letter for i, letter in letters.items() if not lost(i, letter)}
        return {
            i: changed(i, called(answer(sites[i], called(letter)))) for i, letter in reached.items()
        }

    def add(letters, groups, most):
        raise ValueError("a secure sum is Flower's, see tests.deploy.grid")

    return Transport(meet, exchange, add)


def assert_same_rows(simulated: list[dict], deployed: list[dict]) -> None:
    """Every value bit for bit, but for the clock."""
    assert len(simulated) == len(deployed)
    for own, other in zip(simulated, deployed):
        assert {k: v for k, v in own.items() if k not in CLOCK} == {
            k: v for k, v in other.items() if k not in CLOCK
        }
