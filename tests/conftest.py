"""Small graphs to test on, the data sets where they are, and a server to download from."""

import contextlib
import http.server
import os
import signal
import sqlite3
import ssl
import threading
from functools import partial
from pathlib import Path

# Before torch is imported, and for the processes that tests start: torch's threads spin while they wait for each other,
# so that two on a busy machine take many times as long as one. A test about threads says how many it wants.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from gcn_lpa.data.datasets import load
from gcn_lpa.data.read_folder import read_csv
from gcn_lpa.graph import Graph

# In a process of its own: the highest memory so far, in megabytes. Not ru_maxrss, which on Linux survives the exec and
# so would start at the peak of pytest itself.
PEAK_MEGABYTES = """
def peak_megabytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
"""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background: what we start would ignore Ctrl-C too
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("gcn_lpa", deadline=None, derandomize=True, max_examples=50)  # a run repeats the last one
settings.register_profile("quick", settings.get_profile("gcn_lpa"), max_examples=8)  # for `run.py check`
settings.load_profile("gcn_lpa")


@pytest.fixture
def karate():
    """34 members of a karate club, 78 friendships, two clubs."""
    return load("karate")


@pytest.fixture
def tiny():
    """Five nodes, one of them unlabelled: a triangle 1-2-3 with a tail at either end, 0-1 and 3-4."""
    x = [[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    edges = [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4)]
    return Graph.from_edges(edges, weights=[1.0, 2.0, 1.0, 0.5, 4.0], x=x, y=[0, 0, 1, 1, -1], name="tiny")


@pytest.fixture
def two_cliques():
    """Nodes 0..3 all joined, nodes 4..7 all joined, one edge 3-4 between; each clique is a class."""
    pairs = [(i, j) for start in (0, 4) for i in range(start, start + 4) for j in range(i + 1, start + 4)]
    return Graph.from_edges([*pairs, (3, 4)], y=[0, 0, 0, 0, 1, 1, 1, 1], name="two_cliques")


class People:
    """Four people with two numbers each, two of them labelled, and four weighted edges: one graph as every library holds it."""

    names = ("ann", "bob", "cid", "dan")
    x = ((30.5, 1.0), (41.0, -2.0), (18.25, 0.0), (60.0, 7.5))
    labels = ("red", None, "blue", None)
    edges = (("bob", "ann", 2.0), ("ann", "cid", 0.5), ("cid", "dan", 1.5), ("dan", "dan", 3.0))

    def frames(self):
        import pandas

        ages, heights = zip(*self.x, strict=True)
        nodes = pandas.DataFrame({"id": self.names, "label": self.labels, "age": ages, "height": heights})
        return nodes, pandas.DataFrame(self.edges, columns=["source", "target", "weight"])

    def csv_folder(self, folder, directed):
        for name, frame in zip(("nodes", "edges"), self.frames(), strict=True):
            frame.to_csv(folder / f"{name}.csv", index=False)
        return load(folder, directed=directed)

    def parquet_folder(self, folder, directed):
        pytest.importorskip("pyarrow")
        for name, frame in zip(("nodes", "edges"), self.frames(), strict=True):
            frame.to_parquet(folder / f"{name}.parquet")
        return load(folder, directed=directed)

    def pandas_frames(self, folder, directed):
        return read_csv(*self.frames(), directed=directed)

    def polars_frames(self, folder, directed):
        polars = pytest.importorskip("polars")
        return read_csv(*map(polars.from_pandas, self.frames()), directed=directed)

    def arrow_tables(self, folder, directed):
        arrow = pytest.importorskip("pyarrow")
        return read_csv(*map(arrow.Table.from_pandas, self.frames()), directed=directed)

    def sqlite(self, folder, directed):
        with contextlib.closing(sqlite3.connect(folder / "people.db")) as database:
            for name, frame in zip(("nodes", "edges"), self.frames(), strict=True):
                frame.to_sql(name, database, index=False)
        nodes, edges = (f"sqlite:///{folder}/people.db?table={name}" for name in ("nodes", "edges"))
        return load(edges, nodes=nodes, directed=directed)

    def duckdb(self, folder, directed):
        pytest.importorskip("duckdb")
        for name, frame in zip(("nodes", "edges"), self.frames(), strict=True):
            frame.to_csv(folder / f"my {name}.csv", index=False)
        nodes, edges = (f"duckdb:SELECT * FROM '{folder}/my {name}.csv'" for name in ("nodes", "edges"))
        return load(edges, nodes=nodes, directed=directed)

    def networkx(self, folder, directed):
        import networkx

        graph = networkx.DiGraph() if directed else networkx.Graph()
        for name, (age, height), label in zip(self.names, self.x, self.labels, strict=True):
            graph.add_node(name, age=age, height=height, **({"label": label} if label else {}))
        graph.add_weighted_edges_from(self.edges)
        return Graph.from_networkx(graph, features=["age", "height"], directed=directed)

    def positions(self):
        return [tuple(self.names.index(end) for end in edge[:2]) for edge in self.edges]

    def scipy(self, folder, directed):
        import scipy.sparse

        weights = [weight for *_, weight in self.edges]
        matrix = scipy.sparse.coo_array((weights, tuple(zip(*self.positions(), strict=True))), shape=(4, 4))
        return Graph.from_scipy(matrix, node_names=self.names, x=self.x, y=self.labels, directed=directed)

    def pyg(self, folder, directed):
        import torch

        data = pytest.importorskip("torch_geometric.data").Data(
            edge_index=torch.tensor(self.positions()).T,
            edge_weight=torch.tensor([weight for *_, weight in self.edges]),
            x=torch.tensor(self.x),
            y=torch.tensor([1, -1, 0, -1]),
            class_names=("blue", "red"),
            node_names=self.names,
        )
        return Graph.from_pyg(data, directed=directed)

    def edge_list(self, folder, directed):
        pairs, weights = [edge[:2] for edge in self.edges], [weight for *_, weight in self.edges]
        nodes = {"node_names": self.names, "x": self.x, "y": self.labels}
        return Graph.from_edges(pairs, weights=weights, directed=directed, **nodes)


DOORS = (
    *("csv_folder", "parquet_folder", "pandas_frames", "polars_frames", "arrow_tables", "sqlite", "duckdb"),
    *("networkx", "scipy", "pyg", "edge_list"),
)


@pytest.fixture(params=DOORS)
def door(request, tmp_path):
    """A function that gives the graph of `People` through one of the doors, directed or not."""
    return partial(getattr(People(), request.param), tmp_path)


@pytest.fixture(scope="session")
def blocks():
    """60 nodes of three classes with five columns each, edges mostly within a class."""
    return load("sbm", n=60, classes=3, features=5, degree=4.0, noise=1.0)


@pytest.fixture
def peak_megabytes():
    """Source of a function `peak_megabytes()` for a script that measures itself."""
    if not Path("/proc/self/status").is_file():
        pytest.skip("peak memory is read from /proc, which this system lacks")
    return PEAK_MEGABYTES


@pytest.fixture(scope="session")
def datasets():
    """The folder with the data sets of the paper."""
    folder = os.environ.get("GCN_LPA_DATA")
    if not folder or not (Path(folder) / "planetoid" / "ind.cora.x").is_file():
        pytest.skip("the data sets are not here: $GCN_LPA_DATA names no folder that holds them")
    return Path(folder)


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def authority():
    import trustme  # of all tests only these need it

    return trustme.CA()


@pytest.fixture
def server(authority, tmp_path, monkeypatch):
    """Serves the folder `served` as https://localhost:PORT; its authority is trusted unless a test takes that back."""
    folder = tmp_path / "served"
    folder.mkdir()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    monkeypatch.setenv("no_proxy", "localhost")
    with http.server.ThreadingHTTPServer(("localhost", 0), partial(Handler, directory=folder)) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url, server.folder = f"https://localhost:{server.server_port}", folder
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
