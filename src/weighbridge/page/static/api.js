// Questions to the server, to the notebook whose frame the page is in, or to the answers that an exported page brings.

let answers = null; // of an exported page, by question
let asked = null; // of a page in a notebook's frame: what waits for an answer, by number
let token = "";

/** Takes the token out of the address, so that it is in no copied link; this tab keeps it. */
export function takeToken() {
  if (answers || asked) return;
  const found = new URLSearchParams(location.hash.slice(1));
  token = found.get("t") ?? remembered() ?? "";
  if (!found.has("t")) return;
  found.delete("t");
  try {
    sessionStorage.setItem("token", token);
    history.replaceState(null, "", "#" + found);
  } catch { /* a frame that may keep nothing */ }
}

function remembered() {
  try {
    return sessionStorage.getItem("token");
  } catch {
    return null;
  }
}

/** Reads the answers of an exported page; false where there is a server. */
export async function readExported() {
  const element = document.getElementById("answers");
  if (!element) return false;
  answers = JSON.parse(element.dataset.encoding === "gzip" ? await unzipped(element.textContent) : element.textContent);
  return true;
}

export const isExported = () => answers !== null;

/** Whether there is an answer to a question of this name: a server has all, an exported page some. */
export const holds = (name) => !isExported() || Object.keys(answers).some((question) => question.startsWith(`${name}?`));

/** Whether an exported page has statistics of values. */
export const holdsValues = () => isExported() && holds("heat");

async function unzipped(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

/** Whether the page is in a notebook's frame, which answers through messages; begins to listen to it. */
export function joinFrame() {
  if (!document.getElementById("framed")) return false;
  asked = new Map();
  addEventListener("message", ({ source, data }) => source === parent && asked.get(data?.id)?.(data));
  return true;
}

/** An answer that an exported page doesn't have. */
export class NotHere extends Error {}

/** Something that the server refuses, with the next step. */
export class Refused extends Error {
  constructor({ error, hint }) {
    super(error);
    this.hint = hint;
  }
}

const kept = new Map();
const early = new Map(); // answers on their way that a panel will ask for

/** Asks what a panel is about to ask; settles when all of it has come. */
export function expect(questions) {
  if (answers) return Promise.resolve();
  return Promise.allSettled(questions.map(([name, given]) => {
    const answer = ask(name, given);
    early.set(named(name, given), answer);
    return answer;
  }));
}

let sides = [0, 1]; // the numbers of the models that the page shows as A and B
const OF_BOTH = new Set(["diff", "token_pair", "moves", "weights"]);

/** Shows these of the server's models as A and B: questions about model 0 or 1 are about them. */
export function showSides(numbers) {
  sides = numbers;
}

/** A question as text. `real`: the number of a model, whether it is shown or not; `from`: side A of a question about both. */
function named(name, { real, from = 0, ...given }) {
  const model = real ?? (given.model === undefined ? undefined : sides[given.model]);
  const about = { ...given, ...(model === undefined ? {} : { model }), ...(OF_BOTH.has(name) ? { a: sides[from], b: sides[1 - from] } : {}) };
  const query = new URLSearchParams(Object.entries(about).map(([k, v]) => [k, String(v)]));
  query.sort();
  return `${name}?${query}`;
}

/** The answer to a question. The quick ones are kept, those that read tensors report progress and can be aborted. */
export async function ask(name, given = {}, { signal, progress } = {}) {
  const question = named(name, given);
  if (answers) return exported(question);
  if (early.has(question)) return taken(question);
  if (!kept.has(question)) kept.set(question, await fetched(question, signal, progress));
  if (kept.size > 400) kept.delete(kept.keys().next().value);
  return kept.get(question);
}

function taken(question) {
  const answer = early.get(question);
  early.delete(question);
  return answer;
}

function exported(question) {
  const found = answers[question];
  if (found === undefined) throw new NotHere("An exported page doesn’t hold this.");
  if (found.error) throw new Refused(found);
  return found.answer;
}

const frame = Math.random().toString(36).slice(2); // one of several that show the same model
let questions = 0;

/** The answer of the notebook. A message to it is a question or the number of one that isn't wanted any more. */
function posted(question, signal, progress) {
  const id = `${frame}.${questions++}`;
  return new Promise((resolve, reject) => {
    const done = (settle, value) => (asked.delete(id), settle(value));
    asked.set(id, (message) => {
      if (message.progress) progress?.(...message.progress);
      else if (message.error) done(reject, new Refused(message));
      else done(resolve, message.answer);
    });
    signal?.addEventListener("abort", () => asked.has(id) && (parent.postMessage({ cancel: id }, "*"), done(reject, signal.reason)));
    parent.postMessage({ id, question }, "*");
  });
}

async function fetched(question, signal, progress) {
  if (asked) return posted(question, signal, progress);
  const response = await fetch(`/api/${question}`, { headers: { "X-Token": token }, signal }).catch((error) => gone(error, signal));
  if (!response.ok) throw new Refused(await response.json().catch(() => ({ error: `the server answers ${response.status}` })));
  if (response.headers.get("content-type").startsWith("application/json")) return response.json();
  return streamed(response.body, signal, progress);
}

/** Tells the server that somebody looks at the page, which keeps it from ending, and the page whether it has ended. */
export async function stillThere() {
  if (answers || asked) return;
  const there = await fetch("/api/start", { headers: { "X-Token": token } }).then(() => true, () => false);
  dispatchEvent(new CustomEvent("ended", { detail: !there }));
}

/** Whoever asked has aborted it, or there is no server any more: browsers have words of their own for that. */
function gone(error, signal) {
  if (signal?.aborted) throw error;
  dispatchEvent(new CustomEvent("ended", { detail: true }));
  throw new Refused({ error: "the server has ended", hint: "run wb view again, and open the address that it prints" });
}

/** The last of lines of JSON; those before it are progress. */
async function streamed(body, signal, progress) {
  let rest = "";
  for (const reader = body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
    const { value, done } = await reader.read().catch((error) => gone(error, signal));
    if (done) gone();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const message = JSON.parse(line);
      if (message.error) throw new Refused(message);
      if ("answer" in message) return message.answer;
      progress?.(...message.progress);
    }
  }
}
