"""The page of `wb view` with 100,000 tensors, as Markdown: `page.py ROUNDS`. Needs playwright and chromium.

Each round starts a server, and visits two panels and an empty page in turns, each in a fresh window of one browser.
First paint: from the start of the navigation to the frame with the figures of the summary, or with rows of the list, in
the browser's own clock. At the first visits the server has just begun to listen, and reads what the page shows later.
Filter: from a key to the frame with the result. Memory: the peak of the server's resident memory: after the
panels that need headers alone, and after one that reads values, for which it loads numpy. Export: the size of
`wb view MODEL -o page.html` for a model of 7 billion parameters (291 tensors), and the time until it is written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.page.samples import CONFIG, MANY, SEVEN_B, SEVEN_B_SIZES, sparse

SHOWN = {"summary": ".figures b", "tensors": ".rows [role=row]"}
EMPTY = "data:text/html,<p class=shown>empty</p>"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
VISITS = 3  # of each panel
_PAINTED = """shown => new Promise(done => { const look = () => document.querySelector(shown)
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look); look(); })"""
_FILTER = """text => new Promise(done => { const box = document.querySelector('.find'), start = performance.now();
    box.value = text; box.dispatchEvent(new Event('input', {bubbles: true}));
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start))); })"""
Times = dict[str, list[float]]


def visit(browser: Any, address: str, shown: str) -> tuple[Any, float]:
    """A page in a window of its own, and milliseconds to its first paint."""
    page = browser.new_context().new_page()
    page.goto(address, wait_until="commit")
    return page, page.evaluate(_PAINTED, shown)


def one_round(browser: Any, path: Path, times: Times) -> None:
    command = [sys.executable, "-m", "weighbridge", "view", str(path), "--no-browser", "--json"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    times["listening"].append((time.perf_counter() - began) * 1000)
    for number in range(VISITS):
        for panel, shown in SHOWN.items():
            page, painted = visit(browser, f"{url}&panel={panel}", shown)
            times[f"{panel}, {'later' if number else 'first visit'}"].append(painted)
            if number:
                settle(page)
                if panel == "tensors":
                    times["filter"] += [page.evaluate(_FILTER, text) for text in ("layers.77. down", "scale", "s.3.")]
            page.context.close()
        page, painted = visit(browser, EMPTY, ".shown")
        times["empty"].append(painted)
        page.context.close()
    for panels, what in ((("layout", "architecture"), "memory"), (("numbers",), "memory with values")):
        for panel in panels:
            page, _ = visit(browser, f"{url}&panel={panel}", "main .card")
            settle(page)
            page.context.close()
        times[what].append(peak(server.pid))
    page, _ = visit(browser, f"{url}&panel=numbers", "main .card")
    page.select_option("select[aria-label=Statistic]", "rms")
    page.click("text=Read them")
    page.wait_for_selector(".heat", timeout=600_000)
    page.context.close()
    times["memory with heat"].append(peak(server.pid))
    server.terminate()
    server.wait()


def export(path: Path, times: Times) -> None:
    target = path.with_name("page.html")
    began = time.perf_counter()
    command = [sys.executable, "-m", "weighbridge", "view", str(path), "-o", str(target), "--overwrite"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    times["export, time"].append((time.perf_counter() - began) * 1000)
    times["export"].append(target.stat().st_size / 1000)


def settle(page: Any) -> None:
    """Waits until nothing is read any more."""
    page.wait_for_timeout(300)
    while page.locator(".waiting").count():
        page.wait_for_timeout(50)
    page.wait_for_timeout(300)


def peak(process: int) -> float:
    """Megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1000


#: What is measured -> how it is called, its unit, and what it must stay below.
ROWS: dict[str, tuple[str, str, float | None]] = {
    "summary, first visit": ("summary, first visit", "ms", 1000), "summary, later": ("summary, later", "ms", 1000),
    "tensors, first visit": ("list of tensors, first visit", "ms", 1000),
    "tensors, later": ("list of tensors, later", "ms", 1000), "empty": ("an empty page of the browser", "ms", None),
    "filter": ("filter of the list", "ms", 100), "listening": ("start of the command, until it listens", "ms", None),
    "memory": ("memory of the server, headers read", "MB", 150),
    "memory with values": ("memory of the server, values of a tensor read", "MB", 150),
    "memory with heat": ("memory of the server, values of all tensors read for a heat map", "MB", 150),
    "export": ("exported page of a 7B", "kB", 1000), "export, time": ("time to export it", "ms", None),
}  # fmt: skip


def report(times: Times, load: float) -> str:
    lines = ["## view", "", f"The page on a file of {len(MANY):,} tensors, in Chromium (`benchmarks/page.py`). Load of "
             f"the machine meanwhile: {load:.1f} on {os.cpu_count()} cores.", "", "| first paint | median | spread | |",
             "|---|--:|--:|--:|"]  # fmt: skip
    for key, (title, unit, _) in ROWS.items():
        found = times[key]
        lines.append(
            f"| {title} | {median(found):.0f} {unit} | {min(found):.0f} to {max(found):.0f} | {len(found)} times |"
        )
    lines.append("")
    for key, (title, unit, most) in ROWS.items():
        if most is not None:
            lines.append(
                f"- {'reached' if median(times[key]) < most else '**missed**'}: {title} under {most:,.0f} {unit}"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    from playwright.sync_api import sync_playwright

    rounds, times = int(sys.argv[1]) if len(sys.argv) > 1 else 5, defaultdict(list)
    loads = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = sparse(Path(folder) / "many.safetensors", MANY)
        (seven := Path(folder) / "seven").mkdir()
        sparse(seven / "model.safetensors", SEVEN_B)
        (seven / "config.json").write_text(json.dumps(CONFIG | SEVEN_B_SIZES))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        visit(browser, EMPTY, ".shown")  # the browser's own start
        for _ in range(rounds):
            one_round(browser, path, times)
            export(seven, times)
            loads.append(os.getloadavg()[0])
        browser.close()
    print(report(times, median(loads)))


if __name__ == "__main__":
    main()
