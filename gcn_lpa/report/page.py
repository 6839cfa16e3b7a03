"""report.html: one file with everything in it, that asks the network for nothing.

Names, labels and notes come from the user's files and stay text: Jinja2 escapes what is written into HTML, `tojson` what is
written into JSON (a </script> in a name cannot end it), and the script sets text, never HTML. A content security policy allows
the page's own script and style, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from gcn_lpa.data.files import check_output, write_output
from gcn_lpa.report.contents import ROWS, Contents, OpenRun, Say, contents
from gcn_lpa.report.graph_view import graph_view
from gcn_lpa.report.pictures import curve, reliability_chart
from gcn_lpa.runs import storage
from gcn_lpa.runs.folder import load_run


def write_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    data: str | Path | None = None,
    trains: bool = True,
    device: str = "auto",
    say: Say = lambda text: None,
) -> Path:
    """Write the page about a run folder and return where it is.

    Args:
        out: the file, replaced if it is there; None: report.html in the run folder, replaced if a run wrote it.
        data: where the graph of the run is now, if not where it was.
        trains, device, say: as in `contents`.
    """
    folder = Path(folder)
    if out is None:
        storage.check_free(folder, [storage.PAGE])
    else:
        check_output(out, overwrite=True)
    subject = OpenRun(load_run(folder, data))
    page = render(subject, contents(subject, trains=trains, device=device, say=say), say=say)
    if out is None:
        storage.add(folder, {storage.PAGE: page})
        return folder / storage.PAGE
    write_output(out, page)
    return Path(out)


def render(subject: OpenRun, found: Contents, *, live: bool = False, say: Say = lambda text: None) -> bytes:
    """The page as HTML; `live` where a server answers what it asks."""
    from jinja2 import Environment, FunctionLoader

    say("drawing the graph")
    listed = [subject.graph.index_of(node) for node in found.explanations]
    view = {**graph_view(subject, listed), "explanations": found.explanations, "live": live}
    environment = Environment(
        loader=FunctionLoader(_template), autoescape=True, trim_blocks=True, lstrip_blocks=True, auto_reload=False
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"percent": _percent, "number": lambda value: f"{value:,}"}
    script, style = _template("report.js"), _template("report.css")
    text = environment.get_template("report.html.j2").render(
        page=found,
        view=view,
        live=live,
        rows=ROWS,
        curves=curve(found.history, found.best_epoch),
        reliability=None if found.calibration.value is None else reliability_chart(found.calibration.value),
        script=script,
        style=style,
        policy=policy(script, style, live),
    )
    return text.encode("utf-8", "replace")  # a lone surrogate in a name has no UTF-8


def policy(script: str, style: str, live: bool) -> str:
    """The content security policy: our script, our style, and where a server answers, that server."""
    own = (f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (script, style))
    script_hash, style_hash = own
    asks = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {script_hash}; style-src {style_hash}; connect-src {asks}; base-uri 'none'; "
        "form-action 'none'"
    )


def _template(name: str) -> str:
    return (files("gcn_lpa.report") / "templates" / name).read_text(encoding="utf-8")


def _percent(rate: float | None) -> str:
    return "–" if rate is None else f"{100 * rate:.1f} %"
