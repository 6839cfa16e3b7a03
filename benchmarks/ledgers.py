"""Results of a ledger that several versions of the code filled: what an earlier one trained, and no change has touched, stands."""

import json
from pathlib import Path

from gcn_lpa.runs.ledger import job_key


def newest(path: Path, jobs: list) -> tuple[list, dict]:
    """`{**job, **outcome}` of every job by the last line about it, whatever the code; and the rows that each code trained."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    last = {job_key(entry["task"]): entry["result"] for entry in lines}
    if missing := [job for job in jobs if job_key(job) not in last]:
        raise SystemExit(
            f"{path} has no line about {json.dumps(missing[0])}, and {len(missing)} of {len(jobs)} are missing"
        )
    records = [{**job, **last[job_key(job)]} for job in jobs]
    rows = {
        code: dict.fromkeys(record["row"] for record in records if record["code"] == code) for code in codes(records)
    }
    return records, {code: list(found) for code, found in rows.items()}


def codes(records: list) -> list:
    return list(dict.fromkeys(record["code"] for record in records))
