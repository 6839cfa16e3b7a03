"""What a training command is going to do, settled before anything is trained."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcn_lpa.data.checks import check_seed, is_address, meant, refuse_password
from gcn_lpa.data.datasets import DATASETS, load
from gcn_lpa.data.files import read_json
from gcn_lpa.data.splits import require_classes
from gcn_lpa.data.splits import split as split_nodes
from gcn_lpa.edges import forms_for_new_edges
from gcn_lpa.graph import Graph
from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import Case, Recipe, case_of, named_recipe, recipe_for

PATHS = ("nodes", "labels")  # options of reading that name files


@dataclass(frozen=True)
class Source:
    """Where a graph comes from, as the user named it: a data set, a path or an address, and the options of reading it."""

    name: str
    root: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for text in (self.name, *self.options.values()):
            refuse_password(str(text))  # of a database: before anything is written or said

    @property
    def is_named(self) -> bool:
        return self.name.lower() in DATASETS

    def at(self, place: str) -> Source:
        """The same graph elsewhere: another path, or a database without a table, sqlite:///new.db, for all tables."""
        if is_address(place) and "?" not in place:
            named = {"": self.name, **self.options}
            moved = {key: f"{place}?{text.partition('?')[2]}" for key, text in named.items() if is_address(text)}
            return Source(moved.pop("", self.name), self.root, {**self.options, **moved})
        is_table = is_address(place) or not Path(place).is_dir()
        options = {key: value for key, value in self.options.items() if is_table or key != "nodes"}
        return Source(place, self.root, options)

    def seen_from(self, folder: Path) -> Source:
        """The same with relative paths seen from a folder."""
        return self._moved(lambda path: os.path.relpath(Path(path).resolve(), folder.resolve()))

    def found_from(self, folder: Path) -> Source:
        """The inverse of `seen_from`; a path that is not there stays as it is."""
        start = folder.resolve()
        return self._moved(lambda path: os.path.relpath(start / path) if (start / path).exists() else path)

    def _moved(self, move: Callable[[str], str]) -> Source:
        def moved(path: str) -> str:
            return path if is_address(path) or os.path.isabs(path) else move(path)

        old = self.options
        options = {key: moved(value) if key in PATHS and value and isinstance(value, str) else value for key, value in old.items()}
        return Source(self.name if self.is_named else moved(self.name), self.root and moved(self.root), options)

    def load(self) -> Graph:
        options = {**self.options}
        name = options.pop("name", None)  # of the graph; `load` takes its first argument by that name
        graph = load(self.name, self.root, **options)
        return graph if name is None else dataclasses.replace(graph, name=name)


@dataclass(frozen=True)
class Plan:
    """What a training command is going to do; the same plan on the same machine gives the same run.

    `split` is a kind of split, or None for folds of all labels, as your own graph is learned.
    """

    source: Source
    content: str  # hash of the graph
    recipe: Recipe
    seed: int = 0
    split: str | None = "uniform"
    checkpoint_every: int = 50
    reserve: float = 0.0  # share of the validation nodes that choose nothing and calibrate label sets
    minutes: float = 0.0  # that training may take, about; 0: as long as it takes
    report: bool = field(default=False, compare=False)  # files for people were asked for: the same run without them

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("checkpoint_every", "minutes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}; it is not negative")
        if not 0 <= self.reserve < 1:
            raise ValueError(f"reserve = {self.reserve}; it is a share of the validation nodes, in [0, 1)")

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "recipe": self.recipe.to_dict()}


def make_plan(
    source: Source,
    *,
    method: str | None = None,
    recipe: str | Path = "default",
    changes: Mapping[str, Any] | None = None,
    seed: int = 0,
    split: str | None = None,
    checkpoint_every: int = 50,
    reserve: float = 0.0,
    minutes: float = 0.0,
    has_time: bool = False,
) -> tuple[Plan, Graph]:
    """Read the graph and settle what is to be done with it.

    Args:
        method: a key of METHODS; without one that of the recipe, which is "gcn-lpa" unless a file says otherwise.
        recipe: "default", "best", "paper", "official", or a JSON file with the fields of `Recipe`.
        changes: fields of the recipe that shall differ.
        split: a kind of `gcn_lpa.split`; None is uniform for a named data set, and all labels for your own graph, or "time"
            where a column says when its nodes came.
        reserve: share of the validation nodes that choose nothing, for label sets with a guarantee.
        minutes: as in `learn`.
        has_time: for costly members of `best`, as on a GPU.
    """
    seed = check_seed(seed)
    if method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(METHODS)}{meant(method, METHODS)}")
    graph = source.load()
    kind = split or ("uniform" if source.is_named else None if graph.time is None else "time")
    require_classes(graph)
    if reserve and kind is None:
        raise ValueError(
            f"reserve = {reserve}, but without a split all labels train, and the cross-validation calibrates; "
            "choose a split such as 'uniform' to reserve validation nodes"
        )
    train = graph.labeled if kind is None else split_nodes(graph, seed=seed, kind=kind).train
    settings = chosen_recipe(
        recipe, method, graph.name, case_of(graph, train), by_folds=kind is None, has_time=has_time or minutes > 0
    )
    settings = with_changes(settings, changes)
    if kind == "time" and graph.x_kind == "identity":
        raise ValueError("without features a model knows nodes by their place: features='degree' scores later ones")
    if kind == "time" and "edges" in METHODS[settings.method].fields and settings.edges == "free":
        raise ValueError(
            "edge form 'free' keeps one weight per training edge and cannot score those of later nodes; "
            f"choose one of {forms_for_new_edges()}"
        )
    content = graph.content_hash(64)
    return Plan(source, content, settings, seed, kind, checkpoint_every, reserve, minutes), graph


def chosen_recipe(
    recipe: str | Path, method: str | None, dataset: str, case: Case, *, by_folds: bool, has_time: bool = False
) -> Recipe:
    """The settings that a recipe, or a JSON file of one, has for a graph; the rest as in `make_plan`."""
    if Path(recipe).suffix == ".json":
        fields = read_json(recipe)
        if not isinstance(fields, dict):
            raise ValueError(f'{recipe}: a recipe is an object of settings, such as {{"lr": 0.01}}, not {fields!r:.40}')
        settings = Recipe.from_dict(fields)
        settings = settings if method is None else settings.replace(method=method)
        if settings.method in METHODS:
            METHODS[settings.method].check(settings, recipe_for(case))
    else:
        ours = named_recipe(str(recipe), dataset, case, by_folds=by_folds, has_time=has_time)
        chosen = METHODS[method or "gcn-lpa"]
        settings = chosen.beside(ours, str(recipe))
        if by_folds and "select" in chosen.fields:
            settings = settings.replace(select=ours.select)
    if settings.method not in METHODS:
        raise ValueError(f"{recipe}: unknown method {settings.method!r}; there are {', '.join(METHODS)}")
    return settings


def with_changes(settings: Recipe, changes: Mapping[str, Any] | None) -> Recipe:
    """The settings with other values of these fields, which the origin then names."""
    if not changes:
        return settings
    changed = ", ".join(f"{name} = {value}" for name, value in changes.items())
    settings = METHODS[settings.method].with_changes(settings, changes)
    return settings.replace(origin=f"{settings.origin}; with {changed}")
