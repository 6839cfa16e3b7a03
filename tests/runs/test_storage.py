"""States of folders: what goes in comes out, and whatever happens to the writer or to the files, nothing wrong comes out."""

import errno
import hashlib
import itertools
import json
import os
import random
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gcn_lpa
from gcn_lpa.data import files
from gcn_lpa.data.files import encode_json
from gcn_lpa.runs import storage
from gcn_lpa.runs.storage import FILES, FORMAT, discard, load, read, save


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


def test_a_run_folder_can_be_moved_and_names_no_place(tmp_path):
    save(tmp_path / "here", OLD)
    assert str(tmp_path) not in (tmp_path / "here/manifest.json").read_text()
    (tmp_path / "here").rename(tmp_path / "there")
    assert load(tmp_path / "there").files == OLD


def test_some_files_of_a_state_can_be_read_alone(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "recipe.json").write_text("damaged")
    assert read(tmp_path, ["graph.npz", "absent"]).files == {"graph.npz": OLD["graph.npz"]}
    assert read(tmp_path / "nowhere") is None


def test_tensors_come_back_bit_for_bit(tmp_path):
    import torch

    tensors = {
        "W": torch.tensor([[0.1, float("nan")], [-0.0, 1e-45]]).T,
        "steps": torch.tensor(7),
        "mask": torch.tensor([True, False]),
        "none": torch.zeros(0, 3, dtype=torch.float64),
    }
    save(tmp_path, {**OLD, "model.safetensors": storage.encode_tensors(tensors)})
    back = load(tmp_path).read("model.safetensors")
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (back[name].dtype, back[name].shape) == (tensor.dtype, tensor.shape)
        assert back[name].numpy().tobytes() == tensor.numpy().tobytes()


# whose files they are


def test_a_save_replaces_the_whole_state_and_leaves_other_peoples_files(tmp_path):
    save(tmp_path, OLD)
    (tmp_path / "thoughts.md").write_text("mine")
    (tmp_path / ".thoughts.md.new").write_text("mine too")
    save(tmp_path, NEW)
    assert load(tmp_path).files == NEW
    assert set(os.listdir(tmp_path)) == {*NEW, "manifest.json", "thoughts.md", ".thoughts.md.new"}


def test_a_save_does_not_overwrite_what_no_save_put_there(tmp_path):
    (tmp_path / "recipe.json").write_text("mine")
    with pytest.raises(ValueError, match=r"recipe\.json is not from a saved run and would be overwritten"):
        save(tmp_path, OLD)
    assert on_disk(tmp_path) == {"recipe.json": b"mine"}


def test_a_file_for_people_belongs_to_the_run_until_somebody_changes_it(tmp_path):
    save(tmp_path, OLD)
    save(tmp_path, {"predictions.csv": b"id,label"}, is_addition=True)
    assert load(tmp_path).files == OLD  # it is not read back
    save(tmp_path, NEW)
    assert set(on_disk(tmp_path)) == {*NEW, "manifest.json"}
    save(tmp_path, {"predictions.csv": b"id,label", "report.html": b"<html>"}, is_addition=True)
    (tmp_path / "predictions.csv").write_text("corrected by hand")
    assert load(tmp_path).files == NEW
    with pytest.raises(ValueError, match=r"predictions\.csv was changed after saving and would be overwritten"):
        save(tmp_path, {"predictions.csv": b"id,label"}, is_addition=True)
    save(tmp_path, OLD)
    assert (tmp_path / "predictions.csv").read_text() == "corrected by hand"
    assert set(on_disk(tmp_path)) == {*OLD, "manifest.json", "predictions.csv"}


def test_a_discarded_state_is_gone_and_other_peoples_files_are_not(tmp_path):
    save(tmp_path / "run", OLD)
    discard(tmp_path / "run", ["tensors.safetensors"])  # of another kind
    assert load(tmp_path / "run").files == OLD
    discard(tmp_path / "run", FILES)
    discard(tmp_path / "run", FILES)
    assert not (tmp_path / "run").exists()
    save(tmp_path / "run", OLD)
    (tmp_path / "run/thoughts.md").write_text("mine")
    discard(tmp_path / "run", FILES)
    assert on_disk(tmp_path) == {"run/thoughts.md": b"mine"}


def test_a_run_folder_has_its_files_under_plain_names(tmp_path):
    for name in ("../up", "a/b", "a\\b", ".next", "", "C:x", "manifest.json", "replaced.json"):
        with pytest.raises(ValueError, match="is no name of a file of a run"):
            save(tmp_path, {**OLD, name: b""})
    assert on_disk(tmp_path) == {}


def test_a_newer_run_is_not_overwritten(tmp_path):
    save(tmp_path, OLD)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    (tmp_path / "manifest.json").write_bytes(encode_json({**manifest, "format": FORMAT + 1}))
    before = on_disk(tmp_path)
    for act in (lambda: save(tmp_path, NEW), lambda: discard(tmp_path, FILES)):
        with pytest.raises(ValueError, match=f"format {FORMAT + 1}"):
            act()
    assert on_disk(tmp_path) == before


def test_a_folder_that_is_a_file_is_said_so(tmp_path):
    (tmp_path / "cora").write_text("mine")
    with pytest.raises(ValueError, match="cora is a file; choose another place"):
        save(tmp_path / "cora", OLD)


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
        return self.fragile(name) if name in ("mkdir", "makedirs", "replace", "unlink", "rmdir", "fsync") else getattr(os, name)

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


def before_each_change(act, tmp_path, monkeypatch):
    """A folder with the state OLD in which `act` was killed, for each of its moments; the last was not."""
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        save(folder, OLD)
        was_stopped = stopped(lambda folder=folder: act(folder), moment, monkeypatch)
        yield folder
        if not was_stopped:
            return


@pytest.mark.long
def test_a_save_killed_at_any_moment_leaves_one_whole_state(tmp_path, monkeypatch):
    seen = []
    for folder in before_each_change(lambda folder: save(folder, NEW), tmp_path, monkeypatch):
        before = on_disk(folder)
        seen.append(load(folder).files)
        assert on_disk(folder) == before  # reading repairs nothing: it works on a read-only disk too
        save(folder, NEWEST)
        assert load(folder).files == NEWEST
        assert set(os.listdir(folder)) == {*NEWEST, "manifest.json"}
    commit = seen.index(NEW)
    assert seen == [OLD] * commit + [NEW] * (len(seen) - commit)
    assert len(FILES) < commit < len(seen) - len(FILES)  # both sides of the commit were visited


@pytest.mark.long
def test_a_save_killed_while_it_recovers_from_a_kill_leaves_one_whole_state(tmp_path, monkeypatch):
    def twice_killed(folder, first, second):
        save(folder, OLD)
        stopped(lambda: save(folder, NEW), first, monkeypatch)
        survivor = load(folder).files
        was_stopped = stopped(lambda: save(folder, NEWEST), second, monkeypatch)
        assert load(folder).files in (survivor, NEWEST)
        return was_stopped

    for first in range(0, 28, 3):
        moments = itertools.takewhile(
            lambda second, first=first: twice_killed(tmp_path / f"{first}-{second}", first, second), itertools.count()
        )
        assert len(list(moments)) > 15


def test_a_first_save_killed_at_any_moment_leaves_nothing_or_a_whole_state(tmp_path, monkeypatch):
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if not stopped(lambda folder=folder: save(folder, NEW), moment, monkeypatch):
            break
        if (folder / "manifest.json").exists():
            assert load(folder).files == NEW
        else:
            with pytest.raises(ValueError, match="is not a run folder"):
                load(folder)
        save(folder, NEWEST)
        assert load(folder).files == NEWEST


def test_a_discard_killed_at_any_moment_leaves_a_whole_state_or_none(tmp_path, monkeypatch):
    seen = []
    for folder in before_each_change(lambda folder: discard(folder, FILES), tmp_path, monkeypatch):
        found = read(folder)
        seen.append(None if found is None else found.files)
        discard(folder, FILES)
        assert not folder.exists()
    gone = seen.index(None)
    assert seen == [OLD] * gone + [None] * (len(seen) - gone)
    assert 1 < gone < len(seen) - len(OLD)


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
                assert str(error).count(os.strerror(number)) == str(error).count(advice) == 1
            else:
                break
        assert load(folder).files in (OLD, NEW)
    assert moment > 2 * len(FILES)  # each is written, and moves to its place


def test_a_disk_that_is_full_for_a_while_leaves_no_trace_of_a_save(tmp_path, monkeypatch):
    save(tmp_path, OLD)
    before, sync = on_disk(tmp_path), []

    class FullDisk:
        def __getattr__(self, name):
            return getattr(os, name)

        def fsync(self, descriptor):
            sync.append(descriptor)
            if len(sync) == 3:
                raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        use_disk(patch, FullDisk())
        save(tmp_path, NEW)
    assert on_disk(tmp_path) == before


def test_each_step_is_on_disk_before_the_next_begins(tmp_path, monkeypatch):
    """What the argument about power cuts rests on; the expected order is that of the module's docstring."""
    folder = tmp_path / "run"
    save(folder, OLD)
    log = []

    def name(path):
        return re.sub(r"\.[0-9a-f]{16}\.new", "HIDDEN", str(Path(path).relative_to(tmp_path)))

    class Recorder:
        def __getattr__(self, function):
            return getattr(os, function)

        def fsync(self, descriptor):
            same = [path for path in folder.rglob("*") if os.path.samestat(path.stat(), os.fstat(descriptor))]
            log.append(f"sync {name(same[0] if same else folder)}")

        def replace(self, source, target):
            os.replace(source, target)
            log.append(f"rename {name(source)}")

        def unlink(self, path):
            log.append(f"remove {name(path)}")
            os.unlink(path)

    use_disk(monkeypatch, Recorder())
    save(folder, NEW)
    assert log == [
        *[f"sync run/HIDDEN/{file}" for file in (*FILES, "replaced.json", "manifest.json")],
        *["sync run/HIDDEN", "rename run/HIDDEN", "sync run", "rename run/HIDDEN/manifest.json", "sync run"],
        *[f"rename run/HIDDEN/{file}" for file in FILES],
        *["remove run/graph.npz", "remove run/HIDDEN/replaced.json"],
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
from gcn_lpa.runs.storage import FILES, save
for number in itertools.count(int(sys.argv[2]) + 1):
    extra = ("even.txt",) if number % 2 == 0 else ()
    save(sys.argv[1], {name: b"%d" % number for name in (*FILES, *extra)})
    print(number, flush=True)
"""


def start_writer(folder, after):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, folder, str(after)],
        cwd=Path(gcn_lpa.__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )


def the_number_in(folder):
    found = load(folder).files
    (number,) = set(found.values())  # all files are of one state
    assert ("even.txt" in found) == (int(number) % 2 == 0)
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
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ValueError, match="is not a run folder"):
            load(folder)


SHA = "0" * 64


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
        ({"format": FORMAT, "files": {"../x": {"sha256": SHA, "size": 1}}}, "changed after it was written"),
        ({"format": FORMAT, "files": {"x": {"sha256": "../../x", "size": 1}}}, "changed after it was written"),
        ({"format": FORMAT, "files": {}}, r"does not list trained\.json, recipe\.json"),
    ],
)
def test_a_foreign_manifest_is_refused_with_what_is_wrong(tmp_path, manifest, complaint):
    (tmp_path / "manifest.json").write_bytes(encode_json(manifest))
    with pytest.raises(ValueError, match=complaint) as caught:
        load(tmp_path)
    assert str(tmp_path / "manifest.json") in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_pipes_do_not_keep_us_waiting(tmp_path):
    save(tmp_path, OLD)
    os.mkfifo(tmp_path / f".{'0' * 16}.new")
    save(tmp_path, OLD)
    assert set(os.listdir(tmp_path)) == {*OLD, "manifest.json"}
    (tmp_path / "recipe.json").unlink()
    os.mkfifo(tmp_path / "recipe.json")
    assert refused(tmp_path, "recipe.json: not a file")


def test_links_in_the_place_of_files_are_not_followed(tmp_path):
    """Neither to read, nor to write: a link that waits under a hidden name is replaced like any other leftover."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter").write_text("mine")
    run = tmp_path / "run"
    save(run, OLD)
    hidden = run / f".{hashlib.sha256((run / 'manifest.json').read_bytes()).hexdigest()[:16]}.new"
    for name in (hidden.name, f".{'0' * 16}.new"):
        (run / name).symlink_to(home)
    with pytest.raises(ValueError, match=r"\.new is a link; there are none in a run folder"):
        load(run)
    save(run, OLD)
    hidden.mkdir()
    (hidden / "recipe.json").symlink_to(home / "letter")
    with pytest.raises(ValueError, match=r"\.new/recipe\.json is a link; there are none in a run folder"):
        load(run)
    save(run, NEW)
    assert load(run).files == NEW
    assert on_disk(home) == {"letter": b"mine"}
    for name in ("recipe.json", "manifest.json"):
        (run / name).unlink()
        (run / name).symlink_to(home / "letter")
        with pytest.raises(ValueError, match=rf"{name} is a link; there are none in a run folder"):
            load(run)
