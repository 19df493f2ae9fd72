// Shows `wb view` in an editor. The command serves the page to this machine; the editor's document is that page in a frame
// without network access, and its questions go through here, so it works wherever the extension runs (SSH, WSL, containers).
"use strict";

const { spawn } = require("node:child_process");
const { randomBytes } = require("node:crypto");
const path = require("node:path");
const vscode = require("vscode");

const VIEWS = ["weighbridge.model", "weighbridge.binary"];
const QUESTION = /^[a-z_]{1,40}(\?[^#\s]*)?$/;
const ALIVE = 60_000; // milliseconds between two signs of life, without which the command ends after half an hour
const HINT = 'Install it with: pip install "weighbridge[view]". Then set "weighbridge.command" if it isn\'t on the PATH.';

function activate(context) {
  for (const view of VIEWS) context.subscriptions.push(vscode.window.registerCustomEditorProvider(view, provider, { supportsMultipleEditorsPerDocument: true, webviewOptions: { retainContextWhenHidden: true } }));
  context.subscriptions.push(vscode.commands.registerCommand("weighbridge.view", (clicked, selected) => open(selected?.length ? selected : [clicked])));
}

const provider = {
  openCustomDocument: (uri) => ({ uri, dispose() {} }),
  resolveCustomEditor: (document, panel) => fill(panel, [document.uri]),
};

/** Opens files or folders in a panel: one, or several with their differences and family tree. */
function open(uris) {
  const title = uris.map((uri) => path.basename(uri.fsPath)).join(", ");
  return fill(vscode.window.createWebviewPanel("weighbridge.page", title, vscode.ViewColumn.Active, { enableScripts: true, retainContextWhenHidden: true }), uris);
}

/** Fills a panel with the page about some models, and ends its server with it. */
async function fill(panel, uris) {
  panel.webview.options = { enableScripts: true, localResourceRoots: [] };
  let server = null, closed = false;
  panel.onDidDispose(() => ((closed = true), server?.stop()));
  try {
    server = await started(uris.map((uri) => uri.fsPath));
    if (closed) return server.stop();
    const answers = relay(server, (message) => panel.webview.postMessage(message));
    panel.webview.onDidReceiveMessage(answers);
    const page = await fetch(server.origin);
    panel.webview.html = documentOf(await page.text(), page.headers.get("content-security-policy"), dark() ? "dark" : "light");
  } catch (error) {
    server?.stop();
    panel.webview.html = trouble(error.message);
  }
}

const dark = () => [vscode.ColorThemeKind.Dark, vscode.ColorThemeKind.HighContrast].includes(vscode.window.activeColorTheme.kind);

/** {origin, token, stop}: a running `wb view`. Rejects with what the command says if it doesn't start. */
function started(files) {
  const command = vscode.workspace.getConfiguration("weighbridge").get("command") || "wb";
  const child = spawn(command, ["view", "--no-browser", "--json", "--", ...files], { shell: false, windowsHide: true });
  let out = "", errors = "";
  return new Promise((resolve, reject) => {
    child.on("error", (error) => reject(new Error(`${command} doesn't start: ${error.message}. ${HINT}`)));
    child.on("exit", (code) => reject(new Error(errors.trim() || `${command} ended with ${code}. ${HINT}`)));
    child.stderr.on("data", (data) => (errors = (errors + data).slice(-4000)));
    child.stdout.on("data", (data) => {
      out += data;
      if (!out.includes("\n")) return;
      try {
        const url = new URL(JSON.parse(out.split("\n")[0]).url), server = { origin: `${url.origin}/`, token: new URLSearchParams(url.hash.slice(1)).get("t") };
        const timer = setInterval(() => fetch(`${server.origin}api/start`, headersOf(server)).catch(() => {}), ALIVE);
        timer.unref?.();
        resolve({ ...server, stop: () => (clearInterval(timer), child.kill()) });
      } catch {
        reject(new Error(`${command} isn't Weighbridge: it answers ${out.slice(0, 200)}. ${HINT}`));
      }
    });
  });
}

const headersOf = ({ token }) => ({ headers: { "X-Token": token } });

/** A function that takes the page's messages, which are questions and cancellations, and answers with `post`. */
function relay(server, post) {
  const running = new Map();
  return async ({ id, question, cancel }) => {
    if (cancel !== undefined) return running.get(cancel)?.abort();
    const abort = new AbortController();
    running.set(id, abort);
    try {
      if (!QUESTION.test(String(question))) throw new Error("not a question of the page");
      const response = await fetch(`${server.origin}api/${question}`, { ...headersOf(server), signal: abort.signal });
      for await (const message of messages(response)) post({ id, ...message });
    } catch (error) {
      if (!abort.signal.aborted) post({ id, error: error.message, hint: "close the editor and open the file again" });
    } finally {
      running.delete(id);
    }
  };
}

/** {progress}, {answer} or {error, hint}: what the server answers, line by line where it is slow. */
async function* messages(response) {
  if (!response.ok) return yield response.json();
  if (response.headers.get("content-type").startsWith("application/json")) return yield { answer: await response.json() };
  let rest = "";
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + part).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

/** The editor's document: the page in a frame, and a script that carries messages. The frame inherits this policy, which so
 * allows the page's script and style, and no connection. */
function documentOf(page, policy, theme) {
  const nonce = randomBytes(16).toString("base64");
  const rules = policy.split("; ").filter((rule) => !/^(connect-src|frame-ancestors|frame-src) /.test(rule))
    .map((rule) => (rule.startsWith("script-src ") ? `${rule} 'nonce-${nonce}'` : rule.startsWith("style-src ") ? `${rule} 'nonce-${nonce}'` : rule));
  const framed = page.replace("<html", `<html data-theme="${theme}"`).replace('<div id="app"></div>', '<div id="app"></div><script type="application/json" id="framed"></script>');
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${escaped(rules.join("; "))}">
<style nonce="${nonce}">html, body { height: 100%; margin: 0; padding: 0 !important } iframe { display: block; width: 100%; height: 100%; border: 0 }</style></head>
<body><iframe sandbox="allow-scripts" title="The model" srcdoc="${escaped(framed)}"></iframe>
<script nonce="${nonce}">
const host = acquireVsCodeApi(), frame = document.querySelector("iframe");
addEventListener("message", ({ source, data }) => (source === frame.contentWindow ? host.postMessage(data) : frame.contentWindow.postMessage(data, "*")));
</script></body></html>`;
}

function trouble(text) {
  return `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'"></head><body><h1>Weighbridge</h1><p>${escaped(text)}</p></body></html>`;
}

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

module.exports = { activate, deactivate: () => {}, documentOf, provider, relay };
