// Colours that mean something: the same for a number type, a part of the model and a kind of bytes wherever they are.

const SCALE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const PARTS = {
  "embedding": 0, "attention": 1, "state space": 6, "feed forward": 2, "experts": 5, "norms": 3, "output": 4, "other": 7,
};
const KINDS = { padding: "--pad", unknown: "--bad" };

/** Variables of CSS for names in order of importance. */
export function colorsOf(names) {
  return new Map(names.map((name, i) => [name, `var(${SCALE[i % SCALE.length]})`]));
}

export function partColor(name) {
  return `var(${SCALE[PARTS[name] ?? 7]})`;
}

/** What a region of a file is coloured: a tensor by its type, the rest by its kind. */
export function kindColor(kind) {
  return `var(${KINDS[kind] ?? "--head"})`;
}

/** The red, green and blue of a colour of CSS, as the page shows it now. */
export function rgb(color) {
  const probe = document.createElement("i");
  probe.style.color = color;
  document.body.append(probe);
  const found = getComputedStyle(probe).color.match(/[\d.]+/g).map(Number);
  probe.remove();
  return found;
}

// Cividis, which looks alike to the colour-blind; on a dark page it begins lighter, or its low end were lost in the card.
const ON_LIGHT = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
const ON_DARK = [[72, 104, 168], [98, 122, 156], [132, 140, 142], [172, 164, 128], [214, 198, 106], [254, 232, 56]];

/** A colour for 0..1, and that of a text on it. */
export function heat(share) {
  const both = [ON_LIGHT, ON_DARK].map((stops) => mixed(stops, share));
  const either = ([light, dark]) => `light-dark(${light}, ${dark})`;
  return { ground: either(both.map((c) => `rgb(${c.join(" ")})`)), text: either(both.map(ink)) };
}

function mixed(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2), mix = at - low;
  return stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * mix));
}

/** Black or white, whichever can be read on a colour. */
export function ink([r, g, b]) {
  const linear = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}
