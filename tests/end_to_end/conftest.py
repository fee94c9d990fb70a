"""The real demonstration model, and a real browser."""

import os
import shutil

import pytest
import torch
from playwright import sync_api

from llmtrace import demo

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct and its tokenizer."""
    torch.set_num_threads(2)
    model, tokenizer = demo.load()
    return model.to("cpu"), tokenizer


@pytest.fixture(scope="module")
def chromium():
    """A Chromium of this machine, without a window.

    Not for longer: its driver leaves an event loop running in this thread, where others' tests
    could run none.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and not os.environ.get("CI"):
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_api.sync_playwright() as driver:
        # In a container it often has no sandbox to start in; it opens nothing but our own pages.
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in the browser, and everything that it said or asked for."""

    def __init__(self, page):
        self.page = page
        self.said, self.asked = [], []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture
def open_page(chromium):
    """Open a file; at the end, it must have said nothing and asked for nothing but itself."""
    contexts = []

    def opened(path, **options):
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append((context, found := Opened(context.new_page()), path.as_uri()))
        found.page.goto(path.as_uri())
        return found.page

    yield opened
    for context, found, address in contexts:
        context.close()
        assert found.said == []
        assert {url.partition("#")[0] for url in found.asked} <= {address, "data:,"}
