"""Results of a ledger that several versions of the code filled: what an earlier one trained, and no change has touched, stands."""

import json
from pathlib import Path

from reproduction.ledger import job_key


def newest(path: Path, jobs: list, by: str = "row") -> tuple[list, dict]:
    """`{**job, **outcome}` of every job by the last line about it, whatever the code; and what each code trained, by a field."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    last = {job_key(entry["task"]): entry["result"] for entry in lines}
    if missing := [job for job in jobs if job_key(job) not in last]:
        raise SystemExit(f"{path}: no line about {json.dumps(missing[0])}; {len(missing)} of {len(jobs)} are missing")
    records, codes = [{**job, **last[job_key(job)]} for job in jobs], {}
    for record in records:
        codes.setdefault(record["code"], {})[record[by]] = None
    return records, {code: list(found) for code, found in codes.items()}
