"""Where a round first goes wrong: the same calls, one client and one stage at a time."""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core import wire
from fedjax_ht.core.federation import Bucket
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.mesh import server_copy
from fedjax_ht.core.method import ClientInfo, Data, Method, PyTree, Received, Split
from fedjax_ht.core.round import Participant, all_finite, client_context, receive, server_step, view
from fedjax_ht.simulation.options import choose_participants
from fedjax_ht.simulation.program import Program
from fedjax_ht.simulation.steps import SimulationState, clients_info, read_clients
from fedjax_ht.simulation.trials import of_trial
from fedjax_ht.simulation.waiting import arrivals
from fedjax_ht.trust.outliers import summaries, without_outliers


class Fault(NamedTuple):
    """The first thing in a round that is not finite, or raises.

    Attributes:
      stage: "broadcast", "downlink" or "uplink" (the transforms of the wire), "receive",
        "client_update", or "server_update".
      where: the path of the first array that is not finite in what the stage returned, or what it
        raised.
      trial: from 0.
      bucket, client: whose call it was; None for server_update.
      error: what it raised, or None.
    """

    stage: str
    where: str
    trial: int
    bucket: str | None
    client: int | None
    error: Exception | None

    def __str__(self) -> str:
        who = f" of client {self.client} in bucket {self.bucket}" if self.bucket is not None else ""
        return f"{self.stage}{who} (trial {self.trial}): {self.where}"


class _Found(Exception):
    """Carries the fault out of the round."""


def find_fault(program: Program, state: SimulationState, jit: bool = True) -> Fault | None:
    """Plays the next round without changing the state, and stops at the first value that is not
    finite or exception.

    Args:
      program: bound arguments.
      state: before the round.
      jit: False runs every operation by itself, so that prints, a debugger and `jax.debug_nans`
        work in a method.

    Returns:
      None if the round is sound.
    """
    with contextlib.nullcontext() if jit else jax.disable_jit():
        try:
            for trial in range(len(program.options)):
                _play(program, state, trial)
        except _Found as found:
            return found.args[0]
    return None


def _play(program: Program, state: SimulationState, trial: int) -> None:
    options, method = program.options[trial], program.method.at(of_trial(program.settings, trial))
    server = of_trial(jax.device_get(state.servers), trial)
    root, round = jax.random.key(np.uint32(options.seed)), jnp.int32(state.round)
    busy = None if state.waiting is None else state.waiting.uploads.busy[trial]
    ids, dropped = choose_participants(options, program.federation.num_clients, state.round, busy)
    infos = of_trial(clients_info(program, state), trial)
    received = {}
    for bucket in program.federation.buckets:
        roster = program.clients[bucket.name].roster
        stages = _stages(program, method, bucket, server, root, round)
        rows = roster.rows(trial, ids)
        # A bucket from which nobody takes part sends padding, in the shape of its first client's
        # uplink.
        played = rows if len(rows) else roster.rows(trial, roster.members[:1])
        members = roster.client(played)[1]
        own = jax.tree.map(lambda x, m=members: jnp.asarray(x[m]), infos)
        uplinks, costs = [], []
        for i, row in enumerate(played):
            info = jax.tree.map(lambda x, i=i: x[i], own)
            data = view(
                program.clients[bucket.name].data,
                Participant(row, trial, info, np.True_, np.False_),
            )
            client = read_clients(program, state, bucket.name, np.array([row]))
            play = functools.partial(
                _client, stages, jax.tree.map(lambda x: x[0], client), data, info
            )
            if len(rows):
                downlink, uplink = play(
                    functools.partial(_checked, trial, bucket.name, int(members[i]))
                )
                uplinks.append(uplink)
                costs.append((wire.wire_elements(downlink), wire.wire_elements(uplink)))
            else:
                _, shape = jax.eval_shape(
                    lambda play=play: play(lambda stage, fn, *arguments: fn(*arguments))
                )
                uplinks.append(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape))
        arrived = (
            np.isin(members, ids)
            & ~np.isin(members, ids[dropped])
            & ~_late(program, trial, members, costs)
        )
        received[bucket.name] = Received(
            jax.tree.map(lambda *xs: jnp.stack(xs), *uplinks), own, jnp.asarray(arrived)
        )
        if state.waiting is not None:
            earlier = arrivals(program, state.waiting, bucket.name)
            own = jax.tree.map(lambda x, r=roster: x[r.rows(trial, r.members)], earlier)
            received[bucket.name] = jax.tree.map(
                lambda *xs: jnp.concatenate(xs), received[bucket.name], own
            )
    # In the round itself they did not arrive, either.
    summarised = summaries(received)
    received, _ = without_outliers(
        program.federation.num_clients, received, summarised, options.outlier_bound
    )
    serve = server_step(method, program.federation)
    serve = serve if method.pretrained.host else jax.jit(serve)
    data = (
        server_copy(program.samples)._replace(splits=_pooled(program, trial))
        if method.sees_data
        else None
    )
    _checked(
        trial,
        None,
        None,
        "server_update",
        serve,
        server,
        received,
        root,
        round,
        program.server.pretrained,
        data,
    )


def _pooled(program: Program, trial: int) -> dict[str, Split]:
    return {"train": of_trial(program.server.pooled["train"], trial)}


def _late(
    program: Program,
    trial: int,
    clients: np.ndarray,
    costs: list[tuple[wire.WireCost, wire.WireCost]],
):
    """bool [m], whose upload is too late; `costs` of each are those of the downlink and of the
    uplink."""
    profile = program.options[trial].profile
    if profile is None or not profile.deadline or not costs:
        return np.zeros(len(clients), bool)
    flops = np.zeros(len(clients)) if profile.flops is None else program.flops()[trial, clients]
    down, up = jax.tree.map(lambda *xs: np.array(xs), *costs)
    return profile.too_late(profile.seconds(clients, flops, down, up))


def _client(
    stages: dict[str, Callable], client: PyTree, data: Data, info: ClientInfo, call: Callable
) -> tuple[PyTree, PyTree]:
    """A client's downlink and uplink; `call(stage, function, *arguments)` makes the calls."""
    sent = call("broadcast", stages["broadcast"], info)
    downlink = call("downlink", stages["downlink"], sent, info)
    client = call("receive", stages["receive"], client, downlink, data, info)
    _, uplink, _ = call("client_update", stages["client_update"], client, downlink, data, info)
    return downlink, call("uplink", stages["uplink"], uplink, info)


def _stages(
    program: Program,
    method: Method,
    bucket: Bucket,
    server: PyTree,
    root: jax.Array,
    round: jax.Array,
) -> dict[str, Callable]:
    """A round's calls for one client of a bucket, each compiled by itself."""
    federation, options = program.federation, program.options[0]

    def broadcast(server, root, round, info):
        return method.broadcast(
            federation, bucket, server, client_context(Purpose.BROADCAST, root, round, info)
        )

    def received(_, root, round, client, downlink, data, info):
        return receive(method, bucket, client, downlink, data, root, round, info)

    def update(_, root, round, client, downlink, data, info):
        ctx = client_context(Purpose.TRAIN, root, round, info)
        return method.client_update(bucket, client, downlink, data._replace(round=round), ctx)

    def transformed(transform: wire.Transform, purpose: Purpose) -> Callable:
        return lambda _, root, round, message, info: transform(
            client_key(root, purpose, round, info.id), message
        )

    stages = {
        "broadcast": broadcast,
        "downlink": transformed(wire.chain(options.downlink), Purpose.DOWNLINK),
        "receive": received,
        "client_update": update,
        "uplink": transformed(wire.chain(options.uplink), Purpose.UPLINK),
    }
    # What a round traces is an argument here, too: a method that looks at it fails in the same way.
    return {
        name: functools.partial(jax.jit(fn), server, root, round) for name, fn in stages.items()
    }


def _checked(
    trial: int, bucket: str | None, client: int | None, stage: str, fn: Callable, *arguments
) -> PyTree:
    """What `fn` returns, or the fault."""
    try:
        out = fn(*arguments)
    except Exception as error:
        line = str(error).partition("\n")[0]
        raise _Found(
            Fault(stage, f"{type(error).__name__}: {line}", trial, bucket, client, error)
        ) from error
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        out, is_leaf=lambda x: isinstance(x, wire.Masked)
    ):
        if not all_finite(leaf):
            where = f"{jax.tree_util.keystr(path)} is not finite".strip()
            raise _Found(Fault(stage, where, trial, bucket, client, None))
    return out
