"""Rounds of every method on the tiny federation, and the numbers that tests/methods/recorded.json
holds of them.

Without pytest, so that other programs make the same rounds elsewhere.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.evaluation import Scoring
from fedjax_ht.core.method import Method
from fedjax_ht.methods.shared.checking import replaced
from fedjax_ht.simulation.options import SimulationOptions
from fedjax_ht.simulation.simulation import Simulation, SimulationState, make_simulation
from tests.federations import COMPOSED, TRAINING, federation_data, federation_for
from tests.standard import method_of, played

RECORDED = Path(__file__).parent / "recorded.json"
# 5 clients a round, 1 of them dropped
OPTIONS = SimulationOptions(participation=0.6, drop_rate=0.25, lanes=1)
# the rounds in which client 1, or everybody, is not finite
BAD_UPLINK, BAD_STATE, ALL_BAD = 100, 101, 102


def breakable(method: Method) -> Method:
    """The method, but the results of some clients are not finite in the rounds named above."""

    def client_update(bucket, client, downlink, data, ctx):
        client, uplink, metrics = method.client_update(bucket, client, downlink, data, ctx)
        chosen = ctx.info.id == 1
        in_uplink = chosen & (ctx.round == BAD_UPLINK)
        in_state = chosen & (ctx.round == BAD_STATE) | (ctx.round == ALL_BAD)
        metrics = replaced(metrics, in_uplink | in_state, {"f": jnp.nan})
        uplink = replaced(uplink, in_uplink, {"f": jnp.nan})
        return replaced(client, in_state, {"f": jnp.inf}), uplink, metrics

    return method._replace(client_update=client_update)


KEEP_NOTHING = (
    *("fedavg", "heterofl", "feddropout", "fedrolex", "fedprox", "fedbuff", "fedbn", "fedpac"),
    *("fiarse", "fjord", "fedit", "hetlora", "flexlora", "raflora", "ffa_lora", "afl"),
    *("fedcgs", "fedbabu", "perfedavg", "qfedavg", "agnostic", "fedpft"),
)  # and what is composed with them

NO_TRAINING = ("afl", "fedcgs", "fedpft")  # clients draw no batches


def options_for(name: str, **options) -> SimulationOptions:
    """Returns the options of a method's rounds; `options` replace some.

    Clients that keep nothing keep their states where these are evaluated as trained
    (tests/simulation/test_no_state.py), so that they are part of what is recorded.
    """
    kept = {"scoring": Scoring("trained")} if name.partition("+")[0] in KEEP_NOTHING else {}
    return SimulationOptions(**{**vars(OPTIONS), **kept, **options})


@functools.cache
def simulation(
    name: str, reverse: bool = False, padding: int = 0, build: int = 0, **options
) -> Simulation:
    """A method's simulation; `build` tells apart two that are alike."""
    federation = federation_for(name, reverse)
    method, data = breakable(method_of(name)), federation_data(federation, padding)
    return make_simulation(method, federation, data, options_for(name, **options))


@functools.cache
def history(name: str, rounds: int = 3, **variant) -> tuple[list[SimulationState], list]:
    return played(simulation(name, **variant), rounds)


# The forms that follow the authors' library: samples in stored order, and released variants where
# there are any.
RELEASED = {
    "local": {},
    "lg_fedavg": {},
    "fedproto": {"variant": "released"},
    "fedtgp": {"variant": "released"},
    "fedgh": {},
    "fd": {},
    "fml": {"variant": "released"},
    "fedkd": {"variant": "released"},
    "fedgen": {"variant": "released"},
    "fedktl": {"variant": "released"},
}
DISTILLED = ("dense", "fedftg", "dfrd", *COMPOSED)  # with samples in an order that is drawn


def released_form(name: str) -> Method:
    if name in DISTILLED:
        return method_of(name, variant="released")
    return method_of(name, dataclasses.replace(TRAINING, shuffle=False), **RELEASED[name])


def numbers(states: list[SimulationState], reports: list) -> list[dict[str, float]]:
    """Lists the numbers of each round: metrics, participants' accuracies, lengths of states."""

    def length(tree):
        return float(
            np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(tree)))
        )

    return [
        report.metrics
        | {f"server {k}": v for k, v in report.server_metrics.items()}
        | {f"accuracy {rule}": float(np.nanmean(a)) for rule, a in report.accuracy.items()}
        | {"server state": length(state.server), "clients' states": length(state.clients)}
        for state, report in zip(states[1:], reports)
    ]
