"""A client's answers to a server, and the states that it keeps between rounds.

A request has a header with "kind":

    hello      asks who the client is: the reply has its id, its numbers of samples and its task
    train      plays a round from the downlink: the reply is the uplink, with metrics and scores
    evaluate   scores the client's model: the reply is how many samples were classified correctly

The reply to a request that cannot be answered is a header with "error", one line.

States are folders, named by the number of rounds after which they hold. A request says after which
of a client's rounds it goes on: a round whose upload was lost counts on neither side.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_ht.core.context import ClientInfo
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.dataset import ClientIndices
from fedjax_ht.deploy.client import Client
from fedjax_ht.deploy.headers import is_count, is_run_name, printable
from fedjax_ht.deploy.messages import Envelope, max_bytes, pack, unpack
from fedjax_ht.deploy.noise import draw
from fedjax_ht.deploy.plan import description, difference
from fedjax_ht.deploy.secure_sums import SHARE_BYTES, uplink_vector
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.segments import load_tree, save_tree

MAX_STATES = 1000
"""Most states that a client keeps, of all runs together. In one run a server may go back to about
`config.checkpoint.every` by `config.checkpoint.keep` of them."""


class RoundRequest(NamedTuple):
    """The header of a server's request for training or evaluation.

    Attributes:
      run: name of the run, letters and digits.
      round: number of the round, from 0.
      last_round: the client's last round that counts, -1 before the first.
      oldest: the client may delete its states from before this number of rounds.
    """

    run: str
    round: int
    last_round: int
    oldest: int

    @property
    def state_before(self) -> int:
        """Number of rounds after which the state holds that the request starts from."""
        return self.last_round + 1

    @property
    def state_after(self) -> int:
        """Number of rounds after which the state holds that training leaves."""
        return self.round + 1


def read_request(header: dict[str, Any]) -> RoundRequest:
    """Reads a server's request for a round out of its header.

    Raises:
      ValueError: it is none that an honest server sends. One line.
    """
    run, number, last_round, oldest = (header.get(name) for name in RoundRequest._fields)
    # the run names a folder on the client's disk
    if not is_run_name(run):
        name = printable(repr(run))
        raise ValueError(f"the server calls its run {name}; a name is up to 64 letters and digits")
    if not is_count(number):
        raise ValueError(
            f"the server asks for round {printable(repr(number))}; rounds are integers from 0"
        )
    if not (last_round == -1 or is_count(last_round)) or last_round >= number:
        raise ValueError(
            f"the server asks for round {number} after a last round {printable(repr(last_round))}"
        )
    # the state that the request starts from must not be deleted
    if not is_count(oldest) or oldest > last_round + 1:
        raise ValueError(
            f"the server lets states from before round {printable(repr(oldest))} be deleted, and "
            f"the last round is {last_round}"
        )
    return RoundRequest(run=run, round=number, last_round=last_round, oldest=oldest)


def request_bytes(client: Client) -> int:
    """Computes the most bytes that the arrays of a server's message to a client have."""
    size = max_bytes(client.downlink_form)
    if client.plan.secure_sums:
        size += SHARE_BYTES * client.plan.num_clients
    return size


def answer(client: Client, request: Envelope) -> Envelope:
    """Answers a server's request; of one that cannot be answered the reply's header has "error"."""
    start = time.perf_counter()
    answers = {"hello": _answer_hello, "train": _train, "evaluate": _evaluate}
    hides_all = client.plan.unit == "upload"
    try:
        kind = request.header.get("kind")
        if not isinstance(kind, str) or kind not in answers:
            raise ValueError(
                f"the server sends a request of the unknown kind {printable(repr(kind))}"
            )
        reply = answers[kind](client, request)
    except Exception as error:  # whatever it is, the client stays for the next request
        line = printable(str(error))
        if not isinstance(error, ValueError | OSError):
            line = f"{type(error).__name__}: {line}"
            # XLA's errors may name the shapes of the client's arrays
            if hides_all:
                client.tell(line)
                line = f"{type(error).__name__}; the client's own terminal says more"
        reply = Envelope({"error": line}, {})
    header = reply.header | {"client": client.client_id}
    if not hides_all:  # longer training is more samples
        header["seconds"] = time.perf_counter() - start
    return reply._replace(header=header)


def _answer_hello(client: Client, request: Envelope) -> Envelope:
    owner = request.header.get("owner")
    problem = difference(request.header["about"], description(client.plan))
    if problem:
        problem = f"it {problem}"
    if owner is not None and owner != client.client_id:
        problem = f"its key is that of client {printable(str(owner))}"
    if problem:
        client.tell(f"client {client.client_id} is left out: {printable(problem)}")
        raise ValueError(problem)
    return Envelope(client.hello, {})


def _train(client: Client, request: Envelope) -> Envelope:
    # "masked" is set by the client's own end of Flower, whatever the server has written there
    _check_masked(client, request.header.get("masked", False))
    round_request = read_request(request.header)
    run_folder = client.folder / round_request.run
    state = _load_or_init(client, round_request)
    downlink = unpack(client.downlink_form, request.arrays, "the downlink")
    try:
        check_room(client.folder)
        # from here on the reply counts, whether or not it arrives
        secret, epsilon = draw(client.noise)
    except ValueError as error:
        client.tell(f"round {round_request.state_after}: no answer; {error}")
        raise
    round_inputs = _round_inputs(client, round_request)
    inputs = (client.data, *round_inputs, secret, client.initial_weights)
    trained, result, scores = client.programs.train(state, downlink, *inputs)
    finite = bool(result.finite)
    save_state(run_folder, round_request.state_after, trained if finite else state)
    delete_states(run_folder, round_request.oldest)
    when = f"after training in round {round_request.state_after}"
    header = {"finite": finite, "scores": _sent_scores(client, when, scores), "metrics": {}}
    if client.plan.unit not in ("upload", "sample"):
        header["metrics"] = {name: float(value) for name, value in result.metrics.items()}
    if epsilon is not None:
        header["epsilon"] = epsilon
        client.tell(f"round {round_request.state_after}: epsilon {epsilon:.4g} with this answer")
    if not finite:
        return Envelope(header, {})
    if client.plan.secure_sums:
        return Envelope(header, {"vector": uplink_vector(result.uplink)})
    return Envelope(header, pack(result.message))


def _check_masked(client: Client, masked: bool) -> None:
    """Refuses training whose reply would leave otherwise than this client was started for."""
    secure = client.plan.secure_sums
    if secure and not masked:
        raise ValueError(
            "this client was started with --secure_sums, and its answer would leave unmasked; "
            "start the server with it, too"
        )
    if masked and not secure:
        raise ValueError(
            "this client was started without --secure_sums, and its answer would leave masked; "
            "start it with --secure_sums, as the server"
        )


def _evaluate(client: Client, request: Envelope) -> Envelope:
    round_request = read_request(request.header)
    downlink = unpack(client.downlink_form, request.arrays, "the downlink")
    is_scored = {}
    for name in ClientIndices._fields:
        is_scored[name] = jnp.bool_(name != "train" or client.plan.options.scoring.train)
    state, round_inputs = _load_or_init(client, round_request), _round_inputs(client, round_request)
    inputs = (client.data, *round_inputs, is_scored, client.initial_weights)
    scores = client.programs.evaluate(state, downlink, *inputs)
    sent = _sent_scores(client, f"after round {round_request.round}", scores)
    return Envelope({"scores": sent}, {})


def _sent_scores(client: Client, when: str, scores: dict[str, Any]) -> dict[str, Any]:
    """Converts scores to JSON values; {} where noise hides them, and then tells them here."""
    values = {}
    for split, score in scores.items():
        correct = {rule: int(count) for rule, count in score.correct.items()}
        values[split] = {"correct": correct, "count": int(score.count)}
    if client.plan.unit != "upload":
        return values
    test = values["test"]
    if test["count"]:
        share = test["correct"][client.plan.method.rules[0]] / test["count"]
        client.tell(f"{when}: accuracy {100 * share:.2f} % of {test['count']} test samples")
    return {}


def _round_inputs(
    client: Client, round_request: RoundRequest
) -> tuple[jax.Array, jax.Array, ClientInfo]:
    """Returns (root key, round, info) as the compiled functions take them."""
    info = ClientInfo(
        jnp.int32(client.client_id),
        jnp.int32(client.counts["train"]),
        jnp.int32(round_request.last_round),
    )
    return jax.random.key(client.plan.options.seed), jnp.int32(round_request.round), info


def _load_or_init(client: Client, round_request: RoundRequest) -> PyTree:
    root = jax.random.key(client.plan.options.seed)
    first = client.programs.init(root, client.initial_weights, jnp.int32(client.init_id))
    # committed to its device, as a state from disk is: else each would compile a program of its own
    first = jax.device_put(first, jax.devices()[0])
    if round_request.state_before == 0:
        return first
    return load_state(client.folder / round_request.run, round_request.state_before, first)


def check_room(folder: Path) -> None:
    """Refuses to keep more states, so that no server fills a client's disk with made-up runs.

    Args:
      folder: holds a folder for each of the client's runs.

    Raises:
      ValueError: there are `MAX_STATES` states in them. One line.
    """
    runs = [path for path in folder.iterdir() if path.is_dir()] if folder.exists() else []
    count = sum(len(sealed.numbers(run)) for run in runs)
    if count >= MAX_STATES:
        raise ValueError(
            f"{folder} has {count} states of {len(runs)} runs, and a client keeps {MAX_STATES} at "
            "most; delete the folders of runs that have ended"
        )


def save_state(folder: Path, number: int, state: PyTree) -> None:
    """Writes a state, whole or not at all, in place of one with that number.

    Raises:
      OSError: it cannot be written. One line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sealed.remove_half_written(folder)
    path = folder / str(number)
    if path.exists():
        sealed.remove(path)
    save_tree(sealed.temporary(path) / "state", state)
    sealed.place(path)


def load_state(folder: Path, number: int, template: PyTree) -> PyTree:
    """Reads the state with a number.

    Raises:
      ValueError, OSError: there is none, or it has changed since it was written. One line.
    """
    path = folder / str(number)
    if not path.exists():
        known = ", ".join(map(str, sealed.numbers(folder))) or "none"
        raise FileNotFoundError(f"{folder} has no state after {number} rounds; it has {known}")
    sealed.check(path)
    return load_tree(path / "state", template)


def delete_states(folder: Path, below: int) -> None:
    """Deletes the states with smaller numbers."""
    for number in sealed.numbers(folder):
        if number < below:
            sealed.remove(folder / str(number))
