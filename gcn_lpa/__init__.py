"""Label the nodes of a partly labelled graph: GCN-LPA, Wang & Leskovec (2020), in an ensemble with label votes.

    Graph → Recipe → learn → Trained → predict / explain

The public names are those of `__init__.pyi`. They are imported when they are first used, so that `import gcn_lpa` takes no time and
imports no torch.
"""

import os
from importlib import import_module
from typing import Any

with open(os.path.splitext(__file__)[0] + ".pyi", encoding="utf-8") as _stub:  # from MODULE import NAME as NAME
    _MODULE = {words[3]: words[1] for words in map(str.split, _stub) if words[:1] == ["from"]}

__all__ = sorted(_MODULE)


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # slow to import

        try:
            value = version("gcn-lpa")
        except PackageNotFoundError:  # a copy that nobody installed
            value = "unknown"
    elif name in _MODULE:
        value = getattr(import_module(_MODULE[name]), name)
    else:
        raise AttributeError(f"gcn_lpa has no {name!r}; it has {', '.join(__all__)} and its modules, which are imported by name")
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE, "__version__"})
