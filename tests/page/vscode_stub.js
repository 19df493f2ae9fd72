// A stub of the module `vscode` for the extension's tests. Opens the files in argv as the editor would, and carries lines of
// JSON between the webview and the test: {html} and {message} out, a message in; {"dispose": true} closes the panel.
"use strict";

const Module = require("node:module");
const readline = require("node:readline");

const [extension, command, theme, ...files] = process.argv.slice(2);
const tell = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const registered = {}, commands = {}, receivers = [], disposers = [];
const uri = (fsPath) => ({ fsPath });
const panel = () => ({
  onDidDispose: (act) => disposers.push(act),
  webview: {
    set html(text) { tell({ html: text }); },
    set options(value) { tell({ options: value }); },
    onDidReceiveMessage: (act) => receivers.push(act),
    postMessage: (message) => tell({ message }),
  },
});
const stub = {
  ColorThemeKind: { Light: 1, Dark: 2, HighContrast: 3 }, ViewColumn: { Active: -1 },
  window: {
    activeColorTheme: { kind: Number(theme) },
    registerCustomEditorProvider: (view, provider) => ((registered[view] = provider), { dispose() {} }),
    createWebviewPanel: (view, title) => (tell({ title }), panel()),
  },
  commands: { registerCommand: (name, act) => ((commands[name] = act), { dispose() {} }) },
  workspace: { getConfiguration: () => ({ get: () => command }) },
};
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? stub : load(name, ...rest));

const { activate } = require(extension), context = { subscriptions: [] };
activate(context);
tell({ views: Object.keys(registered), commands: Object.keys(commands) });
if (files.length > 1) commands["weighbridge.view"](uri(files[0]), files.map(uri));
else {
  const provider = registered["weighbridge.model"];
  provider.resolveCustomEditor(provider.openCustomDocument(uri(files[0])), panel());
}
readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.dispose) disposers.forEach((act) => act());
  else receivers.forEach((act) => act(message));
});
process.on("SIGTERM", () => (disposers.forEach((act) => act()), process.exit())); // and no server outlives the editor
