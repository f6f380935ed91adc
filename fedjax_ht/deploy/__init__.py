"""Federations whose clients are on machines of their own, by Flower; see docs/deploy.md.

command                 what the commands split, server and client do
plan                    the config, method and models that both sides have
server, rounds          the server, its rounds with checkpoints and tables, its requests to clients
client                  a client: its samples and programs, its answers and states
messages                messages as arrays and headers, and what of them is trusted
secure_sums, masking    sums of uplinks alone: which, and a client's part
noise                   differential privacy: who adds noise, and what it has cost
samples                 a client's samples and the public set in files
flower                  messages and secure sums by Flower
link, gate              the server's end of the wire, and who is let in
node                    a client's end of the wire
"""
