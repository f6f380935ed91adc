"""Federations of clients on their own machines, by Flower; see docs/deploy.md.

command                 the commands split, keys, server and client
plan                    the config, method and models that both sides share
server, rounds, replies the server, its rounds with checkpoints and tables, its requests to clients
client                  a client: its samples and programs, its answers and states
messages                messages as arrays and headers, and the checks on them
secure_sums, masking    secure sums: which uplinks they add, and a client's half of one
noise                   differential privacy: who adds noise, and its cost so far
samples                 a client's samples and the public set in files
flower                  messages and secure sums by Flower
link, gate, mailbox     the server's end of the wire, who is admitted, and the open exchanges
node, keys              a client's end of the wire, and its keys
audit                   the log of either side
"""
