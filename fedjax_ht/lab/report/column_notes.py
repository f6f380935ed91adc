"""The meaning of the columns of tables, in words."""

from collections.abc import Sequence

from fedjax_ht.lab.report.document import Paragraph

PARTICIPANTS_NOTE = """\
"participants": the mean over one round's participants, freshly trained, in the round where it is \
highest. FedSSA's code reports this score; as a maximum over rounds and over draws of participants \
it is biased upwards (docs/results.md)."""

NOTES = {
    "macro F1 %": """\
"macro F1": of a client the mean of the F1 of the classes that its test samples or its predictions \
have, in the round of the accuracy beside it; as a mean over clients.""",
    "AUC %": """\
"AUC": of a client the mean, over the classes of its test samples, of the area under the ROC curve \
of the class against the others, by the scores that predictions are chosen by, in the round of the \
accuracy beside it; as a mean over the clients with test samples of two classes or more.""",
    "participants %": PARTICIPANTS_NOTE,
}
"""Title of a column -> its meaning."""


def column_notes(titles: Sequence[str]) -> dict[str, Paragraph]:
    """Returns the notes on those of the columns that have one, by title."""
    return {title: Paragraph(note) for title, note in NOTES.items() if title in titles}


def explanation(with_server: bool, several: bool) -> str:
    """Explains the columns of a comparison.

    Args:
      with_server: True if there is a column of the server's own model.
      several: True if there are several trials.
    """
    accuracy = "Accuracies are those of the best round on the test sets"
    costs = (
        "Bytes are those of all clients, up and down, and FLOPs those of all clients' training, "
        "through the first evaluation at or above the target"
    )
    seconds = "Seconds are the median round, and the whole run with evaluation and compilation"
    client = (
        "One client's cost is counted as FedSSA and FedRAL do: the rounds to the target times what "
        "one participant uploads (numbers of payload, one way) and computes in a round"
    )
    if several:
        accuracy += ", mean and standard deviation over trials"
        costs += ", as means over the trials that got there"
        seconds += ", of all trials together"
    if with_server:
        accuracy += "; of the server's own model, on all test samples and in its own best round"
    return f"{accuracy}. {costs}. {seconds}. {client}."
