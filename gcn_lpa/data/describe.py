"""Facts about a graph before training: sizes, classes, homophily, reach; and warnings about what may not be meant as read."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from gcn_lpa.data.checks import NO_LABEL, UNKNOWN, WARNING, is_missing, some, type_word
from gcn_lpa.data.table import USUAL_NAMES, Table, is_text, number, series
from gcn_lpa.engine.sparse import SparseMatrix

if TYPE_CHECKING:
    from gcn_lpa.data.column_types import ColumnSummary
    from gcn_lpa.graph import Graph


@dataclass(frozen=True)
class GraphInfo:
    """What `describe` counts. Rates and homophilies are None where no edge or no label defines them."""

    name: str
    nodes: int
    edges: int  # without self-loops
    directed: bool
    self_loops: int
    features: int
    feature_kind: str
    nonzeros: int
    classes: int
    class_sizes: dict[str, int]
    labeled: int
    labels: str  # how many there are of what
    labeled_edges: int  # between two labelled nodes: those that homophilies are counted over
    intra_class_edge_rate: float | None  # as the paper counts, over all edges: a node without label as class 0
    edge_homophily: float | None  # the share of labelled edges that join one class
    node_homophily: float | None  # mean over nodes of the share of their neighbours in their class
    adjusted_homophily: float | None  # edge homophily less what class sizes alone would give; 1 perfect, 0 none
    components: int
    isolated: int  # nodes without a neighbour but themselves
    unreachable: int  # nodes to which no label can travel
    notes: tuple[str, ...]
    columns: tuple[ColumnSummary, ...] = ()  # what was made of each column of a table of nodes
    edge_columns: tuple[str, ...] = ()  # what was read of each column of the edges
    numbers: tuple[float, float, float] | None = None  # least, median and greatest label, where labels are numbers


@dataclass(frozen=True)
class Homophily:
    """How often edges join nodes of one class, over the edges whose two ends are labelled; None where there is none."""

    edges: int  # between two labelled nodes, self-loops aside; an undirected edge counts once
    rate: float | None  # edge homophily: the share of them that join one class
    chance: float | None  # the rate if the same ends were joined at random
    node: float | None  # mean over nodes of the share of their labelled neighbours in their class
    adjusted: float | None  # (rate - chance) / (1 - chance): 1 perfect, 0 none; None too where chance is 1

    def __str__(self) -> str:
        if self.rate is None:
            return "no edge joins two labelled nodes"
        return f"{100 * self.rate:.1f} % of the {self.edges:,} edge{'s' * (self.edges > 1)} between labelled nodes join one class"


def describe(graph: Graph) -> GraphInfo:
    """Counts and rates of a graph, as `gcn-lpa info` prints them."""
    from scipy.sparse import csgraph  # takes a tenth of a second

    y, labeled = graph.target.classes(graph.y), graph.labeled.cpu().numpy()
    row, col = _proper_entries(graph)
    measured = homophily(graph)
    sizes = np.bincount(y[y >= 0], minlength=graph.num_classes)
    has_neighbour = np.zeros(graph.num_nodes, dtype=bool)
    has_neighbour[row] = has_neighbour[col] = True
    filled = np.maximum(y, 0)
    stored = graph.x.values if isinstance(graph.x, SparseMatrix) else graph.x
    matrix = graph.adjacency.to_scipy()
    return GraphInfo(
        name=graph.name,
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        directed=graph.directed,
        self_loops=graph.num_self_loops,
        features=graph.num_features,
        feature_kind=f"{graph.x_kind}, {'sparse' if isinstance(graph.x, SparseMatrix) else 'dense'}",
        nonzeros=int(stored.count_nonzero()),
        classes=graph.num_classes,
        class_sizes=dict(zip(graph.class_names, sizes.tolist(), strict=True)),
        labeled=int(labeled.sum()),
        labels=graph.target.summary(graph.y),
        labeled_edges=measured.edges,
        intra_class_edge_rate=float((filled[row] == filled[col]).mean()) if len(row) and (y >= 0).any() else None,
        edge_homophily=measured.rate,
        node_homophily=measured.node,
        adjusted_homophily=measured.adjusted,
        components=int(csgraph.connected_components(matrix, directed=graph.directed, return_labels=False)),
        isolated=int((~has_neighbour).sum()),
        unreachable=int(np.isinf(node_hops(graph, labeled)).sum()),
        notes=graph.notes,
        columns=() if graph.columns is None else graph.columns.summaries(),
        edge_columns=() if graph.edge_columns is None else graph.edge_columns.functions.summaries(),
        numbers=graph.target.quartiles(graph.y),
    )


def homophily(graph: Graph) -> Homophily:
    """Edge, node and adjusted homophily as in Platonov et al. (2023), unweighted."""
    y = graph.target.classes(graph.y)
    row, col = _proper_entries(graph)
    known = (y[row] >= 0) & (y[col] >= 0)
    row, col = row[known], col[known]
    if len(row) == 0:
        return Homophily(0, None, None, None, None)
    same = y[row] == y[col]
    rate = float(same.mean())
    ends = np.bincount(np.concatenate([y[row], y[col]]))
    chance = float(np.square(ends / ends.sum()).sum())
    degree = np.bincount(row)
    per_node = np.bincount(row, weights=same)[degree > 0] / degree[degree > 0]
    adjusted = (rate - chance) / (1 - chance) if chance < 1 else None
    num_edges = len(row) if graph.directed else len(row) // 2
    return Homophily(num_edges, rate, chance, float(per_node.mean()), adjusted)


def _proper_entries(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every entry of the adjacency but the self-loops."""
    row, col = graph.row.cpu().numpy(), graph.col.cpu().numpy()
    proper = row != col
    return row[proper], col[proper]


def edge_ends(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of every edge, source and target; an undirected one once, self-loops left out."""
    target, source = _proper_entries(graph)
    if graph.directed:
        return source, target
    once = target < source
    return target[once], source[once]


def node_hops(graph: Graph, given: Tensor | np.ndarray) -> np.ndarray:
    """The number of edges from the nearest given node to each node, in the direction of messages; inf: no way, [n].

    Args:
        given: a boolean mask of the nodes, or their positions.
    """
    hops = _hops(graph, given).double()
    return torch.where(hops < 0, torch.inf, hops).numpy()


def unreachable(graph: Graph, given: Tensor | np.ndarray) -> Tensor:
    """The nodes to which no given node has a way, a mask [n]; `given` as in `node_hops`."""
    return _hops(graph, given) < 0


def _hops(graph: Graph, given: Tensor | np.ndarray) -> Tensor:
    from gcn_lpa.engine.cpu_kernels import breadth_first  # imports Numba

    nodes = torch.as_tensor(given).cpu()
    starts = nodes.nonzero().squeeze(1) if nodes.dtype == torch.bool else nodes.long().unique()
    return breadth_first(graph.pattern.T if graph.directed else graph.pattern, starts)  # rows of the transpose: who receives


def html_table(caption: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A caption above a table, for notebooks; every text is escaped. Without a header the first cell of a row is its name."""

    def cell(value: object, tag: str) -> str:
        text = "–" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)
        return f'<{tag} style="text-align:left">{escape(text)}</{tag}>'

    head = f"<thead><tr>{''.join(cell(name, 'th') for name in header)}</tr></thead>" if header else ""
    lines = ("".join(cell(value, "td" if header or k else "th") for k, value in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><p><b>{escape(caption)}</b></p><table>{head}<tbody>{body}</tbody></table></div>"


def html_notes(notes: Iterable[str]) -> str:
    """A paragraph for each note."""
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


MOST_CLASSES = 200  # that are compared with each other
MANY_NUMBERS = 20  # classes that are whole numbers: more may be meant as numbers
MANY_FRACTIONS, NODES_PER_NUMBER = 10, 5  # different labels that are numbers, and how often each whole one may occur
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
ORDERED = (
    "none tiny very-low low small medium middle moderate high large very-high very-large poor fair good very-good excellent never "
    "rarely sometimes often always mild severe 1st 2nd 3rd 4th 5th"
)
RANGE = re.compile(r"[<>≤≥]=?\s*\d[\d.,]*|\d[\d.,]*\s*((-|–|to)\s*\d[\d.,]*|\+)")  # such as 10-20, > 50 or 50+
RARER = 10  # how many times rarer than the class it may be is a misspelt one
FEWEST_LETTERS = 4
FEWEST_LABELLED, FEWEST_OF_A_CLASS = 10, 3  # nodes, for a warning that a column gives the class away
MOST_VALUES, NODES_PER_VALUE = 50, 5
FEWEST_HEARD, HARM = 30, 2.33  # labelled nodes, and standard errors (1 in 100), for a warning of directions or weights


def warnings_in(notes: Iterable[str]) -> tuple[str, ...]:
    """Of the notes on a graph those that are warnings."""
    return tuple(note for note in notes if note.startswith(WARNING))


def alike_names(names: Sequence[Hashable]) -> list[str]:
    """A warning where two nodes have names that print the same, such as 1 and "1"."""
    if isinstance(names, range) or len(set(map(type, names))) < 2:
        return []
    printed: dict[str, Hashable] = {}
    for name in names:
        if (other := printed.setdefault(str(name), name)) is not name:
            both = f"{other!r} ({type_word(other)}) and {name!r} ({type_word(name)})"
            return [f"{WARNING}{both} are two nodes; are ids of both kinds meant?"]
    return []


def guessed_label(table: Table, column: str, labels: np.ndarray) -> str:
    """A note on a label column that was found by its name or position; one of measurements is refused."""
    row = _first_fraction(labels)
    if row is not None:
        raise ValueError(
            f"{table.where(row, column)} is {labels[row]!r}, which is no class; the column is read as the label: say with option "
            "label=… which it is, or label='' for none (features=… can then name this column), or task=regression to predict it"
        )
    return f"column {column!r} is read as the label; option label=… says otherwise"


def label_asked_for(columns: Sequence[ColumnSummary]) -> list[str]:
    """A warning where no column is read as the label, and some could be one: of few values, those with empty cells first."""
    found = sorted((one for one in columns if one.kind in ("category", "boolean")), key=lambda one: one.missing == 0)
    if not found:
        return []
    shown = ", ".join(f"{one.name!r} ({one.about})" for one in found[:3])
    return [
        f"{WARNING}{NO_LABEL}, and {shown} {'is a feature' if len(found) == 1 else 'are features'}: option "
        f"label={found[0].name} says which is the label, label='' that there is none"
    ]


def look_like_numbers(column: str, labels: np.ndarray) -> str | None:
    """A note where the labels of a column, NaN where unknown, are read as numbers to predict: there are many different ones."""
    known = labels[~np.isnan(labels)]
    different = np.unique(known)
    has_fractions = bool((different % 1 != 0).any())
    are_codes = len(different) and different[0] in (0, 1) and np.ptp(different) == len(different) - 1
    are_many = len(different) > MANY_NUMBERS and NODES_PER_NUMBER * len(different) > len(known)
    if not (len(different) > MANY_FRACTIONS if has_fractions else are_many and not are_codes):
        return None
    shown = some([float(value) if has_fractions else int(value) for value in different], 3)
    are_ids = not has_fractions and len(different) == len(known) > np.ptp(different) / 2
    doubt = ", though each occurs once, as ids do" if are_ids else ""
    return (
        f"{WARNING}column {column!r} holds {shown}: read as numbers to predict{doubt}; option task=classification reads each as a "
        "class, label=… names another column"
    )


def other_labels(table: Table, taken: Sequence[str]) -> list[str]:
    """Columns beside the label that have one of its usual names and hold classes, not measurements."""
    named = [name for name in table.columns if name.lower() in USUAL_NAMES["label"] and name not in taken]
    return [name for name in named if _first_fraction(table.columns[name]) is None]


def _first_fraction(cells: Iterable[Any]) -> int | None:
    """The row where a column of numbers first has one that is not whole; None where a cell is no number."""
    rows: dict[str, int] = {}  # the first of each text
    for i, cell in enumerate(cells):
        if not is_missing(cell):
            rows.setdefault(str(cell), i)
    numbers = {text: number(text) for text in rows if text.lower() not in ("", "nan")}
    if not np.isfinite(list(numbers.values())).all():
        return None
    return next((rows[text] for text, value in numbers.items() if not value.is_integer()), None)


def graph_warnings(graph: Graph) -> list[str]:
    """Warnings about classes that may not be meant as read, about missing edges, and about edge types that teach nothing."""
    y = graph.target.classes(graph.y)
    sizes = np.bincount(y[y >= 0], minlength=graph.num_classes)
    notes = not_classes(graph.class_names)
    if not notes and graph.num_classes > MANY_NUMBERS and 2 * graph.num_classes > sizes.sum():
        problem = f"{graph.num_classes:,} of {sizes.sum():,} labels differ, {some(graph.class_names, 3)}"
        right = "ids and free text are no classes; numbers are written like 2.5, 1,234.50, € 12 or 12 %"
        notes.append(f"{WARNING}{problem}: classes repeat; {right}")
    if "-1" in graph.class_names and graph.num_classes >= 3:
        notes.append(f"{WARNING}the label '-1' is read as a class; if it means unknown, say option unknown=-1")
    alike: dict[str, list[str]] = {}
    for name in graph.class_names:
        alike.setdefault(name.strip().casefold(), []).append(name)
        if name.strip().casefold() in UNKNOWN:
            how = f"if it means unknown, say option unknown={name}"
            notes.append(f"{WARNING}the label {name!r} is read as a class; {how}")
    for text, names in alike.items():
        if not text:
            how = "if it means unknown, say so with option unknown=…"
            notes.append(f"{WARNING}the blank label {some(names)} is read as a class; {how}")
        elif len(names) > 1:
            how = "blanks around them" if len({name.strip() for name in names}) == 1 else "upper and lower case"
            notes.append(f"{WARNING}the labels {some(names)} differ by {how}, and are read as classes apart")
    order = np.argsort(-sizes, kind="stable")[:MOST_CLASSES]
    for rare, frequent in itertools.product(order, order):
        name, other = graph.class_names[rare], graph.class_names[frequent]
        if 0 < RARER * sizes[rare] <= sizes[frequent] and _is_misspelt(name, other):
            counts = f"({sizes[rare]:,} and {sizes[frequent]:,} nodes)"
            problem = f"may be {other!r} misspelt {counts}; they are read as two classes"
            notes.append(f"{WARNING}the label {name!r} {problem}")
    if not graph.num_edges:
        how = "edges come from edges.csv"
        notes.append(f"{WARNING}there are no edges: every node is labelled by its features alone; {how}")
    types = () if graph.edge_types is None else graph.edge_types.names
    if len(types) == 1:
        notes.append(f"{WARNING}all edges are of one type, {types[0]!r}: there is nothing to weigh")
    return notes


def not_classes(names: Sequence[str]) -> list[str]:
    """A note where the labels seem to be numbers, dates or several classes at once: they are read as classes all the same."""
    values = [number(name) for name in names]
    has_fractions = len(values) > 1 and bool(np.isfinite(values).all()) and any(value % 1 for value in values)
    if has_fractions or (len(values) > MANY_NUMBERS and np.isfinite(values).all()):
        are_codes = not has_fractions and min(values) in (0, 1) and max(values) - min(values) == len(values) - 1
        read = f"the labels are {len(names):,} different numbers, {some(names, 3)}: each is read as a class, without an order"
        how = "option task=regression predicts the number"
        return [read if are_codes else f"{WARNING}{read}; {how}"]
    if names and all(DATE.fullmatch(name) for name in names):
        return [
            f"{WARNING}the labels are dates, {some(names, 3)}: each is read as a class; ranges of them, such as years, can be "
            "predicted, or days as numbers"
        ]
    words = {re.sub(r"[\s_]+", "-", name.strip().casefold()) for name in names}
    if len(names) > 2 and (words <= set(ORDERED.split()) or all(map(RANGE.fullmatch, names))):
        how = "written as 1, 2, 3, …, option task=regression predicts them as numbers"
        return [f"the classes {some(names)} seem ordered, which is not used; {how}"]
    for separator in ("|", ";", ","):
        several = [name for name in names if separator in name]
        parts = Counter(part.strip() for name in names for part in name.split(separator))
        shared = sum(parts[part.strip()] > 1 for name in several for part in name.split(separator))
        if len(several) > 1 and 2 * shared >= sum(name.count(separator) + 1 for name in several):
            return [
                f"{WARNING}labels such as {several[0]!r} seem to name several classes, and each is read as one of its own; a run "
                "for each class, with a column of yes and no, predicts several at once"
            ]
    return []


def _is_misspelt(name: str, other: str) -> bool:
    """One letter added, left out, changed, or swapped with the next; digits make different names."""
    short, long = sorted((name.casefold(), other.casefold()), key=len)
    if short == long or len(short) < FEWEST_LETTERS or len(long) - len(short) > 1:
        return False
    start = next((k for k, (a, b) in enumerate(zip(short, long, strict=False)) if a != b), len(short))
    rest, others = short[start:], long[start:]
    if any(map(str.isdigit, rest[:1] + others[:1])):
        return False
    if len(short) < len(long):
        return rest == others[1:]
    return rest[1:] == others[1:] or (rest[:2] == others[1::-1] and rest[2:] == others[2:])


def harmful_edges(graph: Graph) -> list[str]:
    """Warnings where labels within two hops tell those of labelled nodes clearly better without directions, or without weights."""
    known, matrix, others = graph.labeled.cpu().numpy(), graph.adjacency.to_scipy(), {}
    if not graph.directed and (matrix.data == matrix.data[:1]).all():
        return []
    matrix = scipy.sparse.csr_array(matrix.astype(np.float64) - scipy.sparse.diags_array(matrix.diagonal().astype(np.float64)))
    matrix.eliminate_zeros()
    if graph.directed:
        others["direction", "option directed=false leaves it out"] = matrix.maximum(matrix.T.tocsr())
    if len(matrix.data) and np.ptp(matrix.data) > 0:
        plain = scipy.sparse.csr_array((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
        others["weight", "option weight='' leaves it out"] = plain
    y, notes = graph.target.strata(graph.y.cpu()).numpy(), []
    num_classes = int(y.max(initial=-1)) + 1
    if not others or num_classes < 2 or known.sum() < FEWEST_HEARD:
        return []
    here = told_by_neighbours(matrix, y, num_classes)
    for (what, how), other in others.items():
        there = told_by_neighbours(other, y, num_classes)
        gain = np.log(there[0]) - np.log(here[0])
        if gain.mean() > HARM * gain.std() / np.sqrt(len(gain)):
            rates = f"{100 * there[1].mean():.0f} % against {100 * here[1].mean():.0f} %"
            notes.append(f"{WARNING}without the {what} of edges, neighbours tell more labels ({rates}): {how}")
    return notes


def told_by_neighbours(matrix: Any, y: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the label of each labelled node by the labels within two hops, its own left out, and whether it is
    their first choice.

    A labelled neighbour gives its label, an unlabelled one the mean of those of its own neighbours; they count as many as their
    weights are worth, beside the frequency of each class.

    Args:
        matrix: weights of messages, without self-loops, [n, n].
        y: classes, -1 where unknown, [n].
    """
    nodes = np.flatnonzero(y >= 0)
    matrix, seeds = scipy.sparse.csr_array(matrix), np.zeros((len(y), num_classes))
    seeds[nodes, y[nodes]] = 1
    near, far = (matrix @ scipy.sparse.diags_array(mask.astype(np.float64)) for mask in (y >= 0, y < 0))
    heard, mass = near.sum(axis=1), near @ seeds
    rate = np.divide(1, heard, out=np.zeros(len(y)), where=heard > 0)
    back = far.multiply((scipy.sparse.diags_array(rate) @ near).T).tocsr()  # what came of the asking node itself
    mass = mass + far @ (rate[:, None] * mass) - back.sum(axis=1)[:, None] * seeds
    passed = far @ scipy.sparse.diags_array((heard > 0).astype(np.float64)) - back
    total, squares = (sum((part**power).sum(axis=1) for part in (near, passed))[nodes] for power in (1, 2))
    worth = np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0)  # neighbours of one weight
    shares = mass[nodes].clip(0) / np.where(total > 0, total, 1)[:, None]
    prior = np.bincount(y[nodes], minlength=num_classes) / len(nodes)
    blended = (worth[:, None] * shares + prior) / (worth[:, None] + 1)
    return blended[np.arange(len(nodes)), y[nodes]], blended.argmax(axis=1) == y[nodes]


def telling_columns(table: Table, names: Sequence[str], labels: Sequence[Any] | np.ndarray) -> list[str]:
    """Warnings about feature columns with few values, each of which goes with one class in all labelled nodes."""
    import pandas

    known = np.array([label is not None for label in labels], dtype=bool)
    classes, _ = pandas.factorize(series([str(label) for label in np.asarray(labels, dtype=object)[known]]))
    sizes = np.sort(np.bincount(classes))[::-1]
    if len(classes) < FEWEST_LABELLED or len(sizes) < 2 or sizes[1] < FEWEST_OF_A_CLASS:
        return []
    notes = []
    for name in names:
        cells = table.columns[name][known]
        codes, values = pandas.factorize(cells if is_text(cells) else series([str(cell) for cell in cells]))
        if not 2 <= len(values) <= min(MOST_VALUES, len(codes) / NODES_PER_VALUE):
            continue
        if len(np.unique(codes.astype(np.int64) * len(sizes) + classes)) == len(values):  # one class for each value
            rest = ",".join(other for other in names if other != name)
            without = f"features={rest}" if 0 < len(rest) <= 60 else "features=…"
            notes.append(
                f"{WARNING}column {name!r} alone tells the class of every labelled node; if it says the label in other words, "
                f"option {without} leaves it out"
            )
    return notes
