// Runs the package in the browser's own Python. Files are mounted: Python reads ranges of them, none is loaded whole.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const ROOT = "/dropped";
const PACKAGES = "/packages";
let python = null;
let desk = null;
let mounted = false;

async function start() {
  python = await loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href });
  const packages = await (await fetch(new URL("./packages.zip", import.meta.url))).arrayBuffer();
  // From here on this worker reaches nothing, so what it reads goes nowhere.
  for (const name of ["fetch", "XMLHttpRequest", "WebSocket", "WebTransport", "EventSource", "importScripts"]) {
    Object.defineProperty(self, name, { value: undefined, writable: false, configurable: false });
  }
  python.unpackArchive(packages, "zip", { extractDir: PACKAGES });
  python.runPython(`import sys; sys.path.insert(0, "${PACKAGES}")`);
  desk = python.pyimport("weighbridge.page.in_browser").Desk();
  python.FS.mkdirTree(ROOT);
}

function open(blobs) {
  const { FS } = python;
  if (mounted) FS.unmount(ROOT);
  FS.mount(FS.filesystems.WORKERFS, { blobs }, ROOT);
  mounted = true;
  return JSON.parse(desk.open(ROOT));
}

const started = start();
addEventListener("message", async ({ data }) => {
  await started;
  try {
    if (data.blobs) postMessage({ opened: open(data.blobs) });
    else if (data.question) postMessage({ id: data.id, ...JSON.parse(desk.answer(data.question)) });
  } catch (error) { // a fault of ours: Python's last line says which
    const words = String(error).trim().split("\n").at(-1);
    postMessage(data.blobs ? { opened: { error: words } } : { id: data.id, error: words, hint: null });
  }
});
started.then(() => postMessage({ ready: true }), (error) => postMessage({ failed: String(error) }));
