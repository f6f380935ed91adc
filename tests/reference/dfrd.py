"""The losses of DFRD, DENSE and FedFTG, the teachers' weights, and the conditional generator, one
sample at a time."""

import numpy as np

from tests.reference.classification import kl, log_softmax
from tests.reference.conv import conv_transpose2d


def selected(teacher: np.ndarray, student: np.ndarray, labels, selection: str) -> list[int]:
    """The samples that count."""
    chosen = []
    for b, label in enumerate(labels):
        teacher_class, student_class = teacher[b].argmax(), student[b].argmax()
        if {
            "diamond": teacher_class == label and student_class != label,
            "triangle": True,
            "nabla": teacher_class != student_class,
            "xor": (teacher_class == label) != (student_class == label),
        }[selection]:
            chosen.append(b)
    return chosen


def l_tran(teacher, student, labels, selection: str = "diamond") -> float:
    """Eq. 3, as printed: the mean over the batch of -epsilon KL(ensemble, global), epsilon 1 for
    the samples of the selection and 0 for others. Without temperature; both networks see the
    images."""
    total = 0.0
    for b in range(len(labels)):
        epsilon = 1.0 if b in selected(teacher, student, labels, selection) else 0.0
        total += -epsilon * kl(teacher[b], student[b])
    return total / len(labels)


def transferability(
    teacher,
    student,
    labels,
    selection: str,
    temperature: float,
    order="student_teacher",
    normaliser="selected",
) -> float:
    """Minus the mean over the selected samples, or their sum by the batch, of a KL in one order; 0
    without any. By default the released code's."""
    total, chosen = 0.0, selected(teacher, student, labels, selection)
    for b in chosen:
        of_teacher, of_student = teacher[b] / temperature, student[b] / temperature
        total += (
            kl(of_teacher, of_student) if order == "teacher_student" else kl(of_student, of_teacher)
        )
    return -total / (len(labels) if normaliser == "batch" else max(len(chosen), 1))


def disagreement(teacher, student) -> float:
    """DENSE's own: -mean over all samples of KL(teacher || student), 0 where they agree."""
    return -float(
        np.mean([kl(t, s) if t.argmax() != s.argmax() else 0.0 for t, s in zip(teacher, student)])
    )


def diversity(images: np.ndarray, noise: np.ndarray, form: str) -> float:
    """exp(-mean over pairs of products of mean squares, or of their roots)."""

    def distance(a, b) -> float:
        squared = np.mean((a - b) ** 2)
        return squared if form == "squares" else np.sqrt(max(squared, 1e-12))

    n = len(images)
    pairs = [(j, k) for j in range(n) for k in range(n)]
    return float(
        np.exp(
            -np.mean(
                [distance(images[j], images[k]) * distance(noise[j], noise[k]) for j, k in pairs]
            )
        )
    )


def l_div(images: np.ndarray, merged: np.ndarray) -> float:
    """Eq. 4, as printed: exp(-sum over pairs of |s_j - s_k| |h_j - h_k| / B^2), norms of whole
    images and vectors."""
    n, total = len(images), 0.0
    for j in range(n):
        for k in range(n):
            total += np.sqrt(np.sum((images[j] - images[k]) ** 2)) * np.sqrt(
                np.sum((merged[j] - merged[k]) ** 2)
            )
    return float(np.exp(-total / n**2))


def generator_loss(each, tau, student, labels, images, merged) -> float:
    """Eq. 5 with both weights 1 over Eqs. 2 to 4, but for the norms of L_div, which are divided by
    sqrt(n)."""
    u = np.einsum("nb,nbc->bc", tau, each)
    fidelity = float(np.mean([-log_softmax(u[b])[labels[b]] for b in range(len(labels))]))
    shrunk = images / np.sqrt(images[0].size), merged / np.sqrt(merged[0].size)
    return fidelity + l_tran(u, student, labels) + l_div(*shrunk)


def global_loss(each, tau, student) -> float:
    """Eq. 7 on the generator's images, as printed: KL(global, ensemble), a mean over the batch."""
    u = np.einsum("nb,nbc->bc", tau, each)
    return float(np.mean([kl(student[b], u[b]) for b in range(len(student))]))


def aggregate(params: list[np.ndarray], samples: list[int]) -> np.ndarray:
    """Eq. 1 for one entry that these clients hold: the mean by p_i, in proportion to the size of
    their data."""
    return sum(n * p for n, p in zip(samples, params)) / sum(samples)


def embedding_excess(embedding: np.ndarray, bound: float) -> float:
    return float(
        np.mean([max(np.sqrt(np.sum(e**2)) - bound * np.sqrt(len(e)), 0.0) for e in embedding])
    )


def moment_distance(moments: np.ndarray, target: np.ndarray) -> float:
    """Computes the distance of one layer's moments [2, K] at one client from the target."""
    return float(np.linalg.norm(moments[0] - target[0]) + np.linalg.norm(moments[1] - target[1]))


def weighted_cross_entropy(logits, labels, weights) -> float:
    """logits [N, B, C], weights [N, B]."""
    clients, batch, _ = logits.shape
    total = sum(
        -weights[i, b] * log_softmax(logits[i, b])[labels[b]]
        for i in range(clients)
        for b in range(batch)
    )
    return float(total / batch)


def weighted_kl(p_logits, q_logits, weights) -> float:
    """Weighted KL divergences of logits [N, B, C], weights [N, B], summed over N; mean over B."""
    clients, batch = weights.shape
    total = sum(
        weights[i, b] * kl(p_logits[i, b], q_logits[i, b])
        for i in range(clients)
        for b in range(batch)
    )
    return float(total / batch)


def label_weights(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """tau [N, C] and p [C] from counts [N, C]; a class without samples weighs all clients alike."""
    clients, classes = counts.shape
    tau = np.zeros(counts.shape)
    for i, y in np.ndindex(clients, classes):
        tau[i, y] = counts[i, y] / counts[:, y].sum() if counts[:, y].sum() else 1 / clients
    return tau, counts.sum(0) / counts.sum()


def generate(
    variables: dict, noise: np.ndarray, labels, merge: str, shape: tuple[int, int, int]
) -> np.ndarray:
    """The generator with running statistics: convolutions "conv1", ...; norms "norm2", ... between
    the first and the last; the images' middle."""
    params, stats = variables["params"], variables["batch_stats"]
    classes = labels.max() + 1
    embedding = params["embedding"][labels] if "embedding" in params else None
    x = {
        "mul": lambda: noise * embedding,
        "add": lambda: noise + embedding,
        "cat": lambda: np.concatenate([noise, embedding], 1),
        "ncat": lambda: np.concatenate([noise, np.eye(classes)[labels]], 1),
        "none": lambda: noise,
    }[merge]()[:, None, None]
    layers = sum(name.startswith("conv") for name in params)
    for i in range(1, layers + 1):
        x = conv_transpose2d(x, params[f"conv{i}"]["kernel"], *((1, 0) if i == 1 else (2, 1)))
        if 1 < i < layers:
            norm, seen = params[f"norm{i}"], stats[f"norm{i}"]
            x = (x - seen["mean"]) / np.sqrt(seen["var"] + 1e-5) * norm["scale"] + norm["bias"]
        x = np.tanh(x) if i == layers else np.maximum(x, 0)
    top, left = (x.shape[1] - shape[0]) // 2, (x.shape[2] - shape[1]) // 2
    return x[:, top : top + shape[0], left : left + shape[1]]


def student_loss(method: str, each, tau, student, temperature: float, squared: bool) -> float:
    """Computes the global model's loss from each [N, B, C], tau [N, B] and student [B, C]."""
    scale = temperature**2 if squared else 1.0
    if method == "fedftg":
        return (
            scale
            * weighted_kl(
                each / temperature, np.broadcast_to(student, each.shape) / temperature, tau
            )
            / student.shape[1]
        )
    u = np.einsum("nb,nbc->bc", tau, each)
    return scale * float(
        np.mean([kl(t / temperature, s / temperature) for t, s in zip(u, student)])
    )


def adversarial_loss(
    method: str, each, tau, student, labels, temperature: float, squared: bool
) -> float:
    """The part of the generator's loss that is at a temperature, with weight 1."""
    scale = temperature**2 if squared else 1.0
    if method == "fedftg":
        students = np.broadcast_to(student, each.shape)
        return (
            -scale * weighted_kl(students / temperature, each / temperature, tau) / student.shape[1]
        )
    u = np.einsum("nb,nbc->bc", tau, each)
    return scale * transferability(
        u, student, labels, {"dfrd": "diamond", "dense": "xor"}[method], temperature
    )
