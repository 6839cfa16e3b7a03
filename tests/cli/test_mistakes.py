"""What users get wrong, in their files and on the command line: each mistake is one sentence that says what would be right, or a
line that begins with "warning:"; none is a traceback, and none passes in silence."""

from dataclasses import dataclass, field

import pytest
import torch
from typer.testing import CliRunner

from gcn_lpa.cli.app import app
from gcn_lpa.pyg import LPARegularizer
from tests.helpers.bad_files import BAD_FILES
from tests.helpers.bad_files import EDGES as FEW_EDGES
from tests.helpers.bad_files import NODES as FEW_NODES
from tests.helpers.ring_runs import run_of

N = 12
EDGES = "source,target\n" + "".join(f"n{k},n{(k + 1) % N}\n" for k in range(N))
INFO, TRAIN = "info {data}", "train {data} --epochs 1"


def table(values, header="id,label,v"):
    """Twelve nodes, with what a column holds, over and over."""
    rows = (f"n{k},{'red' if k % 3 else 'blue'},{values[k % len(values)]}\n" for k in range(N))
    return f"{header}\n{''.join(rows)}"


def labels(*values):
    return "id,label\n" + "".join(f"n{k},{values[k % len(values)]}\n" for k in range(N))


def numbered(form):
    """The same nodes and edges by number, the ids of the edges in another form."""
    nodes = "id,label\n" + "".join(f"{k:03d},{'red' if k % 2 else 'blue'}\n" for k in range(N))
    return {"nodes.csv": nodes, "edges.csv": "source,target\n" + "".join(f"{form.format(k)},002\n" for k in (7, 1))}


@dataclass(frozen=True)
class Mistake:
    said: str  # a "warning:" line, or the error
    command: str = INFO
    files: dict[str, str | bytes] = field(default_factory=dict)


def column(said, *values, command=INFO):
    return Mistake(said, command, {"nodes.csv": table(values)})


def words(said, command):
    return Mistake(said, command)


ELEVEN = [str(k) for k in range(1, 12)]
FILES = {
    "% beside another text": column("warning: nodes.csv, row 4, column 'v' is 'x%' and other", "1%", "2%", "x%", "5%", "3%"),
    "two currencies": column("warning: nodes.csv, row 4, column 'v' is '€5' and other cells are such as '$12'", "$12", "$13", "€5"),
    "two decimal marks": column("warning: nodes.csv, row 2, column 'v' is '1,5' and other", '"1,5"', "2.5", '"3,5"', "0.5"),
    "a date among numbers": column("row 13, column 'v' is '2024-01-05', no number, read as missing", *ELEVEN, "2024-01-05"),
    "true among numbers": column("warning: nodes.csv, row 13, column 'v' is 'true', no number", *ELEVEN, "true"),
    "a word among numbers": column("warning: nodes.csv, row 13, column 'v' is 'old', no number", *ELEVEN, "old"),
    "a unit among numbers": column("warning: nodes.csv, row 13, column 'v' is '12 kg', no number", *ELEVEN, "12 kg"),
    "an Excel error": column("warning: nodes.csv, row 13, column 'v' is '#DIV/0!', no number", *ELEVEN, "#DIV/0!"),
    "a day that there is not": column(
        "row 4, column 'v' is '2024-02-30', no date",
        *["2024-01-01", "2024-01-02", "2024-02-30", "2024-03-01", "2024-03-02", "2024-03-03"],
    ),
    "day or month first": column("warning: column 'v' is left out: day and month could", "01/02/2024", "03/04/2024", "05/06/2023"),
    "a column like an id": column("warning: column 'v' is left out: its cells are nearly all", *(f"u{k}" for k in range(N))),
    "a column that says nothing": column("warning: column 'v' is left out: it says the same", "same"),
    "an empty column": column("warning: column 'v' is left out: no cell is filled", ""),
    "a column that tells the answer": column("warning: column 'v' alone tells the class", "B", "R", "R", command=TRAIN),
    "lost zeros": Mistake(
        "edges.csv, row 2, column 'source' is '7', which nodes.csv does not list; close to it: 007",
        INFO,
        numbered("{}"),
    ),
    "ids as fractions": Mistake(
        "edges.csv, row 2, column 'source' is '7.0', which nodes.csv does not list; close to it: 007",
        INFO,
        numbered("{}.0"),
    ),
    "ids in capitals": Mistake(
        "column 'source' is 'N1', which nodes.csv does not list; close to it: n1",
        INFO,
        {"edges.csv": EDGES.replace("n1,", "N1,")},
    ),
    "a label that means unknown": Mistake(
        "warning: the label '?' is read as a class; if it means unknown, say option unknown=?",
        TRAIN,
        {"nodes.csv": labels("red", "blue", "?")},
    ),
    "-1 for unknown": Mistake("warning: the label '-1' is read as a class", INFO, {"nodes.csv": labels("0", "1", "-1")}),
    "a label in two cases": Mistake(
        "warning: the labels 'Red', 'red' differ by upper and lower case", INFO, {"nodes.csv": labels("red", "Red")}
    ),
    "a label with a blank": Mistake(
        "warning: the labels ' red', 'red' differ by blanks", INFO, {"nodes.csv": labels("red", " red")}
    ),
    "a misspelt label": Mistake(
        "warning: the label 'oragne' may be 'orange' misspelt (1 and 11 nodes)",
        INFO,
        {"nodes.csv": labels(*["orange"] * 11, "oragne")},
    ),
    "two columns for the label": Mistake(
        "warning: 'class' could be the label too", INFO, {"nodes.csv": table(["a", "b"], "id,label,class")}
    ),
    "one class": Mistake(
        "every label of 'data' is 'red'; to tell classes apart it takes labels of two",
        TRAIN,
        {"nodes.csv": labels("red")},
    ),
    "no label at all": Mistake(
        "'data' has no labelled node to train on; give some of its nodes a label", TRAIN, {"nodes.csv": labels("")}
    ),
    "measurements for labels": Mistake(
        "nodes.csv, row 2, column 'label' is '0.5', which is no class", INFO, {"nodes.csv": labels("0.5", "1.5")}
    ),
    "no edges": Mistake(
        "warning: there are no edges: every node is labelled by its features alone",
        INFO,
        {"edges.csv": "source,target\n"},
    ),
    "a weight in words": Mistake(
        "edges.csv, row 2, column 'weight' is 'heavy'; a weight is a positive number",
        INFO,
        {"edges.csv": "source,target,weight\nn0,n1,heavy\n"},
    ),
    "a weight with a comma": Mistake(
        "column 'weight' is '1,5'; a weight is a positive number (leave the row out for 0) (a decimal point, not a comma: 1.5)",
        INFO,
        {"edges.csv": 'source,target,weight\nn0,n1,"1,5"\n'},
    ),
    "nodes and edges changed": Mistake(
        "edges.csv has no column for the source (such as source",
        INFO,
        {"nodes.csv": EDGES, "edges.csv": labels("a", "b")},
    ),
    "blanks between cells": Mistake(
        "nodes.csv has no column for the id (such as id, node", INFO, {"nodes.csv": labels("a", "b").replace(",", " ")}
    ),
    "an Excel file": Mistake(
        "holds edges.xlsx, which is not read: save it as edges.csv (CSV, UTF-8)",
        INFO,
        {"edges.csv": "", "edges.xlsx": b"PK\3\4"},
    ),
    "a zip named .csv": Mistake("nodes.csv is a zip archive or an Excel workbook", INFO, {"nodes.csv": b"PK\x03\x04\x14\x00"}),
    "an old Excel file named .csv": Mistake("nodes.csv is an old Excel workbook", INFO, {"nodes.csv": b"\xd0\xcf\x11\xe0\xa1\xb1"}),
    "a web page named .csv": Mistake("nodes.csv is a web page", INFO, {"nodes.csv": b"<!DOCTYPE html><title>Log in"}),
    "a PDF named .csv": Mistake("nodes.csv is a PDF", INFO, {"nodes.csv": b"%PDF-1.7\n"}),
    "a Parquet named .csv": Mistake("nodes.csv is a Parquet file", INFO, {"nodes.csv": b"PAR1\x15\x04"}),
    "a gzip named .csv": Mistake("nodes.csv is compressed by gzip", INFO, {"nodes.csv": b"\x1f\x8b\x08\x00"}),
    "a picture named .csv": Mistake("nodes.csv is a picture", INFO, {"nodes.csv": b"\x89PNG\r\n\x1a\n\x00\x00"}),
    "a time in words": words(
        "nodes.csv, row 2, column 'label' is 'blue'; a time is a date, such as 2024-01-31", "train {data} -o time=label"
    ),
    "a recipe that is no JSON": Mistake(
        "recipe.json: not valid JSON", "train {data} --recipe {data}/recipe.json", {"recipe.json": "{lr: 1}"}
    ),
    "a recipe that is a list": Mistake(
        "recipe.json: a recipe is an object of settings",
        "train {data} --recipe {data}/recipe.json",
        {"recipe.json": "[1]"},
    ),
    "a recipe with a field of its own": Mistake(
        "a recipe has no field 'learning_rate'; it has method",
        "train {data} --recipe {data}/recipe.json",
        {"recipe.json": '{"learning_rate": 1}'},
    ),
    "a recipe with a word for a number": Mistake(
        "recipe: lr = 'fast'; it is a finite number",
        "train {data} --recipe {data}/recipe.json",
        {"recipe.json": '{"lr": "fast"}'},
    ),
    "a candidate that there is not": Mistake(
        "ids.txt, line 2: graph 'data' has no node 'zz'",
        "suggest {run} --candidates {data}/ids.txt",
        {"ids.txt": "n1\nzz\n"},
    ),
}
WORDS = {
    "an option misspelt": words("No such option: --epocs (Possible options: --epochs", "train {data} --epocs 5"),
    "another option misspelt": words("No such option: --abstian (Possible options: --abstain", "predict {run} --abstian 1"),
    "a command misspelt": words("No such command 'trian'. Did you mean 'train'?", "trian {data}"),
    "a key of -o misspelt": words("did you mean label?", "info {data} -o lable=label"),
    "-o without a value": words("'label' is not KEY=VALUE: write label=COLUMN", "info {data} -o label"),
    "a column misspelt": words(
        "nodes.csv has no column 'vv'; it has 'id', 'label', 'v'; did you mean v?", "info {data} -o features=vv"
    ),
    "a label column misspelt": words(
        "nodes.csv has no column 'lable'; it has 'id', 'label', 'v'; did you mean label?", "info {data} -o label=lable"
    ),
    "a data set misspelt": words("'corra' is neither a data set nor a folder; did you mean cora?", "info corra"),
    "a method misspelt": words("unknown method 'gnc'; there are mlp, lr,", "train {data} --method gnc"),
    "a method of a comparison misspelt": words("did you mean gcn?", "compare {data} --methods lpa,gnc"),
    "a recipe misspelt": words("unknown recipe 'defualt'; there are default, quick, best", "train {data} --recipe defualt"),
    "a split misspelt": words("unknown split 'unifrom'; there are uniform,", "train {data} --split unifrom"),
    "a setting misspelt": words(
        "'epoch=3' is not NAME=VALUE with a field of the recipe", "tune {data} --set epoch=3 --out {data}/s"
    ),
    "a device misspelt": words("unknown device 'gpu'; it is one of auto, cpu, cuda", "train {data} --device gpu"),
    "a choice misspelt": words("loss is 'official2'; it is one of official, literal", "train {data} --loss official2"),
    "a node misspelt": words("graph 'data' has no node 'n99'; close to it: n9", "explain {run} --node n99"),
    "a class misspelt": words("there is no class 'godo'; close to it: good", "what-if {run} --label n9=godo"),
    "a folder that is not there": words("'nowhere' is neither a data set nor a folder", "train nowhere"),
    "a run that is not there": words("nowhere is not a run folder: there is nothing of that name", "predict nowhere"),
    "a page of no run": words("nowhere is not a run folder: there is nothing of that name", "report nowhere"),
    "data in place of a run": words("is not a run folder: it has no manifest.json", "predict {data}"),
    "a run in place of data": words("needs nodes.csv and edges.csv, or edges.csv alone", "train {run}"),
    "a recipe that is not there": words("nowhere.json: No such file or directory", "train {data} --recipe nowhere.json"),
    "candidates that are not there": words("nowhere.txt: No such file or directory", "suggest {run} --candidates nowhere.txt"),
    "a place that is not there": words("there is no folder /nowhere to write p.csv in", "predict {run} --out /nowhere/p.csv"),
    "a file that is there": words("nodes.csv exists; choose another file, or --overwrite", "predict {run} --out {data}/nodes.csv"),
    "a run where a file is": words("nodes.csv is a file; choose another place", "train {data} --epochs 1 --out {data}/nodes.csv"),
    "a run where something is": words(
        "is not empty; choose another folder, or --overwrite", "train {data} --epochs 1 --out {data}"
    ),
    "files to begin with, twice": words("nodes.csv is there already and would be overwritten", "init {data}"),
    "a page without a place": words("--report goes with --out DIR", "train {data} --report"),
    "no node to explain": words("give either --node ID or --all", "explain {run}"),
    "no question": words("nothing is asked: give at least one of --label", "what-if {run}"),
    "a label without a class": words("'n1' has no '=' between two names", "what-if {run} --label n1"),
    "a label that is there": words("node 'n0' was trained on as 'good'; relabel it instead", "what-if {run} --label n0=good"),
    "an edge that is not there": words("there is no edge n0 – n5; n0 is joined to n1, n11", "what-if {run} --remove-edge n0,n5"),
    "an audit of nothing": words("audit either --labels or --edges", "audit {run}"),
    "a probability in percent": words("abstain = 60.0; it is a probability, such as 0.6", "predict {run} --abstain 60"),
    "a level in percent": words("level = 90.0; it is a share between 0 and 1, such as 0.9", "predict {run} --sets 90"),
    "a share to reserve in percent": words(
        "reserve = 20.0; it is a share of the validation nodes", "train {data} --split uniform --reserve 20"
    ),
    "no epochs": words("epochs = 0; it is at least 1", "train {data} --epochs 0"),
    "a word for a number": words("Invalid value for '--epochs'", "train {data} --epochs many"),
    "a negative rate": words("lr = -1.0; it is positive", "train {data} --lr -1"),
    "a rate that is no number": words("lr = nan; it is a finite number", "train {data} --lr nan"),
    "all dropped out": words("dropout = 1.0; it is in [0, 1)", "train {data} --dropout 1"),
    "a seed below 0": words("seed = -1; it is at least 0", "train {data} --seed -1"),
    "no threads": words("Invalid value for '--threads'", "train {data} --threads 0"),
    "nobody to suggest": words("Invalid value for '-n'", "suggest {run} -n 0"),
    "a setting that the method lacks": words(
        "method 'mlp' does not use lpa_weight = 1.0; it uses features", "train {data} --method mlp --lpa-weight 1"
    ),
    "iterations that are not exact": words(
        "leave_one_out is exact for one or two LPA iterations, not 5",
        "train {data} --lpa-iterations 5 --loss leave_one_out",
    ),
    "the paper's recipe for your graph": words(
        "recipe 'paper' has no settings for 'data', only for cora", "train {data} --recipe paper"
    ),
    "a published split of your graph": words("'data' has no official split here (cora,", "train {data} --split official"),
    "a reference that is not compared": words(
        "the reference 'lpa' is not among the methods gcn", "compare {data} --methods gcn --reference lpa"
    ),
    "an option of growth without --on": words("--root and -o go with --on", "predict {run} --root {data}"),
    "other settings for a run that goes on": words(
        "--seed, --epochs: --resume --out DIR, without a graph, goes on",
        "train --resume --out {run} --epochs 5 --seed 1",
    ),
    "predictions in place of a model": words(
        "which needs it; choose another file", "predict {run} --out {run}/model.safetensors --overwrite"
    ),
    "edges in place of a manifest": words(
        "which needs it; choose another file", "edges {run} --out {run}/manifest.json --overwrite"
    ),
    "an explanation of an odd kind": words(
        "--picture x.foo: a picture ends in .png, .svg, .pdf", "explain {run} --node n1 --picture x.foo"
    ),
    "a page to serve of no run": words("nowhere is not a run folder", "report nowhere --serve"),
}
CSV = {
    name: Mistake(
        said,
        INFO,
        {
            "nodes.csv": FEW_NODES,
            "edges.csv": FEW_EDGES,
            **{key.replace("_", "."): value for key, value in files.items()},
        },
    )
    for name, (files, said) in BAD_FILES.items()
}
MISTAKES = {**{f"file: {name}": one for name, one in CSV.items()}, **FILES, **WORDS}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("mistakes")).folder


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_sentence(tmp_path, run_folder, name):
    one, data = MISTAKES[name], tmp_path / "data"
    data.mkdir()
    for file, content in {"nodes.csv": table(["1", "2", "4"]), "edges.csv": EDGES, **one.files}.items():
        if content != "":
            (data / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = CliRunner().invoke(app, one.command.format(data=data, run=run_folder).split())
    assert isinstance(done.exception, SystemExit | None), f"a traceback: {done.exception!r}"
    said = " ".join((done.stdout + done.stderr).split())
    assert one.said in said
    if "warning:" in said:
        assert done.exit_code == 0
    else:
        assert done.exit_code in (1, 2)
        assert done.stdout == ""
        sentence = done.stderr.removeprefix("gcn-lpa: ") if done.exit_code == 1 else done.stderr.partition("Error: ")[2]
        assert sentence.count("\n") == 1
        assert "Traceback" not in said
        assert "Errno" not in said


def test_the_table_has_its_eighty_kinds():
    assert len({one.said for one in MISTAKES.values()}) >= 80


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"edges": "agnn"}, "edges = 'agnn'; it is the number of edges"),
        ({"edges": 4, "iterations": 0}, "iterations = 0; a label travels at least 1 hop"),
        ({"edges": 4, "loss": "oficial"}, "loss = 'oficial'; it is one of official"),
        ({"edges": 4, "ratio": 2.0}, "lpa_ratio = 2.0; it is in"),
        ({"edges": 4, "net": torch.nn.Linear(1, 1)}, "Linear has no layer of PyTorch Geometric"),
    ],
)
def test_a_mistake_with_the_regulariser_is_a_sentence_too(arguments, said):
    with pytest.raises((TypeError, ValueError)) as refusal:
        LPARegularizer(**arguments)
    assert said in str(refusal.value)
