// The document around the page: takes files, hands them to the worker, and carries the page's questions to it.

const say = document.querySelector("#say");
const zone = document.querySelector("main");
const frame = document.querySelector("iframe");
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
let ready = false;
let waiting = null; // files that were dropped before Python was ready

function tell(text, hint) {
  say.replaceChildren(text, ...(hint ? [document.createElement("br"), hint] : []));
}

function take(blobs) {
  if (!blobs.length) return;
  waiting = blobs;
  if (!ready) return tell("Waiting for Python to start …");
  tell(`Reading ${blobs.length === 1 ? blobs[0].name : `${blobs.length} files`} …`);
  worker.postMessage({ blobs });
  waiting = null;
}

function opened({ document: page, error, hint }) {
  if (error) return tell(error, hint);
  frame.srcdoc = page;
  zone.hidden = true;
  frame.hidden = false;
  document.querySelector("#another").hidden = false;
  frame.focus();
}

worker.addEventListener("message", ({ data }) => {
  if (data.ready) {
    ready = true;
    tell("");
    if (waiting) take(waiting);
  } else if (data.failed) tell("Python did not start in this browser.", data.failed);
  else if (data.opened) opened(data.opened);
  else frame.contentWindow?.postMessage(data, "*");
});
worker.addEventListener("error", (event) => tell("Python did not start in this browser.", event.message));
addEventListener("message", ({ source, data }) => source === frame.contentWindow && worker.postMessage(data));

document.querySelector("#another").addEventListener("click", () => {
  zone.hidden = false;
  frame.hidden = true;
  frame.srcdoc = "";
  document.querySelector("#another").hidden = true;
});
for (const input of document.querySelectorAll("input")) {
  input.addEventListener("change", () => {
    take([...input.files].map((file) => ({ name: file.webkitRelativePath || file.name, data: file })));
    input.value = "";
  });
}

addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", () => document.body.classList.remove("over"));
addEventListener("drop", async (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
  take((await Promise.all(entries.map((entry) => listed(entry, "")))).flat());
});

/** The files of an entry, with their paths in what was dropped. */
async function listed(entry, path) {
  const name = path + entry.name;
  if (entry.isFile) return [{ name, data: await new Promise((done, fail) => entry.file(done, fail)) }];
  const reader = entry.createReader();
  const found = [];
  for (;;) { // a reader gives a hundred at a time
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.map((inner) => listed(inner, `${name}/`)))).flat();
}
