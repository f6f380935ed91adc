"""A federation over rounds: states, participants, transports and reports."""
