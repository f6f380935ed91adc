"""A client on its own machine: its samples, its model, its compiled programs, and its answers.

Its samples and states never leave it. A server's request has a header with "kind":

    hello      asks who the client is: the reply has its id, its numbers of samples and its task
    train      trains from the downlink: the reply is the uplink, with metrics and scores
    evaluate   scores the client's model: the reply is the number of correctly classified samples

If a request cannot be answered, the reply's header has "error", one line.

States are folders, named by their number of completed rounds. A request names the client's round
to continue after: a round whose upload was lost counts on neither side.
"""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ht.core.bucket import Bucket, put_weights, weights_of, with_frozen
from fedjax_ht.core.compiling import compiled
from fedjax_ht.core.context import ClientInfo, Turn
from fedjax_ht.core.evaluation import received_where, score_splits
from fedjax_ht.core.federation import Federation
from fedjax_ht.core.keys import Purpose, client_key
from fedjax_ht.core.message_forms import downlink_form, sends_payload, uplink_form, uplink_forms
from fedjax_ht.core.round import any_state, client_step
from fedjax_ht.core.samples import Data, Split, of_member
from fedjax_ht.core.trees import PyTree
from fedjax_ht.data.client_data import mixed, stack
from fedjax_ht.data.dataset import ClientIndices, Dataset
from fedjax_ht.data.meaning import meaning_sums
from fedjax_ht.data.public import beside
from fedjax_ht.deploy.messages import (
    Envelope,
    is_count,
    is_run_name,
    max_bytes,
    pack,
    printable,
    unpack,
)
from fedjax_ht.deploy.noise import (
    LEDGER_FILE,
    Noise,
    draw,
    has_states,
    training_noise,
    update_noise,
)
from fedjax_ht.deploy.plan import Plan, description, difference, make_models, task_as_json
from fedjax_ht.deploy.samples import public_split, require_classes, require_one_scale
from fedjax_ht.deploy.secure_sums import SHARE_BYTES, sum_groups, uplink_vector
from fedjax_ht.lab.checkpoints import sealed
from fedjax_ht.lab.checkpoints.segments import load_tree, save_tree
from fedjax_ht.lab.runs.federation import Task
from fedjax_ht.lab.runs.folder import read_json, write_json
from fedjax_ht.metrics.flops import bucket_flops
from fedjax_ht.simulation.program import evaluation_batch

PLACEHOLDER_COUNTS = {"train": 1, "val": 0, "test": 0}
"""Numbers of samples that a client reports if the noise of "upload" hides them."""


class Programs(NamedTuple):
    """A client's compiled functions.

    Attributes:
      init: (root key, `weights_of` the bucket, id of the client whose first state it is) -> state.
      train: (state, downlink, data, root key, round, info, secret of `noise.draw`, weights) -> (the
        trained state, the result of `core.round.client_step`, {"test": Scores} of the new model).
      evaluate: (state, ..., info as in `train`, {split: bool}, weights) -> {split: Scores}.
    """

    init: Callable
    train: Callable
    evaluate: Callable


class Client(NamedTuple):
    """A client on its own machine.

    Attributes:
      plan: the config.
      client_id: number of the client, from 0.
      init_id: id of the client whose first state it has: its own, or its architecture's first.
      data: the client's samples, followed by the public ones, on its device.
      counts: split -> number of samples.
      noise: noise that it adds itself; None if it adds none.
      downlink_form: shapes and dtypes of the server's messages.
      initial_weights: `weights_of` its model, with its frozen variables.
      programs: the client's compiled functions.
      hello: header of its reply to "hello".
      folder: folder of its states, with a folder for each run.
      tell: called with a message for the client's operator.
    """

    plan: Plan
    client_id: int
    init_id: int
    data: Data
    counts: dict[str, int]
    noise: Noise | None
    downlink_form: PyTree
    initial_weights: PyTree
    programs: Programs
    hello: dict[str, Any]
    folder: Path
    tell: Callable[[str], None]


def make_client(
    plan: Plan,
    client_id: int,
    dataset: Dataset,
    indices: ClientIndices,
    folder: Path,
    tell: Callable[[str], None] = print,
    max_epsilon: float = math.inf,
) -> Client:
    """Makes a client with its samples.

    Args:
      plan: the config, equal to the server's.
      client_id: number of the client, from 0.
      dataset: the client's samples.
      indices: indices of the samples for training, validation and test.
      folder: folder for its states, and for the count of its noise.
      tell: called with a message for the client's operator.
      max_epsilon: a reply that would take epsilon beyond it becomes an error.

    Raises:
      ValueError: config, id and samples do not fit together, or `max_epsilon` is given but the
        client adds no noise. One line.
    """
    if not 0 <= client_id < plan.num_clients:
        raise ValueError(
            f"client is {client_id}; the config has clients 0 to {plan.num_clients - 1}"
        )
    if max_epsilon < math.inf and plan.unit not in ("upload", "sample"):
        raise ValueError(
            f"--most_epsilon is {max_epsilon:g}, and with privacy.unit {plan.unit or 'none'!r} a "
            "client adds no noise of its own; remove --most_epsilon"
        )
    require_classes(dataset)
    task = Task(dataset.input_shape, dataset.num_classes, dataset.vocabulary)
    if plan.public is not None:
        require_one_scale(dataset, plan.public)
        dataset = beside(dataset, plan.public)
    federation = make_models(plan, task, dataset.public_set)
    if plan.secure_sums:
        forms = uplink_forms(plan.method, federation, plan.channel)
        sum_groups(plan.method, federation, forms)  # rejects what the server would reject
    bucket = federation.buckets[federation.assignment[client_id]]
    counts = {name: len(getattr(indices, name)) for name in ClientIndices._fields}
    stacked = _stacked_data(dataset, indices)
    hello = {
        "client": client_id,
        "counts": PLACEHOLDER_COUNTS if plan.unit == "upload" else counts,
        "task": task_as_json(task),
        "meaning": meaning_sums(dataset.class_names, dataset.reading),
        "flops": _round_flops(plan, federation, bucket, stacked),
        **description(plan),
    }
    noise, privacy, ledger = None, plan.options.privacy, folder / LEDGER_FILE
    if privacy and privacy.unit == "upload":
        form = uplink_form(plan.method, federation, bucket, plan.channel)
        noise = update_noise(privacy, sends_payload(form), ledger)
    elif privacy and privacy.unit == "sample":
        training = plan.method.training_of(bucket.name)
        noise = training_noise(privacy, training, counts["train"], ledger)
    return Client(
        plan=plan,
        client_id=client_id,
        init_id=federation.members(bucket)[0] if plan.options.shared_init else client_id,
        data=jax.device_put(of_member(stacked, 0)),
        counts=counts,
        noise=noise and noise._replace(max_epsilon=max_epsilon),
        downlink_form=downlink_form(plan.method, federation, bucket, plan.channel),
        initial_weights=weights_of(with_frozen(bucket)),
        programs=compile_programs(plan, federation, bucket),
        hello=hello,
        folder=folder,
        tell=tell,
    )


def _stacked_data(dataset: Dataset, indices: ClientIndices) -> Data:
    """Returns a client's samples like a bucket's: its own splits have a first axis of size 1."""
    splits = {"train": stack([indices.train])}
    for name in ("val", "test"):
        splits[name] = stack([mixed(getattr(indices, name))])
    splits |= public_split(dataset)
    return Data(dataset.inputs, dataset.labels, dataset.preprocess, splits)


def _round_flops(plan: Plan, federation: Federation, bucket: Bucket, data: Data) -> float:
    """Computes the FLOPs of a client's round; of one sample if their number is hidden."""
    if plan.unit == "upload":
        splits = dict(data.splits)
        for name, count in PLACEHOLDER_COUNTS.items():
            splits[name] = Split(np.zeros((1, 1), np.int32), np.array([count], np.int32))
        data = data._replace(splits=splits)
    return float(bucket_flops(plan.method, federation, bucket, data)[0])


def compile_programs(plan: Plan, federation: Federation, bucket: Bucket) -> Programs:
    """Returns the functions of a bucket's clients, compiled on their first call."""
    method, channel, options = plan.method, plan.channel, plan.options
    score = functools.partial(
        score_splits, method, batch_size=evaluation_batch(federation, options)
    )
    received = jnp.bool_(options.scoring.state == "received")

    def init(root, weights, init_id):
        key = client_key(root, Purpose.INIT_CLIENT, 0, init_id)
        return any_state(method, put_weights(bucket, weights), key, federation)

    def train(state, downlink, data: Data, root, round, info: ClientInfo, secret, weights):
        model = put_weights(bucket, weights)
        # `method.at` passes the noise its secret as an argument, not as a constant of the program
        step = client_step(method.at(secret), model, channel)
        trained, result = step(state, downlink, data, Turn(root, round, info))
        is_scored = {"test": jnp.bool_(True)}
        scores = score(model, trained, downlink=downlink, data=data, requested=is_scored)
        return trained, result, scores

    def evaluate(state, downlink, data: Data, root, round, info: ClientInfo, is_scored, weights):
        model = put_weights(bucket, weights)
        turn = Turn(root, round, info)
        scored = received_where(method, model, state, downlink, data, turn=turn, received=received)
        return score(model, scored, downlink=downlink, data=data, requested=is_scored)

    return Programs(*map(compiled, (init, train, evaluate)))


MAX_STATES = 1000
"""Most states that a client keeps, over all runs. In one run, a server may go back by about
`config.checkpoint.every` times `config.checkpoint.keep` of them."""
CLIENT_FILE = "client.json"
"""File beside the states with the id of their client."""


class RoundRequest(NamedTuple):
    """The header of a server's request for training or evaluation.

    Attributes:
      run: name of the run, letters and digits.
      round: number of the round, from 0.
      last_round: the client's last round that counts, -1 before the first.
      oldest: states from before this number of rounds may be deleted.
    """

    run: str
    round: int
    last_round: int
    oldest: int

    @property
    def state_before(self) -> int:
        """Number of completed rounds in the state that the request starts from."""
        return self.last_round + 1

    @property
    def state_after(self) -> int:
        """Number of completed rounds in the state that training leaves."""
        return self.round + 1


def read_request(header: dict[str, Any]) -> RoundRequest:
    """Reads a server's request for a round from its header.

    Raises:
      ValueError: no honest server sends it. One line.
    """
    run, number, last_round, oldest = (header.get(name) for name in RoundRequest._fields)
    # the run names a folder on the client's disk
    if not is_run_name(run):
        name = printable(repr(run))
        raise ValueError(
            f"the server's run is named {name}; a name has up to 64 letters and digits"
        )
    if not is_count(number):
        raise ValueError(
            f"the server asks for round {printable(repr(number))}; rounds are integers from 0"
        )
    if not (last_round == -1 or is_count(last_round)) or last_round >= number:
        raise ValueError(
            f"the server asks for round {number}, but the last round "
            f"is {printable(repr(last_round))}"
        )
    # the state that the request starts from must not be deleted
    if not is_count(oldest) or oldest > last_round + 1:
        raise ValueError(
            f"the server allows deleting states before round {printable(repr(oldest))}, but the "
            f"last round is {last_round}"
        )
    return RoundRequest(run=run, round=number, last_round=last_round, oldest=oldest)


def request_bytes(client: Client) -> int:
    """Computes the most bytes of the arrays in a server's message to a client."""
    size = max_bytes(client.downlink_form)
    if client.plan.secure_sums:
        size += SHARE_BYTES * client.plan.num_clients
    return size


def answer(client: Client, request: Envelope) -> Envelope:
    """Answers a server's request; the reply's header has "error" if it cannot be answered."""
    start = time.perf_counter()
    answers = {"hello": _answer_hello, "train": _train, "evaluate": _evaluate}
    hides_all = client.plan.unit == "upload"
    try:
        kind = request.header.get("kind")
        if not isinstance(kind, str) or kind not in answers:
            raise ValueError(f"the server sent a request of unknown kind {printable(repr(kind))}")
        reply = answers[kind](client, request)
    except Exception as error:  # whatever it is, the client stays ready for the next request
        line = printable(str(error))
        if not isinstance(error, ValueError | OSError):
            line = f"{type(error).__name__}: {line}"
            # XLA's errors may name the shapes of the client's arrays
            if hides_all:
                client.tell(line)
                line = f"{type(error).__name__}; see the client's own terminal"
        reply = Envelope({"error": line}, {})
    header = reply.header | {"client": client.client_id}
    if not hides_all:  # longer training reveals more samples
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
        # from here on the reply is counted, whether or not it arrives
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
    """Rejects training whose reply would leave unmasked, or masked, against this client's flag."""
    secure = client.plan.secure_sums
    if secure and not masked:
        raise ValueError(
            "this client was started with --secure_sums, but its answer would leave unmasked; "
            "also start the server with it"
        )
    if masked and not secure:
        raise ValueError(
            "this client was started without --secure_sums, but its answer would leave masked; "
            "start it with --secure_sums, like the server"
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
    """Converts scores to JSON values; {} if noise hides them, and then reports them locally."""
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
    # committed to its device like a state from disk: otherwise each would compile its own program
    first = jax.device_put(first, jax.devices()[0])
    if round_request.state_before == 0:
        return first
    return load_state(client.folder / round_request.run, round_request.state_before, first)


def bind_to_client(folder: Path, client_id: int) -> None:
    """Writes whose states a folder has, and rejects another client's.

    Args:
      folder: holds a folder for each of the client's runs.
      client_id: number of the client.

    Raises:
      ValueError, OSError: another client has states there, or the file is unreadable. One line.
    """
    path = folder / CLIENT_FILE
    owner = read_json(path).get("client_id") if path.exists() else client_id
    if owner != client_id and has_states(folder):
        raise ValueError(
            f"{folder} has states of client {printable(str(owner))}, but --client_id is "
            f"{client_id}; give each client its own --workdir"
        )
    write_json(path, {"client_id": client_id})


def check_room(folder: Path) -> None:
    """Refuses to keep more states, so that no server can fill a client's disk with made-up runs.

    Args:
      folder: holds a folder for each of the client's runs.

    Raises:
      ValueError: they have `MAX_STATES` states. One line.
    """
    runs = [path for path in folder.iterdir() if path.is_dir()] if folder.exists() else []
    count = sum(len(sealed.numbers(run)) for run in runs)
    if count >= MAX_STATES:
        raise ValueError(
            f"{folder} has {count} states of {len(runs)} runs, but a client keeps at most "
            f"{MAX_STATES}; delete the folders of finished runs"
        )


def save_state(folder: Path, number: int, state: PyTree) -> None:
    """Writes a state, whole or not at all, and replaces one with that number.

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
      ValueError, OSError: it is missing, or has changed since it was written. One line.
    """
    path = folder / str(number)
    if not path.exists():
        known = ", ".join(map(str, sealed.numbers(folder))) or "none"
        raise FileNotFoundError(f"{folder} has no state after {number} rounds; it has {known}")
    sealed.check(path)
    return load_tree(path / "state", template)


def delete_states(folder: Path, below: int) -> None:
    """Deletes the states with numbers below `below`."""
    for number in sealed.numbers(folder):
        if number < below:
            sealed.remove(folder / str(number))
