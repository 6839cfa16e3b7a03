"""Untrusted files: every honest encoding is read, all else is refused unexecuted, quickly and in little memory."""

import collections
import hashlib
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

from gcn_lpa.data import array_files
from gcn_lpa.data.array_files import parse_npz, read_npz_graph, read_pickle

MATRIX = scipy.sparse.csr_matrix(np.array([[0.0, 2.5, 0.0], [1.0, 0.0, -3.0]], dtype=np.float32))


def write(folder, raw):
    path = folder / "ind.cora.x"
    path.write_bytes(raw)
    return path


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A function that writes a file whose hash counts as known, so that the reader of pickles sees it."""

    def write_known(raw):
        monkeypatch.setitem(array_files.PLANETOID_SHA256, "ind.cora.x", hashlib.sha256(raw).hexdigest())
        return write(tmp_path, raw)

    return write_known


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


def programs(canary):
    """Pickles that would run something."""
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


def hostile_pickles(canary):
    yield from programs(canary)
    yield "huge memo slot", b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b"."
    yield "huge text", b"\x80\x02X" + struct.pack("<I", 2**31 - 1) + b"abc."
    yield "deep nesting", b"\x80\x02)" + b"\x85" * 400_000 + b"."
    yield "many lists", b"\x80\x02" + b"]" * 8_000_000 + b"."
    yield "honest, but not published", pickle.dumps(MATRIX, 2)
    yield "truncated", pickle.dumps(MATRIX, 2)[:-40]
    yield "empty", b""
    yield "text", b"hello, world"
    yield "too many bytes", b"\x80\x02" + bytes(array_files.MAX_PICKLE_BYTES)


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
from gcn_lpa.data.array_files import parse_npz, read_pickle, refused
def read_npz(path):
    with refused(path.name, "an archive"):
        parse_npz(path.read_bytes(), ["a"])
read = {"pickles": read_pickle, "archives": read_npz}[sys.argv[1]]
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
        (tmp_path / str(len(cases))).mkdir()
        cases[case] = write(tmp_path / str(len(cases)), raw)
    command = [sys.executable, "-c", peak_megabytes + READER, kind, *map(str, cases.values())]
    answers = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for case, answer in zip(cases, map(json.loads, answers), strict=True):
        refusal, seconds, growth_in_megabytes = answer
        assert (refusal or "").startswith("ind.cora.x is refused: "), case
        assert seconds < 2, case
        assert growth_in_megabytes < 200, case
    assert not canary.exists()


def test_a_pickle_that_was_not_published_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "KnownNames", None)  # no reader: looking would be an error
    with pytest.raises(ValueError, match=r"^ind\.cora\.x is refused: its sha256 is .*, the published file has 23cfa55d"):
        read_pickle(write(tmp_path, pickle.dumps(MATRIX, 2)))


def test_even_with_a_known_hash_nothing_is_made_but_arrays_matrices_and_lists(tmp_path, known):
    canary = tmp_path / "executed"
    for case, raw in programs(canary):
        with pytest.raises(ValueError, match=r"ind\.cora\.x is refused: it is not one of Planetoid's files"):
            read_pickle(known(raw))
        assert not canary.exists(), case
    with pytest.raises(ValueError, match=r"\(it asks for posix\.system\)"):
        read_pickle(known(pickle.dumps(Runs(os.system, "true"), 2)))


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
    with pytest.raises(ValueError, match=r"^actor\.npz is refused: it is not an archive of the arrays expected \(") as caught:
        read_npz_graph(tmp_path / "actor.npz", "actor")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["<f2", ">f8", "<u8", "|i1", "|b1", "<f16"])
def test_weights_and_features_of_any_number_type_are_read(tmp_path, kind):
    np.savez(tmp_path / "actor.npz", **graph_arrays(adj_data=np.ones(4, kind), attr_data=np.ones(2, kind)))
    assert read_npz_graph(tmp_path / "actor.npz", "actor").x.to_dense().tolist() == [[0, 1], [1, 0], [0, 0]]


def test_an_honest_archive_is_read(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.arange(6).reshape(2, 3), b=np.ones(2, np.float32), other=np.array(["text"]))
    arrays = parse_npz(path.read_bytes(), ["a", "b"])
    assert arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert arrays["b"].dtype == np.float32
