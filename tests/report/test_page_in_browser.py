"""The page in Debian's Chromium, headless: it is drawn, found, clicked, read and asked, and asks nobody else."""

import contextlib
import json
import threading
import time
from pathlib import Path

import pytest

from gcn_lpa.methods.registry import METHODS
from gcn_lpa.recipes import DEFAULT
from gcn_lpa.report.page import OpenRun, page_of, write_report
from gcn_lpa.report.server import PageServer
from gcn_lpa.runs.plan import Plan, Source, make_plan
from gcn_lpa.runs.train_run import train_run
from tests.helpers.chromium import CHROMIUM, DRIVER, check_chromium
from tests.helpers.ring_runs import HOSTILE, run_of
from tests.helpers.small_graphs import rare

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra test")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
Wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
pytestmark = [pytest.mark.slow, pytest.mark.browser]


PLACE = """
    const view = JSON.parse(document.getElementById("view").textContent), raw = atob(view.xy);
    const xy = new Uint16Array(Uint8Array.from(raw, one => one.charCodeAt(0)).buffer), i = view.names.indexOf(arguments[0]);
    const box = document.getElementById("canvas").getBoundingClientRect(), side = Math.min(box.width, box.height) - 80;
    return [0, 1].map(k => (k ? box.top : box.left) + ((k ? box.height : box.width) - side) / 2 + xy[2 * i + k] / 65535 * side)"""
ATTACK = """
    const [url, done] = arguments, options = {method: "POST", mode: "no-cors", body: "{}"};
    fetch(url, options).then(() => fetch(url)).then(reply => reply.text()).then(done, () => done("refused"))"""


@pytest.fixture(scope="module")
def browser():
    check_chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(browser, url, width=1280, height=900, dark=False):
    browser.get_log("performance")
    browser.get_log("browser")
    wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(url)
    Wait(browser, 10).until(lambda driver: driver.execute_script("return document.documentElement.dataset.drawn"))


def requests(browser):
    """The addresses that the page has asked for since it was shown."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def colours(browser):
    """How many colours the drawing has: a blank canvas has one."""
    count = """const c = document.getElementById('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return new Set(new Uint32Array(d.buffer)).size"""
    return browser.execute_script(count)


def find(browser, text):
    box = browser.find_element(By.ID, "search")
    box.clear()
    box.send_keys(text)
    box.send_keys(Keys.ENTER)
    Wait(browser, 10).until(lambda driver: panel(driver).get_attribute("data-node"))


@contextlib.contextmanager
def serving(run):
    subject = OpenRun(run)
    with PageServer(page_of(subject, trains=False, live=True), subject) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def panel(browser):
    return browser.find_element(By.ID, "panel")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("page"), [*HOSTILE, *(f"n{k}" for k in range(10))])


@pytest.fixture(scope="module")
def page(run):
    return write_report(run, trains=False)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn_in_both_themes_and_on_a_phone_without_errors_or_requests(browser, page, dark, width):
    show(browser, page.as_uri(), width=width, dark=dark)
    assert colours(browser) > 20
    assert browser.get_log("browser") == []
    assert requests(browser) == [page.as_uri()]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing sticks out
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 19, 24)" if dark else "rgb(246, 247, 249)")


def test_a_node_is_found_by_its_id_and_its_votes_are_shown(browser, page):
    show(browser, page.as_uri())
    find(browser, "n9")  # next to a label
    text = panel(browser).text.lower()
    assert "labels that vote" in text
    assert "whose features it reads" in text
    voter = panel(browser).find_element(By.CSS_SELECTOR, "button.node")
    name = voter.text
    voter.click()
    assert panel(browser).get_attribute("data-node") == name


def test_a_click_in_the_drawing_chooses_the_node_there(browser, page):
    show(browser, page.as_uri())
    browser.execute_script("document.getElementById('canvas').scrollIntoView()")
    where = browser.execute_script(PLACE, "n5")
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": where[0], "y": where[1], "button": "left", "clickCount": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    assert panel(browser).get_attribute("data-node") == "n5"


def test_hostile_names_are_inert_and_shown_as_they_are(browser, page):
    show(browser, page.as_uri())
    for name in HOSTILE:
        find(browser, name)
        assert panel(browser).find_element(By.TAG_NAME, "h3").text == name
    assert browser.execute_script("return document.querySelectorAll('script, img, iframe').length") == 2
    assert browser.get_log("browser") == []


def test_everything_can_be_reached_by_keyboard(browser, page):
    show(browser, page.as_uri())
    reached = []
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        element = browser.switch_to.active_element
        reached.append(element.get_attribute("id") or element.get_attribute("data-node") or element.tag_name)
    assert {"search", "canvas", "zoom-in", "zoom-all"} <= set(reached)
    nodes = browser.find_elements(By.CSS_SELECTOR, "#look button.node")
    nodes[0].send_keys(Keys.ENTER)
    assert panel(browser).get_attribute("data-node") == nodes[0].get_attribute("data-node")
    canvas = browser.find_element(By.ID, "canvas")
    before = canvas.screenshot_as_base64
    canvas.send_keys("+", Keys.ARROW_LEFT)
    time.sleep(0.4)
    assert canvas.screenshot_as_base64 != before


def test_every_control_has_a_name_for_a_screen_reader(browser, page):
    show(browser, page.as_uri())
    browser.execute_cdp_cmd("Accessibility.enable", {})
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    controls = ("button", "link", "combobox", "searchbox", "checkbox", "image", "textbox")
    unnamed = [node for node in nodes if node.get("role", {}).get("value") in controls and not node.get("name", {}).get("value")]
    assert unnamed == []


def test_a_served_page_answers_why_and_what_if_and_asks_nobody_else(browser, run):
    with serving(run) as server:
        show(browser, server.url)
        find(browser, "n4")
        browser.find_element(By.ID, "what-if").click()
        Wait(browser, 10).until(lambda driver: driver.find_element(By.ID, "answer").get_attribute("data-answered"))
        said = browser.find_element(By.ID, "answer").text
        asked = requests(browser)
    assert "label n4 as" in said
    assert "predictions change" in said
    assert all(url.startswith(server.url) for url in asked)
    assert browser.get_log("browser") == []


def test_a_page_of_another_site_can_neither_read_nor_drive_the_server(browser, run, tmp_path):
    stranger = Path(tmp_path, "stranger.html")
    stranger.write_text("<title>stranger</title>")
    with serving(run) as server:
        browser.get(stranger.as_uri())
        assert browser.execute_async_script(ATTACK, server.url) == "refused"


def test_twenty_thousand_nodes_open_in_two_seconds(browser, tmp_path):
    plan, graph = make_plan(Source("sbm", None, {"n": 20_000}), changes={"epochs": 3})
    page = write_report(train_run(plan, graph, tmp_path / "run"), trains=False)
    start = time.perf_counter()
    show(browser, page.as_uri())
    assert time.perf_counter() - start < 2 * 3  # a busy machine may take three times as long; benchmarks/report.py measures it
    assert int(browser.execute_script("return document.documentElement.dataset.drawn")) == 20_000


def test_the_slider_says_what_each_cut_would_do(browser, tmp_path):
    graph = rare(n=300, share=0.1)
    plan = Plan(Source("accounts"), graph.content_hash(64), METHODS["neighbour-lr"].fair(DEFAULT), split="stratified")
    page = tmp_path / "page.html"
    page.write_bytes(page_of(OpenRun(train_run(plan, graph, device="cpu")), trains=False))
    show(browser, page.as_uri())
    words = browser.find_element(By.ID, "cut-words")
    slider, mark = browser.find_element(By.ID, "cut"), browser.find_element(By.CSS_SELECTOR, "#rare .mark")
    before, place = words.text, mark.get_attribute("cx")
    assert " hits, precision " in before
    slider.send_keys(Keys.END)
    assert words.text.startswith("60 nodes, from probability ")
    assert "recall 100 % (100 % to 100 %)" in words.text
    assert float(mark.get_attribute("cx")) > float(place)
    slider.send_keys(Keys.HOME)
    assert words.text.startswith("1 nodes, ")
    assert browser.get_log("browser") == []
