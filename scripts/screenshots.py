"""Pictures of a page for the documentation, taken in a Chromium.

python scripts/screenshots.py REPORT.html OUT_PREFIX [--shot light|dark|narrow|print ...]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

WIDE = {"width": 1280, "height": 1520}
SHOTS: dict[str, dict[str, Any]] = {
    "light": {"viewport": WIDE, "color_scheme": "light"},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 380, "height": 1400}, "color_scheme": "light"},
    "print": {"viewport": {"width": 794, "height": 1123}, "color_scheme": "light"},  # A4
}


def take(browser: Browser, page: Path, out: Path, shot: str) -> None:
    """Write one picture of *page*."""
    context = browser.new_context(**SHOTS[shot])
    opened = context.new_page()
    opened.goto(page.resolve().as_uri())
    if shot == "print":
        opened.emulate_media(media="print")
        opened.evaluate("document.body.style.padding = '50px'")
        opened.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened.screenshot(path=out)
    context.close()


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("prefix")
    parser.add_argument("--shot", choices=tuple(SHOTS), action="append")
    arguments = parser.parse_args()
    with sync_playwright() as driver:
        found = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for shot in arguments.shot or SHOTS:
            take(browser, arguments.page, Path(f"{arguments.prefix}-{shot}.png"), shot)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
