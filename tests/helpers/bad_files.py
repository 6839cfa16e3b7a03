"""A small folder of tables, and files that are refused in its place, each with what is said."""

NODES = "id,label,age\na,red,1\nb,blue,2\nc,,3\n"
EDGES = "source,target\na,b\nb,c\n"
BAD_FILES = {
    "latin-1": (
        {"nodes_csv": NODES.replace("red", "rosé").encode("latin-1")},
        "nodes.csv, line 2: byte 0xe9 is not utf-8; say which encoding it is, for instance with option encoding=latin-1",
    ),
    "UTF-16": ({"nodes_csv": NODES.encode("utf-16")}, "for instance with option encoding=utf-16"),
    "NUL": ({"nodes_csv": NODES.replace("blue", "bl\0ue")}, "nodes.csv, line 3 holds a NUL character"),
    "too few cells": (
        {"nodes_csv": NODES.replace("b,blue,2", "b,blue")},
        "nodes.csv, row 3 has 2 cells; the first row has 3",
    ),
    "too many cells": (
        {"edges_csv": EDGES + "a,b,c,d\n"},
        "edges.csv, row 4 has 4 cells; the first row has 2: 'a', 'b', 'c', 'd'",
    ),
    "missing header, nodes": (
        {"nodes_csv": "a,red,1\nb,blue,2\n"},
        "nodes.csv has no column for the id (such as id, node,",
    ),
    "missing header, edges": ({"edges_csv": "x1,x2\nx2,x3\n"}, "edges.csv has no column for the source"),
    "two columns of a name": ({"nodes_csv": NODES.replace("age", "label")}, "nodes.csv has two columns 'label'"),
    "open quote": ({"nodes_csv": NODES + '"d,red,4\n'}, "nodes.csv, row 5: a quotation mark is opened and not closed"),
    "a cell without end": (
        {"nodes_csv": NODES + '"d,red,4\n' + "e,red,5\n" * 20_000},
        "nodes.csv, row 5: a cell has more than 131,072 characters; is a quotation mark not closed? Long texts can come",
    ),
    "empty file": ({"nodes_csv": "\n\n"}, "nodes.csv is empty"),
    "no nodes": ({"nodes_csv": "id,label,age\n", "edges_csv": "source,target\n"}, "the graph has no nodes"),
    "empty id": ({"nodes_csv": NODES + ",red,4\n"}, "nodes.csv, row 5, column 'id' is empty; every row needs an id"),
    "an id twice": ({"nodes_csv": NODES + "a,red,4\n"}, "nodes.csv, row 5, column 'id' repeats the id 'a' of row 2"),
    "unknown id": (
        {"edges_csv": EDGES + "a,zebra\n"},
        "edges.csv, row 4, column 'target' is 'zebra', which nodes.csv does not list",
    ),
    "padded id": (
        {"edges_csv": EDGES + "b ,c\n"},
        "edges.csv, row 4, column 'source' is 'b ', which nodes.csv does not list; close to it: b",
    ),
    "empty end": ({"edges_csv": EDGES + "a,\n"}, "edges.csv, row 4, column 'target' is empty"),
    "infinite feature": ({"nodes_csv": NODES.replace(",2", ",-inf")}, "nodes.csv, row 3, column 'age' is '-inf'"),
    "feature beyond 32 bits": ({"nodes_csv": NODES.replace(",2", ",1e39")}, "nodes.csv, row 3, column 'age' is '1e39'"),
    "zero weight": (
        {"edges_csv": "source,target,weight\na,b,1\nb,c,0\n"},
        "edges.csv, row 3, column 'weight' is '0'; a weight is a positive number",
    ),
    "negative weight": ({"edges_csv": "source,target,weight\na,b,-1\n"}, "edges.csv, row 2, column 'weight' is '-1'"),
    "NaN weight": ({"edges_csv": "source,target,weight\na,b,nan\n"}, "edges.csv, row 2, column 'weight' is 'nan'"),
    "infinite weight": ({"edges_csv": "source,target,weight\na,b,inf\n"}, "edges.csv, row 2, column 'weight' is 'inf'"),
    "empty weight": ({"edges_csv": "source,target,weight\na,b,\n"}, "edges.csv, row 2, column 'weight' is ''"),
    "wrong row below Excel's first row": (
        {"edges_csv": "sep=;\nsource;target;weight\na;b;1\nb;c;x\n"},
        "edges.csv, row 4, column 'weight' is 'x'",
    ),
    "labels twice": (
        {"labels_csv": "id,label\na,red\n"},
        "labels come twice: nodes.csv has a column 'label', and labels.csv",
    ),
    "two files of nodes": ({"nodes_tsv": NODES}, "nodes.csv and nodes.tsv; which one?"),
}
