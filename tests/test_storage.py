"""Run folders: what goes in comes out, and whatever happens to the writer or to the files, nothing wrong comes out."""

import errno
import importlib.metadata
import itertools
import json
import os
import random
import re
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcn_lpa
from gcn_lpa import files, storage
from gcn_lpa.files import write_atomic
from gcn_lpa.storage import FILES, FORMAT, encode_json, encode_lines, load, read_json, save, write_json


def state(text, *extra):
    """Files of a run that all say the same, so that a mixture of two states shows."""
    return {name: f"{name} {text}".encode() for name in (*FILES, *extra)}


OLD, NEW, NEWEST = state("old", "graph.npz"), state("new"), state("newest", "notes.txt")


def on_disk(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# what goes in comes out


def test_a_saved_state_is_loaded_and_lies_under_its_own_names(tmp_path):
    save(tmp_path / "runs/cora", OLD)
    assert load(tmp_path / "runs/cora").files == OLD
    assert set(os.listdir(tmp_path / "runs/cora")) == {*OLD, "manifest.json"}


def test_a_save_replaces_the_whole_state_and_leaves_other_peoples_files(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "thoughts.md").write_text("mine")
    save(tmp_path, NEW)
    assert load(tmp_path).files == NEW
    assert set(os.listdir(tmp_path)) == {*NEW, "manifest.json", "thoughts.md"}


def test_a_save_does_not_overwrite_what_no_save_put_there(tmp_path):
    (tmp_path / "recipe.json").write_text("mine")
    with pytest.raises(ValueError, match=r"recipe\.json is not from a saved run"):
        save(tmp_path, OLD)
    assert on_disk(tmp_path) == {"recipe.json": b"mine"}


def test_a_run_folder_has_all_its_files_under_plain_names(tmp_path):
    with pytest.raises(ValueError, match=r"needs trained\.json, history\.jsonl"):
        save(tmp_path, dict.fromkeys(FILES[1:-1], b""))
    for name in ("../up", "a/b", "a\\b", ".next", "", "C:x", "manifest.json"):
        with pytest.raises(ValueError, match="cannot be a file of a run folder"):
            save(tmp_path, {**OLD, name: b""})
    assert on_disk(tmp_path) == {}


def test_a_run_folder_can_be_moved_and_names_no_place(tmp_path):
    save(tmp_path / "here", OLD)
    assert str(tmp_path) not in (tmp_path / "here/manifest.json").read_text()
    (tmp_path / "here").rename(tmp_path / "there")
    assert load(tmp_path / "there").files == OLD


def test_tensors_come_back_bit_for_bit(tmp_path):
    import torch

    tensors = {
        "W": torch.tensor([[0.1, float("nan")], [-0.0, 1e-45]]).T,
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "none": torch.zeros(0, 3, dtype=torch.float64),
    }
    files = {**OLD, "model.safetensors": storage.encode_tensors(tensors)}
    save(tmp_path, files)
    back = load(tmp_path).tensors()
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert back[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_rows_and_recipes_come_back(tmp_path):
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": 1e-300, "note": "a\nb\u2028c"}]
    save(tmp_path, {**OLD, "history.jsonl": encode_lines(rows), "recipe.json": encode_json({"lr": 0.05})})
    run = load(tmp_path)
    assert run.lines("history.jsonl") == rows
    assert run.json("recipe.json") == {"lr": 0.05}
    assert run.files["history.jsonl"].count(b"\n") == 2


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


@given(st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))
def test_json_values_come_back(value):
    assert storage.decode_json(encode_json(value), Path("value.json")) == value


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"lr": 0.05', "line 1 column 12"),
        (b"", "line 1 column 1"),
        (b"\xff", "can't decode byte 0xff"),
        (b'{"lr": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_json_file_is_said_with_its_name(tmp_path, content, complaint):
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as caught:
        read_json(tmp_path / "recipe.json")
    assert str(caught.value).startswith(f"{tmp_path / 'recipe.json'}: not valid JSON: ")


def test_a_number_that_json_lacks_is_refused_and_the_file_stays(tmp_path):
    write_json(tmp_path / "scores.json", {"accuracy": 0.5})
    with pytest.raises(ValueError, match=r"scores\.json: Out of range float"):
        write_json(tmp_path / "scores.json", {"accuracy": float("nan")})
    assert read_json(tmp_path / "scores.json") == {"accuracy": 0.5}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no umask")
def test_a_written_file_can_be_read_by_whom_the_umask_allows(tmp_path):
    umask = os.umask(0o027)
    try:
        write_atomic(tmp_path / "scores.json", b"{}")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "scores.json").stat().st_mode) == 0o640


def test_the_environment_is_the_one_we_run_in():
    import numpy
    import torch

    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    found = storage.environment()
    assert found["gcn_lpa"] == pyproject["project"]["version"]
    assert found["python"] == sys.version.split()[0]
    assert (found["torch"], found["numpy"]) == (torch.__version__, numpy.__version__)
    assert found["threads"] == torch.get_num_threads()
    assert (found["cuda_device"] is None) != torch.cuda.is_available()
    encode_json(found)


def test_a_source_tree_without_metadata_has_the_version_of_its_pyproject(monkeypatch, tmp_path):
    """As where the package is found through PYTHONPATH; and "unknown" where it was copied without pyproject.toml."""

    def nothing_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing_installed)
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    found = storage.environment()
    assert (found["gcn_lpa"], found["torch"]) == (pyproject["project"]["version"], "unknown")
    assert gcn_lpa.__getattr__("__version__") == pyproject["project"]["version"]
    monkeypatch.setattr(storage, "__file__", str(tmp_path / "gcn_lpa" / "storage.py"))
    assert storage.environment()["gcn_lpa"] == "unknown"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\nversion = "7"\n')
    assert storage.environment()["gcn_lpa"] == "unknown"


# a checkpoint


def test_the_latest_checkpoint_is_the_last_one_saved(tmp_path):
    import torch

    assert storage.latest_checkpoint(tmp_path) is None
    for epoch in (10, 20):
        storage.save_checkpoint(tmp_path, {"W": torch.full((2,), float(epoch))}, {"epoch": epoch, "best": 0.1})
    tensors, meta = storage.latest_checkpoint(tmp_path)
    assert tensors["W"].tolist() == [20.0, 20.0]
    assert meta == {"epoch": 20, "best": 0.1}
    assert set(os.listdir(tmp_path / "checkpoint")) == {"tensors.safetensors", "meta.json", "manifest.json"}


def test_a_checkpoint_and_a_run_do_not_touch_each_other(tmp_path):
    storage.save_checkpoint(tmp_path, {}, {"epoch": 3})
    with pytest.raises(ValueError, match="holds a checkpoint of a run that did not finish"):
        load(tmp_path)
    save(tmp_path, OLD)
    assert storage.latest_checkpoint(tmp_path).meta == {"epoch": 3}
    storage.discard_checkpoint(tmp_path)
    storage.discard_checkpoint(tmp_path)
    assert storage.latest_checkpoint(tmp_path) is None
    assert load(tmp_path).files == OLD


def test_a_damaged_checkpoint_is_refused(tmp_path):
    storage.save_checkpoint(tmp_path, {}, {"epoch": 3})
    path = tmp_path / "checkpoint/meta.json"
    path.write_bytes(path.read_bytes().replace(b"3", b"4"))
    with pytest.raises(ValueError, match=r"checkpoint.meta\.json: sha256 .*changed after saving"):
        storage.latest_checkpoint(tmp_path)


def test_a_checkpoint_that_cannot_be_one_is_refused(tmp_path):
    import torch

    for k, (tensors, meta) in enumerate([({"W": torch.tensor([1.0, float("nan")])}, {}), ({}, [])]):
        storage.save_checkpoint(tmp_path / str(k), tensors, meta)
        with pytest.raises(ValueError, match=r"W holds numbers that are not finite|it is \[\]; it is an object"):
            storage.latest_checkpoint(tmp_path / str(k))


# the writer stops at any moment


class Killed(BaseException):
    """Like SIGKILL, nothing catches it."""


class FragileOS:
    """The os module until its k-th change to the disk; that one does not happen, and neither does any later one.

    A file that is being synced at that moment has lost its second half. Syncs are only counted, which is faster.
    """

    def __init__(self, changes_left, failure):
        self.changes_left, self.failure = changes_left, failure

    def __getattr__(self, name):
        return self.fragile(name) if name in ("makedirs", "replace", "unlink", "rmdir", "fsync") else getattr(os, name)

    def fragile(self, name):
        def change(target, *rest, **options):
            if self.changes_left > 0:
                self.changes_left -= 1
                return None if name == "fsync" else getattr(os, name)(target, *rest, **options)
            if name == "fsync" and stat.S_ISREG(os.fstat(target).st_mode):
                os.ftruncate(target, os.fstat(target).st_size // 2)
            raise self.failure

        return change


def use_disk(patch, disk):
    for module in (files, storage):
        patch.setattr(module, "os", disk)


def stopped(act, moment, monkeypatch, failure=Killed):
    """Does `act` on a disk that stops before its change number `moment`; says whether it was stopped."""
    with monkeypatch.context() as patch:
        use_disk(patch, FragileOS(moment, failure))
        try:
            act()
        except (Killed, OSError):
            return True
    return False


@pytest.mark.long
def test_a_save_killed_at_any_moment_leaves_one_whole_state(tmp_path, monkeypatch):
    seen = []
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        save(folder, OLD)
        was_stopped = stopped(lambda folder=folder: save(folder, NEW), moment, monkeypatch)
        before = on_disk(folder)
        seen.append(load(folder).files)
        assert on_disk(folder) == before  # reading repairs nothing: it works on a read-only disk too
        if not was_stopped:
            break
        save(folder, NEWEST)
        assert load(folder).files == NEWEST
        assert set(os.listdir(folder)) == {*NEWEST, "manifest.json"}
    commit = seen.index(NEW)
    assert seen == [OLD] * commit + [NEW] * (len(seen) - commit)
    assert 0 < commit < len(seen) - len(FILES)  # both sides of the commit were visited


@pytest.mark.long
def test_a_save_killed_while_it_recovers_from_a_kill_leaves_one_whole_state(tmp_path, monkeypatch):
    def twice_killed(folder, first, second):
        save(folder, OLD)
        stopped(lambda: save(folder, NEW), first, monkeypatch)
        survivor = load(folder).files
        was_stopped = stopped(lambda: save(folder, NEWEST), second, monkeypatch)
        assert load(folder).files in (survivor, NEWEST)
        return was_stopped

    for first in range(0, 33, 4):
        moments = itertools.takewhile(
            lambda second, first=first: twice_killed(tmp_path / f"{first}-{second}", first, second), itertools.count()
        )
        assert len(list(moments)) > 20


def test_a_first_save_killed_at_any_moment_leaves_nothing_or_a_whole_state(tmp_path, monkeypatch):
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if not stopped(lambda folder=folder: save(folder, NEW), moment, monkeypatch):
            break
        if (folder / ".next/manifest.json").exists() or (folder / "manifest.json").exists():
            assert load(folder).files == NEW
        else:
            with pytest.raises(ValueError, match="is not a run folder"):
                load(folder)
        save(folder, NEWEST)
        assert load(folder).files == NEWEST


def test_a_checkpoint_killed_at_any_moment_leaves_the_one_before(tmp_path, monkeypatch):
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        storage.save_checkpoint(folder, {}, {"epoch": 1})
        was_stopped = stopped(
            lambda folder=folder: storage.save_checkpoint(folder, {}, {"epoch": 2}), moment, monkeypatch
        )
        assert storage.latest_checkpoint(folder).meta["epoch"] in (1, 2)
        stopped(lambda folder=folder: storage.discard_checkpoint(folder), moment, monkeypatch)
        storage.latest_checkpoint(folder)
        storage.save_checkpoint(folder, {}, {"epoch": 3})
        assert storage.latest_checkpoint(folder).meta["epoch"] == 3
        if not was_stopped:
            break


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "can be written to"), (errno.EACCES, "can be written to")],
)
def test_a_disk_that_fails_at_any_moment_gives_one_clear_error_and_loses_nothing(tmp_path, monkeypatch, number, advice):
    failure = OSError(number, os.strerror(number))
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        save(folder, OLD)
        with monkeypatch.context() as patch:
            use_disk(patch, FragileOS(moment, failure))
            try:
                save(folder, NEW)
            except OSError as error:
                assert (error.errno, error.filename) == (number, str(folder))
                assert os.strerror(number) in str(error)
                assert advice in str(error)
            else:
                break
        assert load(folder).files in (OLD, NEW)
    assert moment > 2 * len(FILES)


def test_a_failed_write_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path, monkeypatch):
    write_atomic(tmp_path / "scores.json", b"old")
    for moment in (0, 1):
        failure = OSError(errno.ENOSPC, "No space left on device")
        assert stopped(lambda: write_atomic(tmp_path / "scores.json", b"new"), moment, monkeypatch, failure)
        assert on_disk(tmp_path) == {"scores.json": b"old"}


def test_a_folder_that_is_a_file_is_said_so(tmp_path):
    (tmp_path / "cora").write_text("mine")
    with pytest.raises(OSError, match="choose another folder") as caught:
        save(tmp_path / "cora", OLD)
    assert caught.value.filename == str(tmp_path / "cora")


def test_each_step_is_on_disk_before_the_next_begins(tmp_path, monkeypatch):
    """What the argument about power cuts rests on; the expected order is that of the module's docstring."""
    folder = tmp_path / "run"
    log = []

    def name(path):
        return re.sub(r"\.[0-9a-f]{16}\.tmp$", ".RANDOM.tmp", str(Path(path).relative_to(tmp_path)))

    class Recorder:
        def __getattr__(self, function):
            return getattr(os, function)

        def fsync(self, descriptor):
            same = [path for path in folder.rglob("*") if os.path.samestat(path.stat(), os.fstat(descriptor))]
            log.append(f"sync {name(same[0] if same else folder)}")

        def replace(self, source, target):
            log.append(f"rename {name(source)}")
            os.replace(source, target)

    use_disk(monkeypatch, Recorder())
    save(folder, NEW)
    assert log == [
        *[f"sync run/.next/{file}" for file in FILES],
        *["sync run/.next", "sync run"],
        *["sync run/.next/.manifest.json.RANDOM.tmp", "rename run/.next/.manifest.json.RANDOM.tmp", "sync run/.next"],
        *[f"rename run/.next/{file}" for file in sorted(FILES)],
        *["sync run/.next", "sync run", "rename run/.next/manifest.json", "sync run"],
    ]


def test_a_drive_that_cannot_sync_folders_is_still_written_to(tmp_path, monkeypatch):
    class Drive(FragileOS):
        def fsync(self, descriptor):
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "Invalid argument")

    use_disk(monkeypatch, Drive(1000, Killed))
    save(tmp_path, NEW)
    assert load(tmp_path).files == NEW


WRITER = """
import itertools, sys
from gcn_lpa.storage import FILES, save
for number in itertools.count(int(sys.argv[2]) + 1):
    save(sys.argv[1], {name: b"%d" % number for name in FILES})
    print(number, flush=True)
"""


def start_writer(folder, after):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, folder, str(after)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )


def the_number_in(folder):
    (number,) = set(load(folder).files.values())  # all files are of one state
    return int(number)


@pytest.mark.long
@pytest.mark.parametrize("rounds", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_the_last_state_it_saved(tmp_path, rounds):
    moments, number = random.Random(rounds), 0
    for _ in range(rounds):
        with start_writer(tmp_path, number) as writer:
            first = writer.stdout.readline()
            time.sleep(moments.uniform(0, 0.05))
            writer.kill()
            told = [first, *writer.stdout]
        number = the_number_in(tmp_path)
        assert number - int(told[-1]) in (0, 1)  # it may have been killed between the commit and its word


def test_a_reader_beside_a_writer_sees_whole_states_only(tmp_path):
    with start_writer(tmp_path, 0) as writer:
        writer.stdout.readline()
        numbers = [the_number_in(tmp_path)]
        while len(numbers) < 300 or numbers[-1] < numbers[0] + 3:
            assert writer.poll() is None
            numbers.append(the_number_in(tmp_path))
        writer.kill()
    assert numbers == sorted(numbers)


# the files are not what they were


def refused(folder, name):
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load(folder)
    return True


def test_200_truncations_are_refused(tmp_path):
    save(tmp_path, OLD)
    cuts = random.Random(0)
    for _ in range(200):
        path = tmp_path / cuts.choice([*OLD, "manifest.json"])
        content = path.read_bytes()
        path.write_bytes(content[: cuts.randrange(len(content))])
        assert refused(tmp_path, path.name)
        path.write_bytes(content)
    assert load(tmp_path).files == OLD


def test_a_manifest_cut_by_its_last_byte_is_refused(tmp_path):
    save(tmp_path, OLD)
    path = tmp_path / "manifest.json"
    path.write_bytes(path.read_bytes()[:-1])  # still JSON
    assert refused(tmp_path, "manifest.json")


@pytest.mark.long
def test_1000_flipped_bits_are_refused(tmp_path):
    save(tmp_path, OLD)
    flips = random.Random(0)
    for _ in range(1000):
        path = tmp_path / flips.choice([*OLD, "manifest.json", "manifest.json"])
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[flips.randrange(len(content))] ^= 1 << flips.randrange(8)
        path.write_bytes(flipped)
        assert refused(tmp_path, path.name)
        path.write_bytes(content)
    assert load(tmp_path).files == OLD


def test_a_missing_file_is_named_with_its_size(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "graph.npz").unlink()
    size = len(OLD["graph.npz"])
    with pytest.raises(ValueError, match=rf"graph\.npz: missing; manifest\.json lists it with {size} bytes"):
        load(tmp_path)


def test_a_folder_without_a_run_is_not_a_run_folder(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match="is not a run folder"):
            load(folder)


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (
            {"format": FORMAT + 1, "files": {}},
            rf"format {FORMAT + 1}, but this version of gcn-lpa reads format {FORMAT}",
        ),
        ({"format": "1", "files": {}}, "format '1', but"),
        ({"name": "somebody's app"}, "names no format"),
        ([], "names no format"),
        ({"format": FORMAT}, "changed after it was written"),
        ({"format": FORMAT, "files": []}, "changed after it was written"),
        ({"format": FORMAT, "files": {"recipe.json": 1}}, "changed after it was written"),
        ({"format": FORMAT, "files": {"recipe.json": {"size": 1}}}, "changed after it was written"),
        ({"format": FORMAT, "files": {"../x": {"sha256": "", "size": 1}}}, "changed after it was written"),
        ({"format": FORMAT, "files": {}}, r"does not list trained\.json, recipe\.json"),
    ],
)
def test_a_foreign_manifest_is_refused_with_what_is_wrong(tmp_path, manifest, complaint):
    (tmp_path / "manifest.json").write_bytes(encode_json(manifest))
    with pytest.raises(ValueError, match=complaint) as caught:
        load(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


def test_a_newer_run_is_not_overwritten(tmp_path):
    save(tmp_path, OLD)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    (tmp_path / "manifest.json").write_bytes(encode_json({**manifest, "format": FORMAT + 1}))
    before = on_disk(tmp_path)
    with pytest.raises(ValueError, match=f"format {FORMAT + 1}"):
        save(tmp_path, NEW)
    assert on_disk(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_in_place_of_a_file_does_not_keep_us_waiting(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "recipe.json").unlink()
    os.mkfifo(tmp_path / "recipe.json")
    assert refused(tmp_path, "recipe.json: not a file")


def test_leftovers_that_are_a_link_are_not_followed(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.next").symlink_to(tmp_path / "home")
    save(tmp_path / "run", NEW)
    assert on_disk(tmp_path / "home") == {"letter": b"mine"}
    assert load(tmp_path / "run").files == NEW
