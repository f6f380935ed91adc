"""Lines on clients that are not finite or send outliers, and on a run in which nothing arrives any
more."""

from collections.abc import Hashable, Iterable, Sequence

from fedjax_ht.simulation.history import Row, by_trial, silent


def why_silent(name: str, history: Sequence[Row], rounds: int) -> str | None:
    """One line where nothing arrived in the last rounds of every trial: since when, and who had
    sent what."""
    trials = by_trial(history)
    if not all(silent(trial, rounds) for trial in trials):
        return None
    heard = max((row["round"] for row in history if row.get("arrived")), default=0)
    told = next(
        (row for row in reversed(history) if row.get("far_off") and row["round"] <= heard), None
    )
    late = any(row.get("late") for row in history if row["round"] > heard)
    wanted = "finite and in time" if late else "finite"
    who = f"in round {told['round']} {far_words(told['far_off'])} what is usual; " if told else ""
    return (
        f"{name} stopped in round {history[-1]['round']}: since round {heard} nothing has arrived "
        f"that is {wanted}; "
        f"{who}a larger give_up goes on, robust defends the server"
    )


def far_words(far_off: Sequence[Sequence[float]]) -> str:
    """ "client 3 sent 1e+30 times" and the like."""
    return ", ".join(
        f"client {int(client)} sent {times:.3g} times" for client, times in far_off[:3]
    )


class Notes:
    """Tells what went wrong in the rounds of a run, every client once a trial and kind."""

    def __init__(self):
        self.told: set[Hashable] = set()

    def of(self, label: str, row: Row) -> list[str]:
        """Returns a line for each kind of trouble that a row has and no earlier row had, []
        mostly."""
        lines = []
        if clients := self._new(label, row, "client", row.get("not_finite", ())):
            ids = ", ".join(map(str, clients))
            lines.append(
                f"not finite, left out of the round: client{'s' * (len(clients) > 1)} {ids}"
            )
        if not row.get("server_finite", True) and self._new(label, row, "server", [0]):
            lines.append("the server's step was not finite; its last state was kept")
        factors = {int(client): times for client, times in row.get("far_off", ())}
        if clients := self._new(label, row, "upload", factors):
            outliers = ", ".join(f"client {i} ({factors[i]:.3g}x what is usual)" for i in clients)
            lines.append(f"outlying uploads: {outliers}")
        if clients := self._new(label, row, "refused", row.get("refused", ())):
            ids = ", ".join(map(str, clients))
            lines.append(f"outlying uploads refused, by refuse_outliers: {ids}")
        return lines

    def _new(self, label: str, row: Row, kind: str, ids: Iterable[int]) -> list[int]:
        keys = {i: (label, row["trial"], kind, i) for i in ids}
        new = [i for i, key in keys.items() if key not in self.told]
        self.told.update(keys.values())
        return new


def place_of(label: str, row: Row, trials: int) -> str:
    """Names an entry's round, and of several trials the trial."""
    trial = f", trial {row['trial']}" if trials > 1 else ""
    return f"{label}{trial}, round {row['round']}"
