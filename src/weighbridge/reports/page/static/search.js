// Which tensors are shown, and in which order: plain functions over the columns.

/** Numbers of the tensors whose name has every word of `text`, of one type (`""`: any), of at least so many bytes. */
export function matching(list, text, dtype, least) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !list.lower) list.lower = list.names.map((n) => n.toLowerCase());
  const found = [];
  for (let i = 0; i < list.length; i++) {
    if (dtype !== "" && list.dtype[i] !== Number(dtype)) continue;
    if (least && Number(list.nbytes[i]) < least) continue;
    if (words.every((w) => list.lower[i].includes(w))) found.push(i);
  }
  return found;
}

const order = new Intl.Collator("en", { numeric: true });

/** Rows of tensors by `[column, 1 | -1]`; equal ones stay in the file's order. */
export function sorted(list, numbers, [key, direction]) {
  const made = (ns) => ns.map((number) => ({ number, depth: 0 }));
  if (key === "file") return made(numbers);
  const compare = {
    name: () => {
      const keys = ranks(list.names);
      return (a, b) => keys[a] - keys[b];
    },
    dtype: () => (a, b) => order.compare(list.dtypes[list.dtype[a]], list.dtypes[list.dtype[b]]),
    shape: () => {
      const size = list.shapes.map((dims) => dims.reduce((p, d) => p * d, 1));
      return (a, b) => size[list.shape[a]] - size[list.shape[b]];
    },
    parameters: () => (a, b) => list.parameters[a] - list.parameters[b],
    nbytes: () => (a, b) => list.nbytes[a] - list.nbytes[b],
  }[key]();
  return made([...numbers].sort((a, b) => compare(a, b) * direction || a - b));
}

const known = new WeakMap();

/** The place of each name in the order of people: layer 2 before layer 10. */
function ranks(names) {
  if (!known.has(names)) {
    const ordered = names.map((_, i) => i).sort((a, b) => order.compare(names[a], names[b]));
    const places = new Int32Array(names.length);
    ordered.forEach((name, place) => (places[name] = place));
    known.set(names, places);
  }
  return known.get(names);
}

/** The tree as rows, open nodes with what is in them. Neighbours with numbers for names and equal content are one node
 * (`0–31`, repeated 32 times), which holds the first of them. */
export function treeRows(list, open) {
  if (!list.tree) list.tree = treeOf(list);
  const rows = [];
  const walk = (nodes, depth) => {
    for (const node of nodes) {
      rows.push({ ...node, depth });
      if (node.children && open.has(node.key)) walk(node.children, depth + 1);
    }
  };
  walk(list.tree, 0);
  return rows;
}

const FIRST = 40; // rows of a tree that opens by itself

/** Nodes that are open at first: from the top, as long as the tree stays short. */
export function firstOpen(list) {
  if (!list.tree) list.tree = treeOf(list);
  const open = new Set();
  let rows = list.tree.length;
  for (let level = list.tree; level.length;) {
    const below = [];
    for (const node of level) {
      if (!node.children || rows + node.children.length > FIRST) continue;
      open.add(node.key);
      rows += node.children.length;
      below.push(...node.children);
    }
    level = below;
  }
  return open;
}

function treeOf(list) {
  const root = new Map();
  for (let i = 0; i < list.length; i++) {
    const parts = list.names[i].split(".");
    let below = root;
    for (const part of parts.slice(0, -1).slice(0, 31)) {
      const key = part + ".";
      if (!below.has(key)) below.set(key, new Map());
      below = below.get(key);
    }
    below.set(parts.slice(Math.min(parts.length - 1, 31)).join(".") + "\0" + i, i);
  }
  return folded(list, root, "");
}

const looks = new Map();

/** A number for what nodes look like: equal for equal texts. */
function lookOf(text) {
  if (!looks.has(text)) looks.set(text, looks.size);
  return looks.get(text);
}

/** The nodes of a map, numbered neighbours that look alike as one. */
function folded(list, map, path) {
  const nodes = [];
  for (const [key, value] of map) {
    const node = typeof value === "number" ? leaf(list, key, value) : branch(list, key, value, path);
    const before = nodes.at(-1);
    const numbered = /^\d+\.$/.test(key) && before?.children && /\d$/.test(before.label);
    if (numbered && before.look === node.look && Number(key.slice(0, -1)) === before.end + 1) {
      before.end += 1;
      before.repeat += 1;
      before.label = `${before.start}–${before.end}`;
      for (const sum of ["tensors", "parameters", "nbytes"]) before[sum] += node[sum];
    } else nodes.push(node);
  }
  return nodes;
}

function leaf(list, key, i) {
  const label = key.slice(0, key.lastIndexOf("\0"));
  return {
    number: i, label, tensors: 1, parameters: Number(list.parameters[i]), nbytes: Number(list.nbytes[i]), types: [list.dtypes[list.dtype[i]]],
    look: lookOf(`${label}|${list.dtype[i]}|${list.shape[i]}|${list.nbytes[i]}`),
  };
}

function branch(list, key, map, path) {
  const children = folded(list, map, path + key);
  const only = children.length === 1 && !children[0].children && !/^\d+\.$/.test(key) ? children[0] : null;
  if (only) return { ...only, label: key + only.label };
  const sum = (what) => children.reduce((n, c) => n + c[what], 0);
  const start = Number(key.slice(0, -1));
  return {
    key: path + key, label: key.slice(0, -1), children, repeat: 1, start, end: start, tensors: sum("tensors"), parameters: sum("parameters"),
    nbytes: sum("nbytes"), types: [...new Set(children.flatMap((c) => c.types))].slice(0, 4), look: lookOf(children.map((c) => `${c.label}(${c.look})`).join(",")),
  };
}
