"""What is said of clients that send what is far off, and of a run in which nothing arrives any more."""

from collections.abc import Sequence

from fedjax_ht.simulation.history import Row, by_trial, silent


def why_silent(name: str, history: Sequence[Row], rounds: int) -> str | None:
    """One line where nothing arrived in the last rounds of every trial: since when, and who had sent what."""
    trials = by_trial(history)
    if not all(silent(trial, rounds) for trial in trials):
        return None
    heard = max((row["round"] for row in history if row.get("arrived")), default=0)
    told = next((row for row in reversed(history) if row.get("far_off") and row["round"] <= heard), None)
    late = any(row.get("late") for row in history if row["round"] > heard)
    wanted = "finite and in time" if late else "finite"
    who = f"in round {told['round']} {far_words(told['far_off'])} what is usual; " if told else ""
    return (
        f"{name} stopped in round {history[-1]['round']}: since round {heard} nothing has arrived that is {wanted}; "
        f"{who}a larger give_up goes on, robust defends the server"
    )


def far_words(far_off: Sequence[Sequence[float]]) -> str:
    """ "client 3 sent 1e+30 times" and the like."""
    return ", ".join(f"client {int(client)} sent {times:.3g} times" for client, times in far_off[:3])
