"""Untrusted files: every honest encoding is read, all else is refused unexecuted, quickly and in little memory."""

import collections
import io
import json
import lzma
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import scipy.sparse

from gcn_lpa.tables.npz_files import read_npz, read_npz_graph
from gcn_lpa.tables.planetoid import MAX_PICKLE_BYTES, read_pickle

MATRIX = scipy.sparse.csr_matrix(np.array([[0.0, 2.5, 0.0], [1.0, 0.0, -3.0]], dtype=np.float32))
ADJACENCY = collections.defaultdict(list, {0: [1], 1: [0, 2], 2: [1]})


def write(folder, raw):
    path = folder / "ind.cora.x"
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_matrices_and_adjacency_lists_are_read_in_every_protocol(tmp_path, protocol):
    for dtype in ("<f8", ">f4", "<i4", "|b1", "|u1"):
        array = np.array([[1, 0], [0, 3], [5, 0]]).astype(dtype)
        for ordered in (array, np.asfortranarray(array)):
            assert read_pickle(write(tmp_path, pickle.dumps(ordered, protocol))).tolist() == array.tolist()
    matrix = read_pickle(write(tmp_path, pickle.dumps(MATRIX, protocol)))
    assert matrix.toarray().tolist() == MATRIX.toarray().tolist()
    assert read_pickle(write(tmp_path, pickle.dumps(ADJACENCY, protocol))) == ADJACENCY
    assert read_pickle(write(tmp_path, pickle.dumps(np.zeros((0, 3)), protocol))).shape == (0, 3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_every_real_planetoid_file_is_accepted(datasets, name):
    parts = {part: read_pickle(datasets / f"planetoid/ind.{name}.{part}") for part in ("x", "tx", "allx", "y", "graph")}
    assert parts["x"].shape[1] == parts["allx"].shape[1]
    assert len(parts["y"]) == parts["x"].shape[0]
    assert isinstance(parts["graph"], dict)


class Runs:
    """A pickle of this calls `function(*arguments)` when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Claims:
    """A pickle of this is an array whose state claims any shape and type."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), self.state


def hostile_pickles(canary):
    system = Runs(os.system, f"touch {canary}")
    for protocol in range(6):
        yield f"os.system, protocol {protocol}", pickle.dumps(system, protocol)
    yield "eval", pickle.dumps(Runs(eval, f"open({str(canary)!r}, 'w')"), 2)
    yield "getattr", pickle.dumps(Runs(getattr, [], "append"), 2)
    yield "inside a dict", pickle.dumps(collections.defaultdict(list, {0: system}), 2)
    yield "inside an array", pickle.dumps(np.array([system], dtype=object), 2)
    yield "inst", b"(S'touch " + str(canary).encode() + b"'\nios\nsystem\n."
    yield "extension registry", b"\x80\x02\x82\x01."
    yield "persistent id", b"\x80\x02Px\n."
    yield "state for a class", b"\x80\x02cnumpy\nndarray\n}(U\x05stateNub."
    yield "slot state for a class", b"\x80\x02cnumpy\nndarray\n}}U\x05stateNs\x86b."
    yield (
        "giant _reconstruct",
        pickle.dumps(Runs(np._core.multiarray._reconstruct, np.ndarray, (2**30, 2**30), b"b"), 2),
    )
    yield "giant shape", pickle.dumps(Claims((1, (2**30,), np.dtype("f8"), False, b"1234")), 2)
    yield "negative shape", pickle.dumps(Claims((1, (-1, -8), np.dtype("u1"), False, b"12345678")), 2)
    yield "overflowing shape", pickle.dumps(Claims((1, (2**30, 2**30, 2**30), np.dtype("u1"), False, b"")), 2)
    yield "huge memo slot", b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b"."
    yield "huge text", b"\x80\x02X" + struct.pack("<I", 2**31 - 1) + b"abc."
    yield "huge bytes", b"\x80\x05\x8e" + struct.pack("<Q", 2**40) + b"abc."
    yield "huge frame", b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"]."
    yield "deep nesting", b"\x80\x02)" + b"\x85" * 400_000 + b"."
    yield "nested tuples as a key", b"\x80\x02})" + b"\x85" * 480_000 + b"K\x01s."
    yield "tuples of one hash as keys", b"\x80\x02}(" + b"".join(map(colliding, range(60_000))) + b"u."
    yield "many lists", b"\x80\x02" + b"]" * 8_000_000 + b"."
    text = b"\x80\x02X" + struct.pack("<I", 10_000_000) + b"a" * 10_000_000 + b"q\x01c_codecs\nencode\nq\x02]q\x03("
    yield "one text encoded a thousand times", text + b"h\x02h\x01U\x06latin1\x86R" * 1000 + b"e."
    broken = scipy.sparse.csr_matrix(MATRIX)
    broken.indices[0] = 2**30
    yield "column out of range", pickle.dumps(broken, 2)
    unsorted = scipy.sparse.csr_matrix(MATRIX)
    unsorted.indptr[1] = 100
    yield "rows beyond the end", pickle.dumps(unsorted, 2)
    yield "truncated", pickle.dumps(MATRIX, 2)[:-40]
    yield "empty", b""
    yield "text", b"hello, world"
    yield "a number", pickle.dumps(17, 2)
    yield "too many bytes", b"\x80\x02" + bytes(MAX_PICKLE_BYTES)


def colliding(k):
    """Opcodes of a key and a value: (-1,) and (-2,) have one hash, so 60,000 keys of 16 such have one too."""
    bits = [b"J" + struct.pack("<i", -1 - (k >> place & 1)) + b"\x85" for place in range(16)]
    return b"(" + b"".join(bits) + b"tK\x01"


def hostile_archives(canary):
    bomb = io.BytesIO()
    with (
        zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as member,
    ):
        np.lib.format.write_array_header_1_0(member, {"descr": "<f8", "fortran_order": False, "shape": (2**25,)})
        for _ in range(256):
            member.write(bytes(2**20))
    yield "zip bomb", bomb.getvalue()
    yield "object array", archive_of(np.array([Runs(os.system, f"touch {canary}")], dtype=object))
    yield "giant shape", archive_of(raw=npy_header((2**40,)) + b"1234")
    yield "negative shape", archive_of(raw=npy_header((-4,)) + bytes(32))
    yield "header that is code", archive_of(raw=b"\x93NUMPY\x01\x00" + struct.pack("<H", 20) + b"__import__('os')    ")
    yield "text in place of an array", archive_of(raw=b"hello")
    yield "lzma", archive_of(np.ones(3), compression=zipfile.ZIP_LZMA)
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for i in range(20_000):
            archive.writestr(f"{i}", b"")
    yield "many members", many.getvalue()
    yield "another array", archive_of(np.ones(3), name="b")
    yield "truncated", archive_of(np.ones(1000))[:-100]
    yield (
        "declares less than it holds",
        archive_of(np.ones(1000)).replace(struct.pack("<I", 8128), struct.pack("<I", 4000)),
    )
    yield "not a zip file", lzma.compress(b"hello")
    yield "empty", b""


def npy_header(shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return header.getvalue()


def archive_of(array=None, raw=None, name="a", compression=zipfile.ZIP_DEFLATED):
    if raw is None:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array)
        raw = buffer.getvalue()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        archive.writestr(f"{name}.npy", raw)
    return packed.getvalue()


READER = """
import json, sys, time
from pathlib import Path
from gcn_lpa.tables.npz_files import read_npz, read_npz_graph
from gcn_lpa.tables.planetoid import read_pickle
read = {"pickles": read_pickle, "archives": lambda path: read_npz(path, ["a"])}[sys.argv[1]]
at_start = peak_megabytes()
for name in sys.argv[2:]:
    start, refusal = time.process_time(), None
    try:
        read(Path(name))
    except ValueError as error:
        refusal = str(error)
    print(json.dumps([refusal, time.process_time() - start, peak_megabytes() - at_start]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("kind", "hostile"), [("pickles", hostile_pickles), ("archives", hostile_archives)])
def test_hostile_files_are_refused_unexecuted_in_two_seconds_and_200_mb(tmp_path, peak_megabytes, kind, hostile):
    canary = tmp_path / "executed"
    cases = {}
    for case, raw in hostile(canary):
        cases[case] = tmp_path / f"{len(cases)}.file"
        cases[case].write_bytes(raw)
    command = [sys.executable, "-c", peak_megabytes + READER, kind, *map(str, cases.values())]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for case, answer in zip(cases, map(json.loads, answers), strict=True):
        refusal, seconds, growth_in_megabytes = answer
        assert "is refused" in (refusal or ""), case
        assert seconds < 2, case
        assert growth_in_megabytes < 200, case
    assert not canary.exists()


def test_the_refusal_says_what_the_file_asked_for(tmp_path):
    path = write(tmp_path, pickle.dumps(Runs(os.system, "true"), 2))
    with pytest.raises(ValueError, match=r"ind\.cora\.x is refused: .* \(it asks for posix\.system\)"):
        read_pickle(path)


def graph_arrays(**changes):
    """Three nodes 0-1-2 with two features, as arrays of an archive; some changed."""
    matrices = {"adj": [[0, 1, 0], [1, 0, 1], [0, 1, 0]], "attr": [[0, 7], [1, 0], [0, 0]]}
    arrays = {"labels": np.array([1, 0, 1])}
    for name, rows in matrices.items():
        matrix = scipy.sparse.csr_array(np.array(rows, dtype=np.float32))
        arrays |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    return arrays | changes


ODD_ARRAYS = {
    "labels 0-d": {"labels": np.array(1)},
    "labels 2-d": {"labels": np.ones((3, 2))},
    "labels infinite": {"labels": np.array([0.0, np.inf, 1.0])},
    "labels below -1": {"labels": np.array([0, -7, 1])},
    "shape 0-d": {"adj_shape": np.array(3)},
    "shape 2-d": {"adj_shape": np.array([[3, 3]])},
    "shape infinite": {"attr_shape": np.array([np.inf, 2])},
    "shape NaN": {"attr_shape": np.array([np.nan, 2])},
    "shape -1": {"attr_shape": np.array([3, -1])},
    "shape far too wide": {"attr_shape": np.array([3, 2**62])},
    "data 0-d": {"adj_data": np.array(1.0)},
    "data 2-d": {"adj_data": np.ones((4, 1))},
    "data infinite": {"attr_data": np.array([np.inf, 1.0])},
    "indices -1": {"adj_indices": np.array([1, 0, -1, 1])},
    "indices of 64 bits": {"adj_indices": np.array([1, 0, 2**63 - 1, 1])},
    "indices of floats": {"adj_indices": np.array([1.0, 0.0, 2.0, 1.0])},
    "indptr 0-d": {"adj_indptr": np.array(0)},
    "indptr empty": {"adj_indptr": np.array([], dtype=np.int32)},
    "indptr without sign": {"adj_indptr": np.array([0, 3, 1, 4], dtype=np.uint64)},
}


@pytest.mark.parametrize("case", ODD_ARRAYS)
def test_arrays_that_make_no_graph_are_refused_by_the_name_of_their_file(tmp_path, case):
    np.savez(tmp_path / "actor.npz", **graph_arrays(**ODD_ARRAYS[case]))
    with pytest.raises(
        ValueError, match=r"^actor\.npz is refused: it is not an archive of the arrays expected \("
    ) as caught:
        read_npz_graph(tmp_path / "actor.npz", "actor")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["<f2", ">f8", "<u8", "|i1", "|b1", "<f16"])
def test_weights_and_features_of_any_number_type_are_read(tmp_path, kind):
    np.savez(tmp_path / "actor.npz", **graph_arrays(adj_data=np.ones(4, kind), attr_data=np.ones(2, kind)))
    assert read_npz_graph(tmp_path / "actor.npz", "actor").x.to_dense().tolist() == [[0, 1], [1, 0], [0, 0]]


def test_an_honest_archive_is_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(6).reshape(2, 3), b=np.ones(2, np.float32), other=np.array(["text"]))
    arrays = read_npz(path, ["a", "b"])
    assert arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["b"].dtype == np.float32
