"""How fast the page of `wb view` is with 100,000 tensors: `python benchmarks/page.py`. Needs playwright and chromium.

First paint: from the start of the navigation to the first frame with rows of the list, in the browser's own clock, the
server being ready; it parses the header for the first visit. Filter: from a
key to the frame with the result. Memory: the resident memory of the server after that.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.page.samples import MANY, sparse

_ROWS = "document.querySelector('.rows [role=row]')"
_PAINTED = f"""() => new Promise(done => {{ const look = () => {_ROWS}
    ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look); look(); }})"""
_FILTER = """text => new Promise(done => { const box = document.querySelector('.find'), start = performance.now();
    box.value = text; box.dispatchEvent(new Event('input', {bubbles: true}));
    requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start))); })"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = sparse(Path(folder) / "many.safetensors", MANY)
        command = [sys.executable, "-m", "weighbridge", "view", str(path), "--no-browser", "--json"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        painted, filtered = [], []
        for _ in range(5):
            page = browser.new_context().new_page()
            page.goto(f"{url}&panel=tensors", wait_until="commit")
            painted.append(page.evaluate(_PAINTED))
            page.evaluate(_FILTER, "warm")
            filtered += [page.evaluate(_FILTER, text) for text in ("layers.77. down", "scale", "experts.3.")]
        page.goto(f"{url}&panel=architecture")
        page.wait_for_selector(".box li")  # the last of what the server prepares
        status = Path(f"/proc/{server.pid}/status").read_text()
        memory = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        browser.close()
        server.terminate()
    print(f"{len(MANY):,} tensors")
    print(f"first paint   {painted[0]:.0f} ms at the first visit, {median(painted[1:]):.0f} ms later")
    print(f"filter        {median(filtered):.0f} ms to the frame with the result (worst {max(filtered):.0f} ms)")
    print(f"memory        {int(memory) / 1000:.0f} MB of the server")


if __name__ == "__main__":
    main()
