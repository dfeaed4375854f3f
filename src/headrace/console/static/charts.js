/*
 * Charts: the course of a rate, where the time of a change goes, and batch by batch.
 *
 * Each has words for those who do not see it.
 */

import { h, update } from "./dom.js";
import { count, counted, ms, time } from "./format.js";

/** The hops of a change, in order, with how they are called. */
export const HOPS = [
  ["captured", "read", "From the commit to the engine"],
  ["flushed", "log", "Written to the change log"],
  ["job", "compute", "Filters and transforms"],
  ["applied", "apply", "Written to the target"],
];

/** The last minutes of a value, as an area. */
export function sparkline(samples, field, { label, width = 120, height = 28 } = {}) {
  const found = samples.map((each) => each[field]);
  const known = found.filter((each) => each != null);
  const most = Math.max(1, ...known);
  const step = width / Math.max(1, 59);
  const first = found.findIndex((each) => each != null);
  const shown = found.slice(first < 0 ? found.length : first).slice(-60);
  const left = width - (shown.length - 1) * step;
  const points = shown.map((each, at) => [left + at * step, height - 2 - ((each ?? 0) / most) * (height - 5)]);
  const line = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  return h(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("line", { x1: 0, x2: width, y1: height - 1, y2: height - 1 }),
    points.length > 1 && h("polygon", { points: `${points[0][0].toFixed(1)},${height} ${line} ${width},${height}` }),
    points.length > 1 && h("polyline", { points: line }),
  );
}

/** Where the time goes, as one bar with a part a hop, and the figures below. */
export function hopBar(hops, { legend = true } = {}) {
  if (!hops?.total) return h("p", { class: "muted small" }, "No batch yet, so no times.");
  const all = HOPS.map(([name, label, long]) => ({ name, label, long, ...hops[name] }));
  const sum = all.reduce((found, each) => found + each.p50_ms, 0) || 1;
  const text = all.map((each) => `${each.label} ${ms(each.p50_ms)}`).join(", ");
  return h(
    "div",
    { class: "hops" },
    h(
      "div",
      { class: "hopbar", role: "img", "aria-label": `Median latency by hop: ${text}` },
      all.map((each) => h("i", { class: each.name, title: `${each.long}: ${ms(each.p50_ms)}`, style: { "flex-grow": String(Math.max(0.012, each.p50_ms / sum)) } })),
    ),
    legend &&
      h(
        "ul",
        { class: "hoplist" },
        all.map((each) => h("li", { title: each.long }, h("i", { class: each.name, "aria-hidden": "true" }), `${each.label} `, h("b", {}, ms(each.p50_ms)))),
      ),
  );
}

const WAYS = { direct: " · computed directly", job: " · by a Spark job", both: " · in part by a Spark job" };

let over = null;
let width = 800;
const resized = new ResizeObserver(([entry]) => {
  const now = Math.max(240, Math.round(entry.contentRect.width));
  if (now !== width) (width = now), update();
});

/** The times of batches, one bar a batch, the newest right. */
export function batchChart(given) {
  // On a narrow page fewer, so that a bar can be seen.
  const batches = given.slice(-Math.floor((width - 52) / 4));
  const [height, base, left] = [220, 196, 52];
  const all = batches.map((each) => ({ ...each, total: HOPS.reduce((sum, [name]) => sum + each[`${name}_ms`], 0) }));
  const ordered = all.map((each) => each.total).sort((a, b) => a - b);
  const at = (part) => ordered[Math.min(ordered.length - 1, Math.floor(part * ordered.length))] ?? 0;
  // Not the maximum: one slow batch would flatten all others.
  const top = nice(Math.min(ordered.at(-1) ?? 1, at(0.95) * 1.6) || 1);
  const room = (width - left) / Math.max(40, all.length);
  const bar = Math.max(0.8, room > 5 ? room - 1.5 : room - 0.4);
  const shown = over == null ? null : all[over];
  const first = width - all.length * room;
  const y = (value) => base - (Math.min(value, top) / top) * (base - 14);
  const pick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    const found = Math.floor(all.length - (width - x) / room);
    over = found >= 0 && found < all.length && x > left ? found : null;
    update();
  };
  const turn = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    over = Math.max(0, Math.min(all.length - 1, (over ?? all.length) + step));
    update();
  };
  const leave = () => ((over = null), update());
  return h(
    "figure",
    { class: "batches", ref: (node) => node && resized.observe(node) },
    h(
      "figcaption",
      {},
      h("ul", { class: "hoplist" }, HOPS.map(([name, label, long]) => h("li", { title: long }, h("i", { class: name, "aria-hidden": "true" }), label, shown && h("b", {}, ` ${ms(shown[`${name}_ms`])}`)))),
      h("p", { class: "muted small", "aria-live": "polite" }, shown ? `${time(shown.at, { millis: true })} · ${counted(shown.changes, "change")} · ${ms(shown.total)} in all${WAYS[shown.way] ?? ""}` : `${count(all.length)} batches · median ${ms(at(0.5))} · 95 % within ${ms(at(0.95))}`),
    ),
    h(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": `Times of the last ${all.length} batches: median ${ms(at(0.5))}, 95 percent within ${ms(at(0.95))}. Arrow keys go from batch to batch.`, onpointermove: pick, onpointerleave: leave, onkeydown: turn, onblur: leave },
      [0, 0.25, 0.5, 0.75, 1].map((part) => [
        h("line", { class: "grid", x1: left, x2: width, y1: y(part * top), y2: y(part * top) }),
        h("text", { class: "axis", x: left - 8, y: y(part * top) + 4, "text-anchor": "end" }, ms(part * top)),
      ]),
      all.map((each, index) => {
        const x = width - (all.length - index) * room;
        let sum = 0;
        return h(
          "g",
          { key: each.at, class: index === over ? "over" : null },
          HOPS.map(([name]) => {
            const from = y(sum);
            sum += each[`${name}_ms`];
            return h("rect", { class: name, x: x.toFixed(2), width: bar.toFixed(2), y: y(sum).toFixed(2), height: Math.max(0, from - y(sum)).toFixed(2) });
          }),
          each.total > top && h("path", { class: "beyond", d: `M${(x + bar / 2 - 3).toFixed(1)} 11l3 -5 3 5z` }),
        );
      }),
      width - first > 140 && h("text", { class: "axis", x: first, y: height - 4 }, time(all[0].at)),
      all.length > 1 && h("text", { class: "axis", x: width, y: height - 4, "text-anchor": "end" }, time(all.at(-1).at)),
    ),
  );
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].map((each) => each * size).find((each) => each >= value);
}
