"""The HTML report in a real Chromium: real traces, ten thousand requests, keyboard, print."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import TextStreamer

import llmtrace
from llmtrace.analysis.report import build_report
from llmtrace.records import Finding, Leg
from llmtrace.reports import html
from tests.synthetic import invented
from tests.unit.test_html import request

TOKENS = (8, 20, 12, 16)


class Hangs(TextStreamer):
    """A consumer that goes away after its fourth token."""

    puts = 0

    def put(self, value):
        self.puts += 1
        if self.puts > 4:
            raise ConnectionError

    def end(self):
        """Nothing to finish."""


@pytest.fixture(scope="module")
def traces(smollm2, tmp_path_factory):
    """A trace file of the demonstration model: a cold request, three good ones, a failed one."""
    folder = tmp_path_factory.mktemp("traces")
    model, tokenizer = smollm2
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other on a busy machine
    with llmtrace.instrument(dir=str(folder)) as handle:
        for n in TOKENS:
            with llmtrace.request(name="handler"):
                inputs = tokenizer("A waterfall is " * n, return_tensors="pt")
                model.generate(**inputs, max_new_tokens=n, min_new_tokens=n, do_sample=False)
        with pytest.raises(ConnectionError):
            model.generate(**inputs, max_new_tokens=9, streamer=Hangs(tokenizer))
        handle.flush()
        path = handle.path
    torch.set_num_threads(threads)
    return path


@pytest.fixture(scope="module")
def real(traces, tmp_path_factory):
    """Its page and its JSON report, as the command writes them."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    report(traces, "--format", "html", "-o", page)
    return page, json.loads(report(traces, "--json"))


def report(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "llmtrace", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def shown(number):
    """As the page writes it: three digits."""
    return f"{number:,.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def written(folder, records):
    path = folder / "report.html"
    path.write_text(html.render(build_report(records), records), encoding="utf-8")
    return path


def test_headline_of_real_traces(real, open_page):
    """The tiles show the numbers of the JSON report; cold and failed requests are counted."""
    path, numbers = real
    page = open_page(path)
    assert page.locator("h1").inner_text() == llmtrace.demo.MODEL_NAME
    tiles = page.locator("#overview").inner_text()
    for name in ("ttft_s", "itl_s"):
        assert f"\n{shown(numbers[name]['p50'] * 1e3)}" in tiles
    assert re.search(r"ok\s+4", tiles)
    assert re.search(r"failed\s+1", tiles)
    for condition in ("prompt tokens", "sampling", "concurrency", "GPU memory"):
        assert condition in tiles
    assert "ConnectionError" in page.locator("table.requests").inner_text()
    assert "first request" in page.locator("#cold").inner_text()


def test_what_readers_waited_for(tmp_path, open_page):
    """A table where a stream was read, and none where none was."""
    record = request(prefill_s=0.2, hold_back_s=0.05, first_visible_text_s=0.25)
    page = open_page(written(tmp_path, [record]))
    table = page.get_by_role("region", name="First visible text, ms").inner_text()
    assert re.search(r"hold back\s+1\s+50.00", table)
    assert "more than white space" in table
    (tmp_path / "other").mkdir()
    page = open_page(written(tmp_path / "other", [request()]))
    assert page.get_by_role("region", name="First visible text, ms").count() == 0


def test_a_click_shows_the_waterfall(real, open_page):
    """Of the request clicked: all its phases, its tokens, and a way to each of its steps."""
    path, _ = real
    page = open_page(path)
    assert page.locator("#shown").inner_text() == "Request 2"
    page.locator("tr[data-row='2']").click()
    assert page.locator("#shown").inner_text() == "Request 3"
    lanes = page.locator(".waterfall text.lane").all_text_contents()
    assert lanes == [
        "queue", "tokenize", "prefill", "first token", "decode", "return", "host", "ITL",
    ]  # fmt: skip
    assert "12 tokens" in page.locator(".facts").inner_text()
    # One path per kind of step; each step is one closed shape in it.
    steps = page.locator(".waterfall .span.decode, .waterfall .span.slow").all()
    shapes = sum((step.get_attribute("d") or "").count("z") for step in steps)
    assert shapes == 2 * (12 - 1)
    page.locator("tr[data-row='4']").click()
    assert "ConnectionError" in page.locator(".facts").inner_text()


def test_by_keyboard_alone(real, open_page):
    """Tab to the table, arrows to a request, tab to its waterfall, arrows to its steps, zoom."""
    path, _ = real
    page = open_page(path)

    def focused(name):
        return page.evaluate("name => document.activeElement.matches(name)", name)

    def tab_to(name):
        for _ in range(40):
            page.keyboard.press("Tab")
            if focused(name):
                return
        raise AssertionError(name)

    tab_to("table.requests")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#shown").inner_text() == "Request 3"
    assert page.locator("tr[aria-selected='true']").get_attribute("data-row") == "2"
    tab_to(".fall")
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text().startswith("prefill step token 1 · TTFT ")
    page.keyboard.press("ArrowRight")
    assert page.locator(".readout").inner_text().startswith("decode step 1 token 2 · ITL ")
    page.keyboard.press("End")
    assert "decode step 11 token 12" in page.locator(".readout").inner_text()
    before = page.locator(".waterfall .tick").all_text_contents()
    page.keyboard.press("+")
    assert page.locator(".waterfall .tick").all_text_contents() != before
    page.keyboard.press("0")
    assert page.locator(".waterfall .tick").all_text_contents() == before


def test_a_request_has_an_address(real, open_page):
    """The page opened at ``#request=3`` shows that one; so does one that goes there later."""
    path, _ = real
    page = open_page(path)
    assert page.evaluate("location.hash") == ""
    page.evaluate("location.hash = '#request=4'")
    page.locator("#shown", has_text="Request 4").wait_for()
    page.goto(path.as_uri() + "#request=3")
    page.reload()
    assert page.locator("#shown").inner_text() == "Request 3"


def test_every_chart_is_drawn_and_named(real, open_page):
    """Curve, scatter, both histograms, throughput and load; each says what it shows."""
    path, _ = real
    page = open_page(path)
    names = page.locator("svg[role=img]").evaluate_all("all => all.map(one => one.ariaLabel)")
    starts = ("ITL over", "TTFT against", "TTFT: 3", "ITL: 45", "Tokens per", "Requests running")
    for name, start in zip(names, starts, strict=True):
        assert name.startswith(start)
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, [tabindex], a")]
            .filter((one) => !(one.textContent.trim() || one.getAttribute("aria-label")))
            .map((one) => one.outerHTML)"""
    )
    assert unnamed == []
    wrong = page.evaluate(
        """() => [...document.querySelectorAll("svg")].filter((one) =>
            /NaN|undefined|Infinity/.test(one.outerHTML)).map((one) => one.ariaLabel)"""
    )
    assert wrong == []


def test_colours(real, open_page):
    """They follow the system, and the button overrules it, also when the page is opened again."""
    path, _ = real
    page = open_page(path, color_scheme="dark")

    def paper():
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    dark = paper()
    page.locator("#theme").click()
    light = paper()
    assert light != dark
    page.reload()
    assert paper() == light
    page.locator("#theme").click()
    assert paper() == dark


@pytest.mark.parametrize("width", [380, 768, 1280])
def test_nothing_is_wider_than_the_window(real, open_page, width):
    """Down to a narrow telephone; tables scroll in their own box."""
    path, _ = real
    page = open_page(path, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_printed(real, open_page):
    """On paper: light, without tools, the requests as a list, nothing cut off at the side."""
    path, _ = real
    page = open_page(path, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_ten_thousand_requests(tmp_path, open_page):
    """It opens within seconds; sorting, filtering and the last row work."""
    page = open_page(written(tmp_path, invented(10_000)))
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert loaded < 15_000  # about 500 ms
    assert page.locator(".said").inner_text() == "10,000 requests"
    assert page.locator("tr[data-row]").count() < 60
    page.locator("th button", has_text="TTFT").click()
    longest = page.locator("tr[data-row] td:nth-child(5)").first.inner_text()
    assert float(longest) == pytest.approx(max(r.ttft_s for r in invented(60)) * 1e3, rel=0.01)
    page.locator("input[type=search]").fill("failed")
    assert page.locator(".said").inner_text() == "111 of 10,000 requests"
    page.locator("input[type=search]").fill("")
    page.get_by_role("button", name="#", exact=True).click()
    page.locator("table.requests").focus()
    page.keyboard.press("End")
    assert page.locator("#shown").inner_text() == "Request 10000"
    assert page.locator("tr[data-row='9999']").is_visible()


def test_steps_that_are_not_on_the_page(tmp_path, open_page):
    """A request without steps shows its phases and says so; filtering finds those with steps."""
    page = open_page(written(tmp_path, invented(3000)))
    said = page.locator("#method").inner_text()
    held = int(re.search(r"holds the steps of (\d+) of 3,000 requests", said)[1])
    page.locator("input[type=search]").fill("steps")
    assert page.locator(".said").inner_text() == f"{held} of 3,000 requests"
    page.locator("input[type=search]").fill("")
    with_steps = set(page.evaluate("Object.keys(JSON.parse(data.textContent).steps.of)"))
    without = next(row for row in range(3000) if str(row) not in with_steps)
    page.goto(page.url.partition("#")[0] + f"#request={without + 1}")
    page.reload()
    assert "not on this page" in page.locator(".keys").inner_text()
    assert "decode" in page.locator(".waterfall text.lane").all_text_contents()


def test_one_request(tmp_path, open_page):
    """A single request has every chart too."""
    page = open_page(written(tmp_path, invented(1)))
    assert page.locator("svg[role=img]").count() == 6
    assert page.locator(".waterfall text.lane").all_text_contents()[-3:] == [
        "device",
        "delivery",
        "ITL",
    ]


def test_nothing_but_failures(tmp_path, open_page):
    """No numbers: the page says so, and the requests are there."""
    failed = request(error="torch.OutOfMemoryError", ttft_s=None, itl_s=[], steps=[], e2e_s=None)
    page = open_page(written(tmp_path, [failed]))
    assert "nothing to summarise" in page.locator("#scope").inner_text()
    assert "OutOfMemoryError" in page.locator("table.requests").inner_text()


def bars_ms(page, kind, lane=0):
    """From where to where the bars of a lane of its kind go, in milliseconds of the axis."""
    ticks = page.locator(".waterfall text.tick").evaluate_all(
        "all => all.map((one) => [Number(one.getAttribute('x')), one.textContent])"
    )
    (x1, first), (x2, second), *_ = ticks
    first, second = (float(text.split()[0].replace(",", "")) for text in (first, second))
    scale = (second - first) / (x2 - x1)
    path = page.locator(f".waterfall .span.{kind}").nth(lane).get_attribute("d")
    shapes = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", path)
    return [
        ((float(x) - x1) * scale + first, (float(x) + float(width) - x1) * scale + first)
        for x, width in shapes
    ]


def test_bars_stand_where_they_were(tmp_path, open_page):
    """A step from 250 ms; its forward is done on the device 100 ms later, 1 ms after the call of
    50 ms returned: device 250 to 350, host 299 to 349."""
    page = open_page(written(tmp_path, [request()]))
    device, _ = bars_ms(page, "device")  # the prefill's place is not known
    _, host, _ = bars_ms(page, "host")
    assert device == pytest.approx((250, 350), abs=1)
    assert host == pytest.approx((299, 349), abs=1)


def test_bars_without_a_device(tmp_path, open_page):
    """Where the forward began in its step is known of requests of this process only."""
    host_only = [
        replace(step, device_duration_s=None, launch_lead_s=None) for step in request().steps
    ]
    placed = [replace(step, forward_start_s=step.start_s + 0.02) for step in host_only]
    page = open_page(written(tmp_path, [request(steps=host_only), request(steps=placed, start=2)]))
    assert bars_ms(page, "host")[1] == pytest.approx((250, 300), abs=1)
    assert "was not recorded" in page.locator(".keys").inner_text()
    page.locator("tr[data-row='1']").click()
    assert bars_ms(page, "host")[1] == pytest.approx((270, 320), abs=1)
    assert "was not recorded" not in page.locator(".keys").inner_text()


ODD = {
    "one token": request(gaps=()),
    "no steps": request(steps=[]),
    "no first token": request(ttft_s=None, e2e_s=None, itl_s=[], steps=[]),
    "nothing known": request(
        ttft_s=None, e2e_s=None, itl_s=[], steps=[], output_tokens=None, trace_id=None, duration_s=0
    ),
    "several tokens in a step": replace(
        request(), steps=[replace(step, tokens=3) for step in request().steps]
    ),
    "no forward seen": replace(
        request(),
        steps=[
            replace(step, host_duration_s=None, device_duration_s=None, launch_lead_s=None)
            for step in request().steps
        ],
    ),
    "one step without its forward": replace(
        request(),
        steps=[
            replace(step, host_duration_s=None if step.index == 1 else 0.05)
            for step in request().steps
        ],
    ),
    "gaps of nothing": request(0.0, (0.0, 0.0), duration_s=0.0),
    "a day": request(40_000.0, (20_000.0, 40_000.0), start=1e6),
    "batch": request(batch_size=3, output_tokens=7, output_tokens_per_row=(3, 2, 2)),
    "queue longer than all": request(queue_s=900.0, tokenize_s=12.0),
}


def test_odd_requests_have_a_waterfall_too(tmp_path, open_page):
    """Whatever is missing or out of proportion: every shape has finite numbers."""
    page = open_page(written(tmp_path, list(ODD.values())))
    for row in range(len(ODD)):
        page.locator(f"tr[data-row='{row}']").click()
        assert page.locator("#shown").inner_text() == f"Request {row + 1}"
        drawn = page.locator("svg.waterfall").evaluate("one => one.outerHTML")
        assert not re.search("NaN|undefined|Infinity", drawn), list(ODD)[row]
        for key in ("ArrowRight", "End", "+", "-", "0"):
            page.locator(".fall").press(key)
        page.get_by_role("button", name="Zoom to the first token").click()
        drawn = page.locator("svg.waterfall").evaluate("one => one.outerHTML")
        assert not re.search("NaN|undefined|Infinity", drawn), list(ODD)[row]


def test_hostile_words_are_shown_as_words(tmp_path, open_page):
    """A model's name and a finding's text that are markup."""
    evil = "</script><img src='http://127.0.0.1:9/x' onerror='document.title=1'><b>"
    found = Finding("c", "warning", evil, evil, evil)
    page = open_page(written(tmp_path, [request(model=evil, findings=(found,))]))
    assert page.locator("h1").inner_text() == evil
    assert page.locator("img").count() == 0
    assert evil in page.locator("#findings").inner_text()


def test_the_browser_holds_the_page_to_its_policy(real, chromium):
    """Whatever gets into the page cannot load a picture, fetch, or run: the browser refuses."""
    path, _ = real
    page = chromium.new_page()
    page.goto(path.as_uri())
    refused = page.evaluate(
        """async () => {
            const refused = [];
            addEventListener("securitypolicyviolation", (violation) => {
                refused.push(violation.effectiveDirective);
            });
            const image = new Image();
            image.src = "http://127.0.0.1:9/x.png";
            const script = document.createElement("script");
            script.textContent = "document.title = 'run'";
            document.body.append(image, script);
            await fetch("http://127.0.0.1:9/").catch(() => {});
            await new Promise((done) => setTimeout(done, 0));
            return refused.sort();
        }"""
    )
    assert refused == ["connect-src", "img-src", "script-src-elem"]
    assert page.title() != "run"
    page.close()


def test_several_devices(tmp_path, open_page):
    """A lane for each device: the first from 250 ms for 40 ms, the second 10 ms after it."""
    steps = [
        replace(step, legs=(Leg("cuda:0", at, at + 0.04), Leg("cuda:1", at + 0.05, at + 0.09)))
        for step in request().steps
        for at in [step.start_s]
    ]
    page = open_page(written(tmp_path, [request(steps=steps)]))
    lanes = page.locator(".waterfall text.lane").all_text_contents()
    assert lanes[-3:] == ["cuda:0", "cuda:1", "ITL"]
    assert bars_ms(page, "device", 0)[1] == pytest.approx((250, 290), abs=1)
    assert bars_ms(page, "device", 1)[1] == pytest.approx((300, 340), abs=1)
