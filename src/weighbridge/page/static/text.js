// Texts and numbers as the page shows them. Texts of files are untrusted: what doesn't print is written out.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** A text with controls, bidirectional overrides and half characters as `\u202e`. */
export function visible(text) {
  return String(text).replace(HIDDEN, (c) =>
    c === "\n" ? "\\n" : c === "\t" ? "\\t" : "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/** 1234567 -> `1.23 MB`: decimal units, three digits. */
export function bytes(n) {
  const [value, unit] = scaled(Number(n));
  return unit === 0 ? `${value} B` : `${digits(value)} ${UNITS[unit]}`;
}

/** [444000, 505000] -> `444–505 kB`; of equal sizes, one. */
export function bytesRange([low, high]) {
  const [a, b] = [bytes(low), bytes(high)], unit = a.slice(a.indexOf(" "));
  return a === b ? a : b.endsWith(unit) ? `${a.slice(0, -unit.length)}–${b}` : `${a} – ${b}`;
}

/** 7241732096 -> `7.24 B`: thousands, millions, billions. */
export function count(n) {
  const [value, unit] = scaled(Number(n));
  return unit === 0 ? String(value) : `${digits(value)} ${["", "K", "M", "B", "T", "Qa", "Qi"][unit]}`;
}

/** `10.0 K` -> `10 K`: a round number at an axis. */
export function tick(text) {
  return text.replace(/(\.\d*?)0+(?=[ k%]|$)/, "$1").replace(/\.(?= |$)/, "");
}

function scaled(n) {
  let unit = 0;
  while (n >= 999.5 && unit < UNITS.length - 1) [n, unit] = [n / 1000, unit + 1];
  return [n, unit];
}

function digits(value) {
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/** The bytes of a model's files on disk. */
export function sizeOf({ files }) {
  return files.reduce((sum, f) => sum + (f.inside ? 0 : f.size), 0);
}

/** The files of a model with their numbers, without the parts of others. */
export function filesOf({ files }) {
  return files.map((f, number) => ({ ...f, number })).filter((f) => !f.inside);
}

/** What a file is to a model: itself one, or something that accompanies one. */
export const kindOf = (model) => ["imatrix", "projector", "adapter"].find((kind) => model[kind]) ?? "model";

/** What a tokenizer's algorithm is called: as its file does, if it is known. */
export const algorithmOf = (tokenizer, otherwise) => tokenizer?.words ?? tokenizer?.kind ?? otherwise;

/** A message of a report: visible, and thousands apart in its large numbers. Numbers in names stay as they are. */
export function message(text) {
  return visible(text).replace(/(?<![\w./,:-])[1-9]\d{4,}(?![\w/:-]|[.,]\d)/g, whole);
}

/** An integer with thousands apart. */
export function whole(n) {
  return Number(n).toLocaleString("en-US");
}

/** A number with few digits; what JSON lacks comes as a text. */
export function number(x, places = 4) {
  if (x === null || x === undefined) return "";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x) && Math.abs(x) < 1e9) return Math.abs(x) < 1e4 ? String(x) : whole(x);
  const size = Math.abs(x);
  const short = Number(x.toPrecision(places));
  return size < 1e-3 || size >= 1e6 ? short.toExponential() : size < 1e4 ? String(short) : whole(short);
}

/** A number with as many digits as its neighbours in a column: zeros at the end stay. */
export function fixed(x, places = 4) {
  if (typeof x !== "number" || Number.isInteger(x)) return number(x, places);
  const size = Math.abs(x);
  return size < 1e-3 || size >= 1e6 ? x.toExponential(places - 1) : size < 1e4 ? x.toPrecision(places) : number(x, places);
}

export function percent(share) {
  return share > 0 && share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`;
}

export function hex(n, width = 0) {
  return "0x" + Number(n).toString(16).padStart(width, "0");
}

/** [4096, 11008] -> `4096 × 11008`. */
export function shape(dims) {
  return dims.length ? dims.join(" × ") : "scalar";
}

export function plural(n, noun) {
  return `${whole(n)} ${noun}${Number(n) === 1 ? "" : "s"}`;
}
