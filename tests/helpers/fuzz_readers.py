"""A fuzzer of everything that reads files or replies of strangers.

    python tests/helpers/fuzz_readers.py --inputs 5600 --out benchmarks/results/fuzz.json

Inputs are honest ones, damaged: bytes changed, cut, doubled or put in from elsewhere; values, shapes and types replaced by odd
ones; programs hidden in pickles. Input number k of a reader is the same in every run. Each is read in a fork of a process that
has imported everything, so a crash ends the fork and not the fuzzer, and time and memory are its own.

An input may be refused with an error that commands print as one line, or be read. What is read must be what the honest file
says where a hash is known, and otherwise what another reader finds in it; else it is a silent difference. It counts as
executed what Python's audit events call so: a process, a module looked up by a pickle, a connection.
"""

import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"  # threads do not cross a fork
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["NUMBA_NUM_THREADS"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

import argparse
import collections
import csv
import dataclasses
import hashlib
import io
import json
import math
import pickle
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import traceback
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import safetensors.torch
import scipy.sparse
import torch

from gcn_lpa.data import array_files
from gcn_lpa.data.array_files import parquet_pieces
from gcn_lpa.data.datasets import DATASETS, load
from gcn_lpa.data.files import encode_json
from gcn_lpa.data.table import joined
from gcn_lpa.recipes import Recipe
from gcn_lpa.runs.folder import load_run
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.predictions import predict_run
from gcn_lpa.runs.storage import FORMAT
from gcn_lpa.runs.train_run import resume_run, train_run
from gcn_lpa.train import Watch
from tests.helpers.text_tables import read_delimited

REFUSALS = (ValueError, OSError, ImportError, MemoryError)  # what a command prints as one line
MOST_SECONDS, MOST_MEGABYTES, HANGS_AFTER = 5.0, 500.0, 30.0
EXECUTES = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class", "pty.spawn")
SETTINGS = {"hidden": 4, "edge_rank": 4, "epochs": 3, "propagation_steps": 2, "patience": 0}
ODD_NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e308)
ODD_VALUES = (
    *ODD_NUMBERS,
    None,
    True,
    "",
    "x",
    "\x00",
    "\x1b[2J",
    "../../x",
    [],
    [[]],
    {},
    {"a": 1},
    [0] * 1000,
    "9" * 5000,
)
ODD_FLOATS = (math.nan, math.inf, -math.inf, 1e38, -1.0, 0.0, 1e-45)


@dataclasses.dataclass
class Case:
    """One input: the folder it lies in, and how it is read.

    `read` returns a text that says what was found, or starts with "differs" where another reader finds something else;
    with `known`, the text must be `known`.
    """

    read: object
    known: str | None = None


# damage


def damaged(raw, chance, elsewhere=b""):
    """Bytes with one to four changes of the kinds that disks, transfers and attackers make."""
    raw = bytearray(raw)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(raw) + 1)
        kind = chance.randrange(9)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << chance.randrange(8)
        elif kind == 1 and raw:
            raw[at % len(raw)] = chance.choice(b'\x00\xff\x7f\x80\n\r",;{}[]()0-' + bytes([chance.randrange(256)]))
        elif kind == 2:
            del raw[at:]
        elif kind == 3:
            del raw[at : at + chance.choice((1, 2, 8, 100))]
        elif kind == 4:
            raw[at:at] = raw[at : at + chance.choice((1, 4, 50))] * chance.choice((1, 2, 500))
        elif kind == 5:
            raw[at : at + 8] = struct.pack("<q", chance.choice((-1, 2**31 - 1, 2**32, 2**62, 0)))
        elif kind == 6:
            raw[at : at + 4] = struct.pack("<i", chance.choice((-1, 2**31 - 1, 2**16, 0)))
        elif kind == 7:
            start = chance.randrange(len(elsewhere) + 1)
            raw[at:at] = elsewhere[start : start + chance.randrange(200)]
        else:
            raw[at:at] = chance.randbytes(chance.choice((1, 3, 40)))
    return bytes(raw)


def damaged_value(value, chance):
    """A JSON value in which one place is odd: another value, a key less or more, a list longer or shorter."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if chance.random() < 0.05:
            return {**value, chance.choice(("odd", "", "__class__")): chance.choice(ODD_VALUES)}
        return {**value, key: damaged_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        if chance.random() < 0.2:
            return value[:at] + value[at + 1 :]
        if chance.random() < 0.2:
            return [*value, value[at]]
        return [*value[:at], damaged_value(value[at], chance), *value[at + 1 :]]
    return chance.choice(ODD_VALUES)


def damaged_array(array, chance):
    """An array with an odd number, shape or type."""
    kind, flat = chance.randrange(7), array.copy().reshape(-1)
    if kind <= 2 and flat.size:
        numbers = ODD_FLOATS if array.dtype.kind == "f" else (-1, -2, 2**31 - 1, -(2**31), 127, 0, flat.size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            flat[chance.randrange(flat.size)] = np.array(chance.choice(numbers)).astype(array.dtype)
        return flat.reshape(array.shape)
    if kind == 3:
        return flat[: chance.randrange(flat.size + 1)]
    if kind == 4:
        return flat.reshape(chance.choice(((-1, 1), (1, -1), (1, 1, -1)))) if flat.size else np.float32(1.0)
    if kind == 5:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return array.astype(chance.choice(("f2", "f4", "f8", "i1", "i4", "i8", "u8", "?", ">i4")))
    return np.concatenate([flat, flat])


# readers: what is honest, and what is made of it


def pickle_files(place):
    rows = np.array([[1, 0, 0], [0, 2, 0], [0, 0, 3], [4, 0, 0], [0, 5, 0]], dtype=np.float32)
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0]])
    parts = {"x": rows[:2], "allx": rows[:3], "tx": rows[3:]}
    files = {part: scipy.sparse.csr_matrix(matrix) for part, matrix in parts.items()}
    files |= {"y": labels[:2], "ally": labels[:3], "ty": labels[3:]}
    files["graph"] = collections.defaultdict(list, {0: [1, 1, 2], 1: [0], 2: [0, 2], 3: [4], 4: [3], 5: []})
    for part, content in files.items():
        raw = pickle.dumps(content, 3).replace(b"numpy._core", b"numpy.core").replace(b"sparse._csr", b"sparse.csr")
        raw = raw.replace(b"cbuiltins\n", b"c__builtin__\n")  # as Python 2 wrote them
        (place / f"ind.cora.{part}").write_bytes(raw)
    (place / "ind.cora.test.index").write_text("4\n3\n")
    for path in place.iterdir():
        array_files.PLANETOID_SHA256[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()


class Program:
    def __init__(self, chance):
        self.call = chance.choice(((os.system, ("true",)), (eval, ("1",)), (getattr, ([], "pop")), (subprocess.call, ("true",))))

    def __reduce__(self):
        return self.call


def hostile_pickle(chance):
    """Opcodes in an order that nobody wrote, or a program."""
    if chance.random() < 0.3:
        program = Program(chance)
        return pickle.dumps(chance.choice((program, {0: program}, [program])), chance.randrange(6))
    words = [
        b"}",
        b"]",
        b")",
        b"(",
        b"N",
        b"K\x01",
        b"M\x01\x02",
        b"J\xff\xff\xff\xff",
        b"U\x01a",
        b"\x85",
        b"\x86",
        b"\x87",
    ]
    words += [
        b"t",
        b"a",
        b"e",
        b"s",
        b"u",
        b"R",
        b"b",
        b"\x81",
        b"q\x01",
        b"h\x01",
        b"r\xff\xff\xff\x7f",
        b"0",
        b"1",
        b"2",
        b"l",
        b"d",
    ]
    words += [
        b"cnumpy\ndtype\n",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        b"ccollections\ndefaultdict\n",
        b"cos\nsystem\n",
    ]
    words += [b"cscipy.sparse.csr\ncsr_matrix\n", b"c_codecs\nencode\n", b"X\x02\x00\x00\x00ab", b"T\xff\xff\xff\x7f"]
    chosen = [chance.choice(words) * chance.choice((1, 1, 1, 1, 30, 20_000)) for _ in range(chance.randrange(1, 40))]
    return b"\x80\x02" + b"".join(chosen) + b"."


def graph_said(graph):
    return f"noted {graph.notes[-1]}" if graph.notes and "another hash" in graph.notes[-1] else graph.content_hash(64)


def pickles(place, chance, base):
    path = place / f"ind.cora.{chance.choice(array_files.PLANETOID_PARTS)}"
    others = b"".join(file.read_bytes() for file in place.iterdir())
    path.write_bytes(hostile_pickle(chance) if chance.random() < 0.3 else damaged(path.read_bytes(), chance, others))
    return Case(lambda: graph_said(load("cora", place)), base["pickle"])


def npz_arrays():
    matrices = {"adj": [[0, 1, 0], [1, 0, 1], [0, 1, 0]], "attr": [[0, 7], [1, 0], [0, 0]]}
    arrays = {"labels": np.array([1, 0, 1])}
    for name, rows in matrices.items():
        matrix = scipy.sparse.csr_array(np.array(rows, dtype=np.float32))
        arrays |= {f"{name}_{part}": np.asarray(getattr(matrix, part)) for part in ("data", "indices", "indptr", "shape")}
    return arrays


def npz(place, chance, base):
    path, arrays = place / "actor.npz", npz_arrays()
    if chance.random() < 0.5:
        path.write_bytes(damaged(path.read_bytes(), chance))
    else:
        name = chance.choice(list(arrays))
        np.savez(path, **{**arrays, name: damaged_array(arrays[name], chance)})
        if chance.random() < 0.3:  # another header before the same numbers
            with zipfile.ZipFile(path) as archive:
                members = {info.filename: archive.read(info) for info in archive.infolist()}
            odd = chance.choice((b"(-1,)", b"(9999999999999,)", b"()", b"(3, 3)", b"inf", b"'<O8'", b"__import__('os')"))
            members[f"{name}.npy"] = members[f"{name}.npy"].replace(chance.choice((b"(3,)", b"(4,)", b"'<f4'")), odd, 1)
            with zipfile.ZipFile(path, "w") as archive:
                for member, raw in members.items():
                    archive.writestr(member, raw)
    return Case(lambda: graph_said(load("actor", place)), base["npz"])


NODES = "id,label,age,kind,born,words\n" + "".join(
    f'n{i},{("red", "blue", "")[i % 3]},{i}.5,{"ab"[i % 2]},2020-01-{i + 1:02},"some words, number {i}"\n' for i in range(20)
)
EDGES = "source,target,weight\n" + "".join(f"n{i % 20},n{(i * 7 + 1) % 20},{1 + i % 3}\n" for i in range(30))
TOKENS = (
    b'"',
    b'""',
    b",",
    b";",
    b"\n",
    b"\r",
    b"\r\n",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"sep=;\n",
    b"nan",
    b"1e999",
    b"=1+1",
)
TOKENS += (
    b"n1," * 300,
    b"x" * 200_000,
    b"\xe2\x80\xae",
    b"-1",
    b"9" * 400,
    b"1_000",
    b"0x10",
    b"\n" * 5000,
    b"," * 25_000,
)


def csv_files(place, chance, base):
    path = place / chance.choice(("nodes.csv", "nodes.csv", "edges.csv"))
    raw = path.read_bytes()
    if chance.random() < 0.6:
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(raw) + 1)
            raw = raw[:at] + chance.choice(TOKENS) + raw[at + chance.choice((0, 0, 1, 5)) :]
    else:
        raw = damaged(raw, chance, NODES.encode())
    path.write_bytes(raw)

    def read():
        try:
            table = read_delimited(path, ("id",), header=False, delimiter=",")
        except REFUSALS:
            table = None
        if table is not None:
            text = raw.decode("utf-8-sig")
            text = text.partition("\n")[2] if text[:5].lower().lstrip('"').startswith("sep=") else text
            rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
            if [list(column) for column in table.columns.values()] != [list(column) for column in zip(*rows, strict=True)]:
                return "differs from the csv module"
        return load(place).content_hash()

    return Case(read)


def parquet(place, chance, base):
    path = place / chance.choice(("nodes.parquet", "edges.parquet"))
    if chance.random() < 0.5:
        path.write_bytes(damaged(path.read_bytes(), chance))
    else:
        rows = chance.choice((0, 1, 20))
        names = [f"n{i}" for i in range(rows)]
        ids = "id" if path.stem == "nodes" else "source"
        odd = {
            ids: chance.choice((names, names, names, list(range(rows)), [None] * rows, [[1]] * rows)),
            "target": names,
            "weight": [chance.choice((1.0, 2.0, 2.0, *ODD_FLOATS[:2])) for _ in range(rows)],
            "label": [chance.choice(("a", "b", None, "\x1b[2J")) for _ in range(rows)],
            "x": [chance.choice((*ODD_FLOATS, None)) for _ in range(rows)],
            "y": chance.choice(([{"a": 1}] * rows, [b"\xff"] * rows, [True] * rows, [10**18] * rows)),
            "when": pandas.to_datetime([chance.choice(("1700-01-01", "2024-02-29", None)) for _ in range(rows)]),
        }
        pyarrow.parquet.write_table(pyarrow.table(odd), path, compression=chance.choice(("snappy", "gzip", "none")))

    def read():
        try:
            ours = joined(parquet_pieces(path))
        except REFUSALS:
            ours = None
        if ours is not None:
            table = pyarrow.parquet.read_table(path, use_threads=False)
            if len(ours.rows) != table.num_rows or not set(ours.columns) <= set(map(str, table.column_names)):
                return "differs from pyarrow"
        return load(place).content_hash()

    return Case(read)


def sign(folder):
    """Write the manifest of a folder anew, so that it fits the files as they are."""
    listed = (path for path in sorted(folder.iterdir()) if path.is_file() and path.name != "manifest.json")
    files = {path.name: path.read_bytes() for path in listed}
    entries = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in files.items()}
    (folder / "manifest.json").write_bytes(encode_json({"format": FORMAT, "files": entries}))


def damage_file(path, chance):
    """A file of a run folder: its bytes, or the values or tensors it holds."""
    if path.suffix == ".json" and chance.random() < 0.7:
        path.write_text(json.dumps(damaged_value(json.loads(path.read_text()), chance)))
    elif path.suffix == ".safetensors" and chance.random() < 0.7:
        tensors = {name: tensor.numpy() for name, tensor in safetensors.torch.load(path.read_bytes()).items()}
        if tensors:
            name = chance.choice(list(tensors))
            tensors[name] = damaged_array(tensors[name], chance)
        try:
            saved = {name: torch.from_numpy(np.array(array)).contiguous() for name, array in tensors.items()}
            path.write_bytes(safetensors.torch.save(saved))
        except (TypeError, ValueError):  # a type that torch does not know
            path.write_bytes(damaged(path.read_bytes(), chance))
    else:
        path.write_bytes(damaged(path.read_bytes(), chance))


def predicted(folder):
    table = predict_run(load_run(folder), every=True)
    numbers = table["probability"].to_numpy(float)
    if not ((numbers >= 0) & (numbers <= 1)).all():
        return "differs from probabilities"
    return hashlib.sha256(table.to_csv().encode()).hexdigest()


def unsigned_run(place, chance, base):
    path = chance.choice(sorted(place.iterdir()))
    damage_file(path, chance)
    return Case(lambda: predicted(place), base["unsigned run"])


def signed_run(place, chance, base):
    path = chance.choice([path for path in sorted(place.iterdir()) if path.name != "manifest.json"])
    damage_file(path, chance)
    sign(place)
    return Case(lambda: predicted(place))


def recipes(place, chance, base):
    path = place / "recipe.json"
    if chance.random() < 0.6:
        said = damaged_value(json.loads(path.read_text()), chance)
        path.write_text(json.dumps(said))
    else:
        path.write_bytes(damaged(path.read_bytes(), chance))

    def read():
        plan, _ = make_plan(Source("karate"), recipe=str(path))
        said = json.loads(path.read_bytes())
        found = plan.recipe.to_dict()
        if any(found[name] != (float(value) if type(found[name]) is float else value) for name, value in said.items()):
            return "differs from the file"
        return plan.recipe.hash()

    return Case(read)


def resumed(place):
    run = resume_run(place, device="cpu", threads=1)
    return hashlib.sha256(safetensors.torch.save(dict(run.trained.model.state_dict()))).hexdigest()


def checkpoints(place, chance, base):
    """The plan and the checkpoint of a training that was stopped; signed anew in every second case."""
    is_signed = chance.random() < 0.5
    path = chance.choice(sorted(path for path in (place / "checkpoint").rglob("*") if path.is_file()))
    damage_file(path, chance)
    if is_signed and path.name != "manifest.json":
        sign(path.parent)
    return Case(lambda: resumed(place), None if is_signed else base["checkpoint"])


SERVER = """
import random, socket, ssl, sys
from tests.helpers.fuzz_readers import reply
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1])
listener = socket.create_server(("127.0.0.1", 0), backlog=50)
print(listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    try:
        connection.settimeout(5)
        with context.wrap_socket(connection, server_side=True) as talk:
            head = talk.recv(65536).split(b" ")
            talk.sendall(reply(head[1].decode(), sys.argv[2]))
    except (OSError, ValueError, IndexError):
        connection.close()
"""


def reply(path, folder):
    """What the hostile server answers: /NUMBER/FILE has the damage of that number."""
    _, number, name = path.split("/", 2)
    chance = random.Random(f"reply {number} {name}")
    body = (Path(folder) / name).read_bytes()
    honest = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    kind = chance.randrange(10)
    if kind == 0:
        return honest + body
    if kind == 1:
        return honest + damaged(body, chance)
    if kind == 2:
        return damaged(honest, chance) + body
    if kind == 3:
        code = chance.choice((301, 302, 303, 307, 308))
        to = chance.choice((path, "http://localhost:1/x", "file:///etc/passwd", "//", "https://localhost:1/", "\x00", "data:,x"))
        return f"HTTP/1.1 {code} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()
    if kind == 4:
        chunks = chance.choice(
            (b"ffffffffffffffff\r\nabc", b"-5\r\nabc", b"3\r\nabcdef", b"zz\r\n", b"3;" + b"x" * 70_000 + b"\r\nabc")
        )
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    if kind == 5:
        length = chance.choice((b"-1", b"99999999999999999999", b"0", b"x", b"12\r\nContent-Length: 13"))
        return b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n" + body
    if kind == 6:
        return (
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (k, b"y" * 600) for k in range(chance.choice((50, 200)))) + b"\r\n"
        )
    if kind == 7:
        return b"HTTP/1.1 %s OK\r\n\r\n" % chance.choice((b"500", b"404", b"abc", b"-1", b"99999", b"100")) + body
    if kind == 8:
        return b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + bytes(chance.choice((0, 70 * 2**20)))
    return chance.randbytes(chance.choice((0, 1, 500)))


def http(place, chance, base):
    number = chance.randrange(10**9)
    url = f"https://localhost:{base['port']}/{number}"
    DATASETS["cora"] = dataclasses.replace(DATASETS["cora"], url=url)
    (place / "planetoid").mkdir()
    for name in DATASETS["cora"].files[: chance.randrange(8)]:  # some are already here
        shutil.copy(base["served"] / name, place / "planetoid")
    return Case(lambda: graph_said(load("cora", place)), base["pickle"])


READERS = {
    "pickle": (pickles, 900),
    "npz": (npz, 800),
    "csv": (csv_files, 900),
    "parquet": (parquet, 700),
    "unsigned run": (unsigned_run, 600),
    "signed run": (signed_run, 700),
    "recipe": (recipes, 500),
    "checkpoint": (checkpoints, 300),
    "http": (http, 400),
}


def prepare(top):
    """The honest inputs, and what they say; made here, as far as no library starts threads that a fork would miss."""
    base = {"served": top / "pickle"}
    for name in READERS:
        (top / name).mkdir()
    pickle_files(top / "pickle")
    np.savez(top / "npz" / "actor.npz", **npz_arrays())
    honest = array_files.read_npz_graph(top / "npz" / "actor.npz", "actor").content_hash(32)
    DATASETS["actor"] = dataclasses.replace(DATASETS["actor"], content=honest)
    (top / "csv" / "nodes.csv").write_text(NODES)
    (top / "csv" / "edges.csv").write_text(EDGES)
    in_fork(lambda: write_parquet(top / "parquet"))
    plan, graph = make_plan(Source("karate"), changes=SETTINGS, split="uniform")
    train_run(plan, graph, top / "unsigned run", device="cpu", threads=1)
    (top / "signed run").rmdir()
    shutil.copytree(top / "unsigned run", top / "signed run")
    (top / "recipe" / "recipe.json").write_text(json.dumps(Recipe(**SETTINGS).to_dict()))
    stop_training(top / "checkpoint")
    base["pickle"] = graph_said(load("cora", top / "pickle"))
    base["npz"] = graph_said(load("actor", top / "npz"))
    for name in ("csv", "parquet"):
        found = in_fork(lambda name=name: load(top / name).content_hash())
        assert found["outcome"] == "read", found
    base["unsigned run"] = predicted(top / "unsigned run")
    shutil.copytree(top / "checkpoint", top / "resumed")
    base["checkpoint"] = resumed(top / "resumed")
    return base


def write_parquet(folder):
    nodes = pandas.read_csv(io.StringIO(NODES), keep_default_na=False)
    nodes.to_parquet(folder / "nodes.parquet")
    pandas.read_csv(io.StringIO(EDGES)).to_parquet(folder / "edges.parquet")


def stop_training(folder):
    """A training that is interrupted after its second epoch and keeps its checkpoint."""
    from gcn_lpa.runs import train_run as stages

    stages.CHECKPOINT_SECONDS = 0.0
    plan, graph = make_plan(Source("karate"), changes=SETTINGS, split="uniform", checkpoint_every=1)

    def on_epoch(name, epoch):
        if epoch.epoch == 2:
            raise KeyboardInterrupt

    train_run(plan, graph, folder, device="cpu", threads=1, watch=Watch(on_epoch=on_epoch))
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


# forks


def in_fork(act):
    """What `act` gives in a fork: its outcome, a refusal, a traceback, a signal; with seconds and megabytes."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        status = {"outcome": "traceback", "said": "nothing"}
        executed = []
        sys.addaudithook(lambda event, arguments: executed.append(event) if event in EXECUTES else None)
        try:
            Path("/proc/self/clear_refs").write_text("5")  # start the peak of memory anew
            warnings.simplefilter("error")
            before, start = memory("VmRSS"), time.process_time()
            try:
                status = {"outcome": "read", "said": str(act())}
            except REFUSALS as error:
                status = {"outcome": "refused", "said": f"{type(error).__name__}: {error}"[:400]}
            status |= {"seconds": time.process_time() - start, "megabytes": memory("VmHWM") - before}
        except BaseException:
            status["said"] = traceback.format_exc()[-1500:]
        status["executed"] = executed
        with os.fdopen(writes, "w") as pipe:
            json.dump(status, pipe)
        os._exit(0)
    os.close(writes)
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    with os.fdopen(reads) as pipe:
        said = pipe.read()
    signal.setitimer(signal.ITIMER_REAL, 0)
    _, code = os.waitpid(child, 0)
    return json.loads(said) if said else {"outcome": "signal", "said": f"ended by signal {code & 127}", "executed": []}


def memory(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def judged(found, known):
    """The kinds of failure of one input."""
    kinds = []
    if found["outcome"] in ("signal", "traceback"):
        kinds.append(found["outcome"])
    if found["executed"]:
        kinds.append("execution")
    said = found["said"]
    is_other = said.startswith("differs") or (known is not None and said != known and not said.startswith("noted"))
    if found["outcome"] == "read" and is_other:
        kinds.append("silent difference")
    if found.get("seconds", 0) > MOST_SECONDS:
        kinds.append("slow")
    if found.get("megabytes", 0) > MOST_MEGABYTES:
        kinds.append("large")
    return kinds


FAILURES = ("signal", "traceback", "execution", "silent difference", "slow", "large")


def fuzz(inputs, only=(), report=lambda line: None):
    """Try about so many inputs, shared among the readers as in READERS; the outcome as a dict."""
    total = sum(count for _, count in READERS.values())
    rows, examples = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        base = prepare(top)
        server, base["port"] = start_server(top)
        try:
            for name, (make, share) in READERS.items():
                if only and name not in only:
                    continue
                count = math.ceil(share * inputs / total)
                row = collections.Counter(dict.fromkeys(("inputs", "refused", "read", *FAILURES), 0))
                slowest = largest = 0.0
                for number in range(count):
                    chance = random.Random(f"{name} {number}")
                    place = top / "case"
                    if name == "http":
                        place.mkdir()
                    else:
                        shutil.copytree(top / name, place)
                    kept = dict(DATASETS)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        case = make(place, chance, base)
                    found = in_fork(case.read)
                    DATASETS.update(kept)
                    shutil.rmtree(place)
                    row["inputs"] += 1
                    row[found["outcome"]] += found["outcome"] in ("refused", "read")
                    for kind in judged(found, case.known):
                        row[kind] += 1
                        examples.append({"reader": name, "input": number, "kind": kind, "said": found["said"]})
                        report(f"{name} {number}: {kind}: {found['said']}")
                    slowest, largest = max(slowest, found.get("seconds", 0)), max(largest, found.get("megabytes", 0))
                rows[name] = {**row, "slowest_seconds": round(slowest, 2), "largest_megabytes": round(largest, 1)}
                report(f"{name}: {rows[name]}")
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
    totals = {key: sum(row[key] for row in rows.values()) for key in ("inputs", "refused", "read", *FAILURES)}
    return {"total": totals, "readers": rows, "failures": examples[:20]}


def start_server(top):
    """The hostile server, which needs a certificate that we trust."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(top / "authority.pem")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(top / "server.pem")
    os.environ["SSL_CERT_FILE"], os.environ["no_proxy"] = str(top / "authority.pem"), "localhost"
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", SERVER, str(top / "server.pem"), str(top / "pickle")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})
    return server, int(server.stdout.readline())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=sum(count for _, count in READERS.values()))
    parser.add_argument("--reader", action="append", default=[], choices=READERS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    start = time.perf_counter()
    found = fuzz(arguments.inputs, arguments.reader, report=lambda line: print(line, file=sys.stderr, flush=True))
    found["minutes"] = round((time.perf_counter() - start) / 60, 1)
    if arguments.out is not None:
        from gcn_lpa.data.files import write_json
        from gcn_lpa.engine.devices import environment

        write_json(arguments.out, {**found, "environment": environment()})
    print(json.dumps(found["total"]))
    return int(any(found["total"][kind] for kind in FAILURES))


if __name__ == "__main__":
    sys.exit(main())
