"""The work of ledgers, here and in processes that are killed or meet at one file."""

import os
import signal
import threading


def square(job):
    """The work of these tests. A job with a `log` notes there that it was begun."""
    if "log" in job:
        with open(job["log"], "a") as log:
            log.write(f"{job['n']}\n")
    if job["n"] == job.get("wrong"):
        raise ValueError(f"{job['n']} is not to be squared")
    if job["n"] == job.get("missing"):
        raise FileNotFoundError("no data")
    if job["n"] == job.get("broken"):
        raise KeyError(job["n"])
    if job["n"] == job.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": job["n"] ** 2}


def slow_square(job):
    """The work of the ledger test: what was begun is noted, as soon as it is."""
    with open(job["log"], "a") as log:
        log.write(f"{job['n']}\n")
    threading.Event().wait(0.02)
    return {"square": job["n"] ** 2}
