"""How long the page of a run takes to write and to open, and what memory, for graphs of 1,000 and 20,000 nodes.

    python benchmarks/report.py                    print the figures, write benchmarks/results/report-cpu.json
    python benchmarks/report.py --repeats 1        a quick look

The graphs are block models of four classes with 10 neighbours a node. The page is written with --quick, which trains nothing.
It is opened from file:// by Debian's Chromium, headless, without a GPU: first contentful paint and the time until the graph is
drawn are from the start of the navigation; the memory is the script's heap, and what all processes of the browser grew by.
Where Plotly is installed, the same graph is drawn by it too, with WebGL and its library in the file, for comparison.
"""

import argparse
import base64
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from gcn_lpa.data.files import write_json
from gcn_lpa.engine.devices import environment
from gcn_lpa.report.graph_view import graph_view
from gcn_lpa.report.page import OpenRun, write_report
from gcn_lpa.runs.plan import Source, make_plan
from gcn_lpa.runs.train_run import train_run

ROOT = Path(__file__).resolve().parents[1]
SIZES = (1_000, 20_000)
LIMIT_SECONDS = 2.0
DRAWN = """const done = arguments[0]; const look = () => document.documentElement.dataset.drawn
    ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5); look()"""
REDRAWN = """const start = performance.now(); for (let k = 0; k < 10; k++) dispatchEvent(new Event('beforeprint'));
    return (performance.now() - start) / 10"""


def block_run(n, folder):
    """A run on a block model of n nodes, trained for a few epochs."""
    plan, graph = make_plan(Source("sbm", None, {"n": n}), changes={"epochs": 5})
    return train_run(plan, graph, folder / f"run-{n}")


def opened():
    """A fresh browser."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--enable-unsafe-swiftshader",
        "--disable-dev-shm-usage",
        "--window-size=1280,900",
        "--enable-precise-memory-info",
    ):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))


def plotly_page(run, folder):
    """The same nodes and edges drawn by Plotly with WebGL, its library inlined; None where it is not installed."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        return None
    opened_run = OpenRun(run)
    view = graph_view(opened_run)
    place = np.frombuffer(base64.b64decode(view["xy"]), "<u2").reshape(-1, 2)
    ends = [np.frombuffer(base64.b64decode(view[name]), "<u2") for name in ("source", "target")]
    lines = np.full((3 * len(ends[0]), 2), np.nan)
    lines[0::3], lines[1::3] = place[ends[0]], place[ends[1]]
    edges = go.Scattergl(x=lines[:, 0], y=lines[:, 1], mode="lines", line={"width": 0.5, "color": "grey"}, hoverinfo="skip")
    label = opened_run.probabilities.argmax(dim=1).numpy()
    nodes = go.Scattergl(x=place[:, 0], y=place[:, 1], mode="markers", marker={"size": 4, "color": label}, text=view["names"])
    path = folder / "plotly.html"
    mark = "document.documentElement.dataset.drawn = 'all'"
    go.Figure([edges, nodes]).write_html(path, include_plotlyjs=True, post_script=mark)
    return path


def measure(page):
    """Seconds to first contentful paint and to the drawn graph, and megabytes, of one opening."""
    browser = opened()
    try:
        before = resident(browser)
        browser.get(page.as_uri())
        seconds = browser.execute_async_script(DRAWN) / 1000
        paint = browser.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        heap = browser.execute_script("return performance.memory.usedJSHeapSize") / 2**20
        redraw = browser.execute_script(REDRAWN)
        return {
            "first_contentful_paint_seconds": paint,
            "drawn_seconds": seconds,
            "redraw_milliseconds": redraw,
            "script_heap_megabytes": heap,
            "browser_growth_megabytes": resident(browser) - before,
        }
    finally:
        browser.quit()


def resident(browser):
    """Megabytes of all processes of the browser."""
    root, children = browser.service.process.pid, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append((int(path.parent.name), int(fields[21])))
    total, waiting = 0, [root]
    while waiting:
        for pid, pages in children.get(waiting.pop(), ()):
            total += pages
            waiting.append(pid)
    return total * 4096 / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "report-cpu.json")
    arguments = parser.parse_args()
    results, rivals = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for n in SIZES:
            run = block_run(n, Path(scratch))
            start = time.perf_counter()
            page = write_report(run, trains=False)
            writing = time.perf_counter() - start
            found = [measure(page) for _ in range(arguments.repeats)]
            medians = {name: statistics.median(one[name] for one in found) for name in found[0]}
            worst = max(one["drawn_seconds"] for one in found)
            facts = {"nodes": n, "edges": run.graph.num_edges, "file_megabytes": page.stat().st_size / 2**20}
            results.append({**facts, "writing_seconds": writing, **medians, "slowest_drawn_seconds": worst})
            print(results[-1])
            if (rival := plotly_page(run, Path(scratch))) is not None:
                found = [measure(rival) for _ in range(arguments.repeats)]
                names = [name for name in found[0] if name != "redraw_milliseconds"]
                medians = {name: statistics.median(one[name] for one in found) for name in names}
                rivals.append({"nodes": n, "file_megabytes": rival.stat().st_size / 2**20, **medians})
                print("plotly:", rivals[-1])
    holds = all(one["slowest_drawn_seconds"] < LIMIT_SECONDS for one in results)
    print(f"every page is drawn in less than {LIMIT_SECONDS:g} s: {'yes' if holds else 'NO'}")
    told = {"benchmark": "report", "repeats": arguments.repeats, "results": results, "plotly": rivals, "holds": holds}
    write_json(arguments.out, {**told, "environment": environment()})


if __name__ == "__main__":
    main()
