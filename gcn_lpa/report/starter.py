"""A folder to begin with: a small graph in the files that gcn-lpa reads, and a page that says what each column may hold."""

from __future__ import annotations

from pathlib import Path

from gcn_lpa.data.files import write_output

NODES = """\
id,label,age,city,about
anna,chess,34,Lyon,opening theory and long endgames
ben,chess,29,Lyon,blitz games in the park
carla,,41,Turin,endgames and problem solving
dmitri,chess,52,Lyon,club captain
eva,,27,,plays online
farid,,38,Turin,opening theory
gina,go,33,Turin,territory and influence
hugo,,45,Nice,"stones, boards and tea"
ines,go,24,Nice,joseki study group
jan,,31,Nice,territory games
kim,go,36,Turin,life and death problems
lena,,48,Nice,joseki and tea
"""

EDGES = """\
source,target,weight
anna,ben,3
anna,carla,2
anna,dmitri,4
ben,dmitri,1
ben,eva,2
carla,farid,1
dmitri,farid,2
eva,farid,1
farid,gina,1
gina,hugo,2
gina,ines,3
gina,kim,4
hugo,jan,1
hugo,lena,2
ines,jan,2
ines,kim,1
jan,lena,1
kim,lena,3
"""

README = """\
# A graph for gcn-lpa

`nodes.csv`: one row for each node.

- `id`: any text or number, each once; it comes back unchanged in the output.
- `label`: the class of the node, empty where it is not known. At least two classes need a labelled node; a few of each are better.
- Any other columns become features: numbers (`age`), categories (`city`), text (`about`), dates, yes and no. Empty cells are fine.

`edges.csv`: one row for each edge.

- `source` and `target`: two ids of `nodes.csv`. Edges have no direction unless you say `-o directed=true`.
- `weight`: a positive number, larger for stronger; the column may be left out.

Replace the rows by your own, then:

    gcn-lpa info {folder}                        what is read, and what is made of each column
    gcn-lpa train {folder} --out run --report    labels in run/predictions.csv, the page in run/report.html
    gcn-lpa ask run                              the page with answers to further questions

Your columns have other names? `-o id=NAME -o label=NAME -o source=NAME -o target=NAME` says which is which.
"""


def write_starter(folder: str | Path) -> list[Path]:
    """Write nodes.csv, edges.csv and README.md into a folder that has none of them, and return their paths."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder to write the example into")
    texts = {"nodes.csv": NODES, "edges.csv": EDGES, "README.md": README.replace("{folder}", str(folder))}
    if there := [name for name in texts if (folder / name).exists()]:
        raise ValueError(f"{folder / there[0]} is there already and would be overwritten; name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_output(folder / name, text.encode())
    return [folder / name for name in texts]
