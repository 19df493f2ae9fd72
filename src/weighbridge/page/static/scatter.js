// Sizes against errors, drawn: one point for each, on a logarithmic scale of errors. Each drawing has a table beside it.
import { html, useMemo } from "./vendor/htm-preact.js";
import { number, tick, visible } from "./text.js";
import { useSize } from "./ui.js";

const HEIGHT = 260, LEFT = 58, BOTTOM = 40, TOP = 30, RIGHT = 14, ZERO = 30;

/** `points`: [{x, y, label, color, radius, open}]; a `y` of zero lies on a line of its own below the scale. `line`: whether they are joined in
 * the order of x. `names`: whether each is named in the drawing. `spread`: whether points on one spot lie side by side. */
export function Scatter({ points, label, xTitle, yTitle, xText = number, yText = powerText, line = false, names = false, spread = false }) {
  const [box, [width]] = useSize();
  const scale = useMemo(() => scaleOf(points), [points]);
  const zeros = points.some((p) => !(p.y > 0)), right = Math.max(width - RIGHT, LEFT + 1), bottom = HEIGHT - BOTTOM, lowest = bottom - (zeros ? ZERO : 0);
  const x = (v) => LEFT + ((v - scale.left) / (scale.right - scale.left)) * (right - LEFT);
  const y = (v) => (v > 0 ? TOP + ((scale.high - Math.log10(v)) / (scale.high - scale.low)) * (lowest - TOP) : bottom);
  const ordered = [...points].sort((a, b) => a.x - b.x), shifts = spread ? aside(ordered, x, y) : [];
  return html`<div ref=${box} class="plot scatter">${width > 80 && html`<svg width=${width} height=${HEIGHT} role="img" aria-label=${`${label}: ${points.length} points; the table has the same.`}>
    ${scale.powers.map((power) => html`<path class="rule" d=${`M${LEFT} ${y(10 ** power)}H${right}`} /><text class="y" x=${LEFT - 8} y=${y(10 ** power) + 4}>${yText(power)}</text>`)}
    ${zeros && html`<path class="rule zero" d=${`M${LEFT} ${bottom}H${right}`} /><text class="y" x=${LEFT - 8} y=${bottom + 4}>0</text>`}
    ${ticks(scale.left, scale.right, width).map((v) => html`<text class="x" x=${x(v)} y=${bottom + 16}>${tick(xText(v))}</text>`)}
    <text class="x title" x=${(LEFT + right) / 2} y=${HEIGHT - 6}>${xTitle}</text><text class="title" x="2" y="12">${yTitle}</text>
    ${line && html`<path class="join" d=${ordered.map((p, i) => `${i ? "L" : "M"}${x(p.x).toFixed(1)} ${y(p.y).toFixed(1)}`).join("")} />`}
    ${ordered.map((p, i) => html`<circle class=${p.open ? "can" : ""} cx=${x(p.x) + (shifts[i] ?? 0)} cy=${y(p.y)} r=${p.radius ?? 4} style=${{ fill: p.color, stroke: p.color }} onClick=${p.open}><title>${visible(p.label)}</title></circle>`)}
    ${names && placed(ordered, x, y, right, bottom).map(([p, left, top]) => html`<text class="name" x=${left} y=${top}>${visible(p.name)}</text>`)}
  </svg>`}</div>`;
}

const powerText = (power) => (power >= -3 && power <= 3 ? number(10 ** power) : `1e${power}`);

const SPOT = 5; // pixels
const WAYS = [0, 1, -1, 2, -2, 3, -3]; // spots

/** How many pixels aside of its place each point lies: on the first free spot of a few, if one is free. */
function aside(points, x, y) {
  const taken = new Set(), spot = (p, way) => `${Math.round(x(p.x) / SPOT) + way} ${Math.round(y(p.y) / SPOT)}`;
  return points.map((p) => {
    const way = WAYS.find((n) => !taken.has(spot(p, n))) ?? 0;
    taken.add(spot(p, way));
    return way * SPOT;
  });
}

const GLYPH = 7; // pixels of a character, at most

/** [point, x, y] of each name: right above its point, or where it overlaps no name before it. */
function placed(points, x, y, right, bottom) {
  const taken = [];
  for (const p of points) {
    const wide = visible(p.name).length * GLYPH, px = x(p.x), py = y(p.y);
    const ways = [[px + 8, py - 7], [px - 8 - wide, py + 16], [px + 8, py + 16], [px - 8 - wide, py - 7], [px + 8, py + 30]].filter(([left, top]) => left >= LEFT && left + wide <= right + RIGHT && top < bottom);
    const free = ways.find(([left, top]) => taken.every(([, l, t, w]) => left + wide < l || l + w < left || Math.abs(t - top) > 12)) ?? ways[0] ?? [px, py - 7];
    taken.push([p, ...free, wide]);
  }
  return taken;
}

/** The edges of the drawing: x from zero, y over whole powers of ten. */
function scaleOf(points) {
  const errors = points.map((p) => p.y).filter((v) => v > 0), most = points.reduce((n, p) => Math.max(n, p.x), 0) || 1;
  const low = Math.floor(Math.log10(errors.reduce((a, b) => Math.min(a, b), errors[0] ?? 1))), high = Math.max(Math.ceil(Math.log10(errors.reduce((a, b) => Math.max(a, b), 0) || 10)), low + 1);
  const step = Math.max(1, Math.ceil((high - low) / 6));
  return { left: 0, right: most * 1.08, low, high, powers: Array.from({ length: Math.floor((high - low) / step) + 1 }, (_, i) => low + i * step) };
}

/** Round numbers between two, as many as there is room for. */
function ticks(left, right, width) {
  const rough = (right - left) / Math.max(2, Math.min(8, width / 90)), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((n) => n * power >= rough) * power;
  return Array.from({ length: Math.floor((right - left) / step) + 1 }, (_, i) => left + i * step);
}
