// Which tensors are shown, and in which order: plain functions over the columns.

/** Numbers of the tensors whose name has every word of `text`, of the type of this name (`""`: any), of at least so many bytes. */
export function matching(list, text, dtype, least) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length && !list.lower) list.lower = list.names.map((n) => n.toLowerCase());
  const wanted = dtype === "" ? -1 : list.dtypes.indexOf(dtype);
  const found = [];
  for (let i = 0; i < list.length; i++) {
    if (wanted >= 0 && list.dtype[i] !== wanted) continue;
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

/** The tree as rows, open branches with what is in them. */
export function treeRows(tree, open) {
  const rows = [];
  const walk = (nodes, depth) => {
    for (const node of nodes) {
      const branch = node.children.length > 0;
      rows.push({ ...node, depth, number: branch ? undefined : node.tensor, key: branch ? node.path : undefined });
      if (branch && open.has(node.path)) walk(node.children, depth + 1);
    }
  };
  walk(tree.nodes, 0);
  return rows;
}

const FIRST = 40; // rows of a tree that opens by itself

/** Branches that are open at first: from the top, as long as the tree stays short. */
export function firstOpen(tree) {
  const open = new Set();
  let rows = tree.nodes.length;
  for (let level = tree.nodes; level.length;) {
    const below = [];
    for (const node of level) {
      if (!node.children.length || rows + node.children.length > FIRST) continue;
      open.add(node.path);
      rows += node.children.length;
      below.push(...node.children);
    }
    level = below;
  }
  return open;
}
