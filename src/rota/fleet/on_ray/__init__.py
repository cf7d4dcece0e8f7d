"""Runs on a Ray cluster: `runner = "ray"`.

    supervisor process                          driver process                    nodes of the cluster
    RayLoop    claims what fits      ─socket─▶  driver.py  submits tasks   ─Ray─▶ task.py  runs the function or program
    RayRuns    one collector thread  ◀────────             reads the mailbox ◀──▶ mailbox.py  messages while it runs

Only the driver process loads Ray and connects to the cluster. Ray ends a process that loses its cluster, and cannot
disconnect from one that is gone; so a process of its own is killed and replaced, and the supervisor with its local runs
goes on. The reaper starts it, so it never outlives its supervisor.

Ray places what is submitted. What is submitted, and when, is decided here: an entry is claimed by the policy of the
store and submitted when the cluster has room for it (room.py).
"""
