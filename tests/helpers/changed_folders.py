"""Copies of run folders in which a file was changed and the checksums were written anew."""

import hashlib
import json
import shutil

import safetensors.torch

from gcn_lpa.data.files import encode_json
from gcn_lpa.runs.storage import FORMAT


def resign(folder, number=FORMAT):
    """Write the manifest of a folder anew, so that it fits the files as they are."""
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}
    entries = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in files.items()}
    (folder / "manifest.json").write_bytes(encode_json({"format": number, "files": entries}))


def changed(run, folder, name, change):
    """A copy of a run in which `change` was done to the value or the tensors of one file, signed anew."""
    shutil.copytree(run, folder)
    path = folder / name
    if path.suffix == ".json":
        value = json.loads(path.read_bytes())
        path.write_bytes(encode_json(change(value) or value, indent=None))
    else:
        tensors = safetensors.torch.load(path.read_bytes())
        change(tensors)
        path.write_bytes(safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()}))
    resign(folder)
    return folder


def put(*path_and_value):
    """A change that puts a value at a place: put("scores", "num_nodes", -1)."""
    *path, last, value = path_and_value

    def change(found):
        for key in path:
            found = found[key]
        found[last] = value

    return change


def without(key):
    def change(found):
        found.pop(key)

    return change


def made(key, function):
    """A change that replaces a tensor, or a value, by a function of it."""

    def change(found):
        found[key] = function(found[key])

    return change


def made_in(place, key, function):
    """The same, for a value inside another."""
    change = made(key, function)
    return lambda found: change(found[place])


def entry(k, value):
    """A function that puts a value into entry k of a copy."""

    def function(tensor):
        tensor = tensor.clone()
        tensor.view(-1)[k] = value
        return tensor

    return function
