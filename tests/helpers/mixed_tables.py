"""A generated table of nodes with columns of every kind."""

import csv
import datetime
import random

MIXED = ("id", "label", "age", "income", "fee", "share", "joined", "plan", "active", "bio", "email")


def mixed_rows(n, seed=0):
    """Rows of a table of customers in three classes: ages, skewed money, dates, categories, text, and missing cells."""
    draw = random.Random(seed)
    words = ("graph", "label", "money", "tree", "bank", "river", "north", "south")
    for i in range(n):
        c = draw.randrange(3)
        income = draw.lognormvariate(9 + c, 1.5)
        joined = datetime.date(2020, 1, 1) + datetime.timedelta(days=draw.randrange(900))
        plan = draw.choices(("free", "pro", "team"), [1 + 4 * (c == k) for k in range(3)])[0]
        yield (
            f"u{i:04d}",
            "abc"[c] if draw.random() < 0.5 else "",
            f"{draw.gauss(30 + 5 * c, 8):.1f}",
            "" if draw.random() < 0.1 else f"{income:.2f}",
            f"${income / 7:,.2f}",
            f"{draw.randrange(100)} %",
            "" if draw.random() < 0.05 else joined.isoformat(),
            "" if draw.random() < 0.05 else plan,
            draw.choice(("yes", "no")),
            f"{' '.join(draw.choices(words, k=4))} {i}",
            f"u{i}@x.org",
        )


def write_mixed(folder, rows, names=MIXED):
    """A folder with a table of nodes, and a ring and as many chords as edges."""
    rows = list(rows)
    folder.mkdir(exist_ok=True)
    with open(folder / "nodes.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    ids = [row[0] for row in rows]
    edges = [(ids[i], ids[(i + step) % len(ids)]) for i in range(len(ids)) for step in (1, 7)]
    with open(folder / "edges.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *edges])
    return folder
