"""Tessera beside its peers: what is measured, how, and how it is told.

1. `families.load` names the workloads: a statement of ours, the same work of each peer, and the bytes or operations
   that it needs.
2. `run.measure` starts both sides (`ours.Bench`, a process of `tessera bench --turns`; `peers.Worker`, a process of
   Python), lets them take turns and gives a `report.Row`.
3. `limits.Limits` measures what the machine can do, in the same run.
4. `report` prints the rows, keeps them as JSON and writes the table of a page of results.
"""
