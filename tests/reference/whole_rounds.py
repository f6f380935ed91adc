"""Whole rounds of methods of one architecture, by the steps of `one_architecture`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.reference import fedcp as fedcp_client
from tests.reference import feddbe as feddbe_client
from tests.reference import fedrod as fedrod_client
from tests.reference import gpfl as gpfl_client
from tests.reference import one_architecture as steps
from tests.reference import server_optimizers
from tests.reference.one_architecture import Model


class Form(NamedTuple):
    """A method, as functions of a server's state and of one client's.

    Attributes:
      client: (server, client, batches) -> (client, upload); a client is None before its first round.
      server: (server, {id: upload}, {id: samples}, number of all clients) -> server.
    """

    client: Callable[[Any, Any, list], tuple[Any, Any]]
    server: Callable[[Any, dict, dict, int], Any]


def play(form: Form, server, clients: dict, rounds: list[list[int]], batches: dict) -> tuple:
    """Plays rounds, each a list of its participants' ids; returns the server's state and the
    clients' states."""
    samples = {i: sum(len(y) for _, y in of_client) for i, of_client in batches.items()}
    for ids in rounds:
        uploads = {}
        for i in ids:
            clients[i], uploads[i] = form.client(server, clients[i], batches[i])
        server = form.server(server, uploads, samples, len(batches))
    return server, clients


def mean(server: Model, uploads: dict, samples: dict, clients: int) -> Model:
    """The mean of models by samples; arrays that nobody sends stay."""
    total, new = sum(samples[i] for i in uploads), dict(server)
    for name in next(iter(uploads.values())):
        new[name] = sum(samples[i] / total * upload[name] for i, upload in uploads.items())
    return new


def fedprox(lr: float, mu: float) -> Form:
    def client(w, _, batches):
        trained = steps.fedprox(w, batches, lr, mu)
        return trained, trained

    return Form(client, mean)


def perfedavg(lr: float, alpha: float, hessian: bool) -> Form:
    def client(w, _, batches):
        return (), steps.perfedavg(w, batches, lr, alpha, hessian)

    return Form(client, mean)


def received_loss(w: Model, batches) -> float:
    """The mean loss of a model over a client's samples."""
    x, y = (np.concatenate(part) for part in zip(*batches))
    return steps.linear_client.loss(w, x, y)


def qfedavg(lr: float, q: float, lipschitz: float) -> Form:
    """An upload is (D_i, h_i) of Li et al., Algorithm 2."""

    def client(w, _, batches):
        loss, trained = received_loss(w, batches), steps.fedprox(w, batches, lr, 0.0)
        slope = {k: lipschitz * (w[k] - trained[k]) for k in w}
        square = sum((v**2).sum() for v in slope.values())
        curvature = q * loss ** (q - 1) * square + lipschitz * loss**q
        return (), ({k: loss**q * v for k, v in slope.items()}, curvature)

    def serve(w, uploads, samples, clients):
        total = sum(curvature for _, curvature in uploads.values())
        return {k: w[k] - sum(step[k] for step, _ in uploads.values()) / total for k in w}

    return Form(client, serve)


def onto_simplex(values: np.ndarray) -> np.ndarray:
    """The nearest shares that sum to 1: max(v - t, 0), with t by bisection."""
    low, high = values.min() - 1, values.max()
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.maximum(values - t, 0).sum() > 1 else (low, t)
    return np.maximum(values - t, 0)


def agnostic(lr: float, rate: float) -> Form:
    """A server is (w, lam)."""

    def client(server, _, batches):
        w = server[0]
        return (), (steps.fedprox(w, batches, lr, 0.0), received_loss(w, batches))

    def serve(server, uploads, samples, clients):
        w, lam = server
        total, raised = sum(lam[i] for i in uploads), lam.copy()
        for i, (_, loss) in uploads.items():
            raised[i] += rate * loss
        if total > 0:
            w = {k: sum(lam[i] / total * u[k] for i, (u, _) in uploads.items()) for k in w}
        return w, onto_simplex(raised)

    return Form(client, serve)


def fedbabu(lr: float) -> Form:
    """Uploads are extractors, whose mean is uniform."""

    def client(w, _, batches):
        trained = steps.of_part(w, "base", batches, lr)
        return (), {k: v for k, v in trained.items() if k.startswith("base")}

    def serve(w, uploads, samples, clients):
        return mean(w, uploads, dict.fromkeys(uploads, 1), clients)

    return Form(client, serve)


def optimized(form: Form, name: str, **numbers) -> Form:
    """A server optimiser around a form whose server is a model; a server is (w, the changes of each
    round so far, by array)."""

    def client(server, kept, batches):
        return form.client(server[0], kept, batches)

    def serve(server, uploads, samples, clients):
        w, changes = server
        new = form.server(w, uploads, samples, clients)
        changes = {k: [*changes.get(k, []), new[k] - w[k]] for k in w}
        moved = {}
        for k, deltas in changes.items():
            way = server_optimizers.play(name, np.zeros_like(w[k]), deltas, **numbers)
            before = server_optimizers.play(name, np.zeros_like(w[k]), deltas[:-1], **numbers)
            moved[k] = w[k] + way - before
        return moved, changes

    return Form(client, serve)


def scaffold(lr: float) -> Form:
    """A server is (w, c), a client its c_i."""

    def client(server, control, batches):
        w, c = server
        way, change = steps.scaffold(w, c, control, batches, lr)
        return {k: control[k] + change[k] for k in control}, (way, change)

    def serve(server, uploads, samples, clients):
        w, c = server
        ways, changes = zip(*uploads.values())
        w = {k: w[k] + np.mean([way[k] for way in ways], axis=0) for k in w}
        return w, {k: c[k] + sum(change[k] for change in changes) / clients for k in c}

    return Form(client, serve)


def feddyn(lr: float, alpha: float) -> Form:
    """A server is (w, h), a client its s_i."""

    def client(server, slope, batches):
        trained, slope = steps.feddyn(server[0], slope, batches, lr, alpha)
        return slope, trained

    def serve(server, uploads, samples, clients):
        return steps.feddyn_server(*server, list(uploads.values()), clients, alpha)

    return Form(client, serve)


def ditto(lr: float, lam: float) -> Form:
    """A client is its v_i, at first the server's model."""

    def client(w, v, batches):
        trained = steps.ditto(w if v is None else v, w, batches, lr, lam)
        return trained, steps.fedprox(w, batches, lr, 0.0)

    return Form(client, mean)


def pfedme(lr: float, beta: float, **numbers) -> Form:
    """A client is its theta."""

    def client(w, _, batches):
        return steps.pfedme(w, batches, lr, **numbers)

    def serve(w, uploads, samples, clients):
        averaged = mean(w, uploads, samples, clients)
        return {k: (1 - beta) * w[k] + beta * averaged[k] for k in w}

    return Form(client, serve)


def fedamp(lr: float, lam: float, alpha: float, sigma: float) -> Form:
    """A server is {id: w_i}; a client is (its id, its w_i, at first None)."""

    def client(models, kept, batches):
        i, w = kept
        u = steps.attentive_mean(models, i, alpha, sigma)
        trained = steps.ditto(u if w is None else w, u, batches, lr, lam / alpha)
        return (i, trained), trained

    def serve(models, uploads, samples, clients):
        return models | uploads

    return Form(client, serve)


def apfl(lr: float, share: float) -> Form:
    """A client is (v_i, alpha_i), at first the server's model and `share`."""

    def client(w, kept, batches):
        v, alpha = (w, share) if kept is None else kept
        v, trained, alpha = steps.apfl(v, w, alpha, batches, lr)
        return (v, alpha), trained

    return Form(client, mean)


def fedrep(lr: float, head_epochs: int) -> Form:
    """A client is its whole model, of which the server has the extractor."""

    def client(base, kept, batches):
        model = steps.of_part(kept | base, "head", batches * head_epochs, lr)
        model = steps.of_part(model, "base", batches, lr)
        return model, {k: v for k, v in model.items() if k.startswith("base")}

    return Form(client, mean)


def feddbe(lr: float, kappa: float, momentum: float) -> Form:
    """A server is (w, rbar or None), a client its bias."""

    def client(server, bias, batches):
        w, target = server
        trained, bias, running = feddbe_client.train(w, bias, batches, lr, kappa, momentum, target)
        return bias, {"mean": running} if target is None else trained

    def serve(server, uploads, samples, clients):
        w, target = server
        if target is None:
            return w, mean({}, uploads, samples, clients)["mean"]
        return mean(w, uploads, samples, clients), target

    return Form(client, serve)


def fedrod(lr: float, gamma: float) -> Form:
    """A client is its own head, at first the server's."""

    def client(w, own, batches):
        if own is None:
            own = {"kernel": w["head_kernel"], "bias": w["head_bias"]}
        trained, own = fedrod_client.train(w, own, batches, lr, gamma)
        return own, trained

    return Form(client, mean)


def gpfl(lr: float, lam: float, mu: float) -> Form:
    """A server is (shared parameters, round), a client (its head, its embeddings or None)."""

    def client(server, kept, batches):
        (shared, round), (head, own) = server, kept
        labels = np.concatenate([y for _, y in batches])
        embeddings = shared["embeddings"] if own is None else own
        counts = np.bincount(labels, minlength=len(embeddings))
        general, personal = gpfl_client.conditions(embeddings, counts)
        if round == 0:
            general, personal = 0 * general, 0 * personal
        trained, head = gpfl_client.train(
            shared, head, batches, general=general, personal=personal, lr=lr, lam=lam, mu=mu
        )
        return (head, trained["embeddings"]), trained

    def serve(server, uploads, samples, clients):
        return mean(server[0], uploads, samples, clients), server[1] + 1

    return Form(client, serve)


def fedcp(lr: float, lam: float, noise: Callable) -> Form:
    """A client is (its head, at first None; the context drawn for its first round)."""

    def client(w, kept, batches):
        head, context = kept
        if head is None:
            head = {k: v for k, v in w.items() if k.startswith("head")}
        else:
            context = head["head_kernel"].sum(1)
        trained = fedcp_client.train(w | head, w, context, batches, lr=lr, lam=lam, noise=noise)
        head = {k: v for k, v in trained.items() if k.startswith("head")}
        halves = {k: (v + w[k]) / 2 for k, v in head.items()}
        return (head, context), trained | halves

    return Form(client, mean)
