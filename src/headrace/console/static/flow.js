/*
 * The flow: sources, their logs, pipelines and targets, with live rates and latency by hop.
 */

import { hopBar, sparkline } from "./charts.js";
import { h } from "./dom.js";
import { bytes, count, counted, ms, position, rate, seconds } from "./format.js";
import { icon } from "./icons.js";
import { history, pipelines, rateOf, sources, store } from "./store.js";
import { empty, link, pill, tile, tiles } from "./ui.js";

export const flow = {
  title: "Flow",
  render() {
    if (!sources().length) {
      return empty("flow", "Nothing flows yet", store.status?.phase === "starting" ? `The engine is starting: ${store.status.step}` : "This engine has no source.");
    }
    return [summary(), h("div", { class: "flow" }, sources().map(lane))];
  },
};

function summary() {
  const all = pipelines();
  const sum = (field) => all.reduce((found, each) => found + (field(each) ?? 0), 0);
  const worst = (field) => all.map(field).filter((each) => each != null).reduce((a, b) => Math.max(a, b), -1);
  const [p50, p95, lag] = [worst((each) => each.hops.total?.p50_ms), worst((each) => each.hops.total?.p95_ms), worst((each) => each.lag_seconds)];
  const ready = all.filter((each) => each.ready).length;
  const letters = sum((each) => each.dead_letters);
  return tiles(
    tile("Pipelines ready", `${ready} of ${all.length}`, store.status.ready ? "all is applied" : reasons(), { look: store.status.ready ? "ok" : "warn" }),
    tile("Changes/s", rate(sum((each) => rateOf(`pipeline:${each.name}`))), "all pipelines"),
    tile("Latency, median", p50 < 0 ? "–" : ms(p50), p95 < 0 ? "no batch yet" : `95 % within ${ms(p95)}`),
    tile("Lag", lag < 0 ? "–" : seconds(lag), "oldest change not applied"),
    tile("Dead letters", count(letters), letters ? link("letters", "Look at them") : "every row was applied", { look: letters ? "warn" : "" }),
  );
}

function reasons() {
  const found = store.health?.ready?.reasons ?? [];
  return found.length ? found[0].message : "not confirmed yet";
}

function lane(source) {
  const mine = pipelines().filter((each) => each.source === source.name);
  const live = rateOf(`source:${source.name}`);
  return h(
    "section",
    { key: source.name, class: "lane", "aria-label": `Flow of source ${source.name}`, ref: watch },
    h("svg", { class: "wires", "aria-hidden": "true", opaque: true }),
    h(
      "div",
      { class: "column" },
      h("h2", { class: "stage" }, "Source"),
      h(
        "article",
        { class: "card", "data-wire": "source" },
        h("header", {}, icon("source"), h("h3", {}, link("sources", source.name)), pill(source.state)),
        figure(rate(live), "changes/s", sparkline(history(`source:${source.name}`), "rate", { label: `Changes per second of source ${source.name}, last minute` })),
        source.reason && h("p", { class: "reason" }, source.reason),
        h("footer", {}, h("span", {}, source.kind), h("span", {}, source.lag_seconds == null ? "lag not known" : `${seconds(source.lag_seconds)} behind`)),
      ),
    ),
    h(
      "div",
      { class: "column" },
      h("h2", { class: "stage" }, "Change log"),
      h(
        "article",
        { class: "card slim", "data-wire": "log" },
        h("header", {}, icon("log"), h("h3", {}, bytes(source.log_bytes))),
        h("p", { class: "muted small" }, counted(source.captured, "change"), " since the start"),
        h("footer", {}, h("span", { title: source.end }, `at ${position(source.end)}`)),
      ),
    ),
    h(
      "ol",
      { class: "column pipes" },
      h("li", { class: "stage", key: "stage" }, h("h2", { class: "stage" }, "Pipelines"), h("h2", { class: "stage target" }, "Targets")),
      mine.length === 0 && h("li", { key: "none", class: "muted" }, "No pipeline reads this source: it is only recorded."),
      mine.map((each) => h("li", { key: each.name }, pipe(each), targetOf(each))),
    ),
  );
}

function pipe(each) {
  const error = each.error ?? each.set_aside;
  const total = each.hops.total;
  // What the card of the source says already is not said again.
  const why = each.reason.startsWith(`source ${each.source} `) ? "" : each.reason || error?.message;
  return h(
    "article",
    { class: "card", "data-wire": `pipe:${each.name}`, "data-rate": rateOf(`pipeline:${each.name}`) ? "live" : "still" },
    h("header", {}, icon("pipeline"), h("h3", {}, link(`pipelines/${encodeURIComponent(each.name)}`, each.name)), pill(each.state)),
    h(
      "div",
      { class: "two" },
      figure(rate(rateOf(`pipeline:${each.name}`)), "changes/s", sparkline(history(`pipeline:${each.name}`), "rate", { label: `Changes per second of pipeline ${each.name}, last minute` })),
      h("div", { class: "lat" }, h("p", {}, h("b", {}, total ? ms(total.p50_ms) : "–"), h("span", { class: "muted" }, " median"), total && h("span", { class: "muted" }, ` · ${ms(total.p95_ms)} p95`)), hopBar(each.hops)),
    ),
    why && h("p", { class: "reason" }, why),
  );
}

function targetOf(each) {
  return h(
    "article",
    { class: "card target", "data-wire": `target:${each.name}` },
    h("header", {}, icon("table"), h("h3", {}, each.target === "indexed-memory" ? link(`tables/${encodeURIComponent(each.name)}`, each.target) : each.target)),
    h("p", { class: "big" }, h("b", {}, count(each.rows)), h("span", { class: "muted" }, each.rows === 1 ? " row" : " rows")),
    h(
      "footer",
      {},
      h("span", {}, counted(each.tables.length, "table")),
      each.dead_letters > 0 && h("a", { class: "warned", href: `#/letters/${encodeURIComponent(each.name)}` }, icon("letter"), counted(each.dead_letters, "dead letter")),
    ),
  );
}

const figure = (value, unit, chart) =>
  h("div", { class: "figure" }, h("p", { class: "big" }, h("b", {}, value), h("span", { class: "muted" }, ` ${unit}`)), chart);

// --- the lines between the cards -------------------------------------------------------------

const seen = new WeakSet();
const resized = new ResizeObserver((entries) => entries.forEach((each) => wire(each.target)));

function watch(lane) {
  if (!lane || seen.has(lane)) return;
  seen.add(lane);
  resized.observe(lane);
}

/** Draw the lines of all lanes again; after the page was drawn, because they follow the cards. */
export function wires() {
  for (const lane of document.querySelectorAll(".lane")) wire(lane);
}

function wire(lane) {
  const svg = lane.querySelector("svg.wires");
  const home = lane.getBoundingClientRect();
  const box = (name) => lane.querySelector(`[data-wire="${CSS.escape(name)}"]`)?.getBoundingClientRect();
  const lines = [];
  const join = (from, to, live) => {
    if (!from || !to || to.left <= from.right) return;
    const [x1, y1, x2, y2] = [from.right - home.left, from.top + from.height / 2 - home.top, to.left - home.left, to.top + to.height / 2 - home.top];
    const half = (x2 - x1) / 2;
    lines.push([`M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}`, live]);
  };
  const logged = box("log");
  const pipes = [...lane.querySelectorAll("[data-wire^='pipe:']")];
  join(box("source"), logged, pipes.some((each) => each.dataset.rate === "live"));
  for (const each of pipes) {
    const here = each.getBoundingClientRect();
    const live = each.dataset.rate === "live";
    join(logged, here, live);
    join(here, box(each.dataset.wire.replace("pipe:", "target:")), live);
  }
  while (svg.children.length > lines.length * 2) svg.lastChild.remove();
  while (svg.children.length < lines.length * 2) svg.append(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  lines.forEach(([path, live], at) => {
    for (const [offset, cls] of [[0, "wire"], [1, live ? "water live" : "water"]]) {
      const line = svg.children[at * 2 + offset];
      if (line.getAttribute("d") !== path) line.setAttribute("d", path);
      if (line.getAttribute("class") !== cls) line.setAttribute("class", cls);
    }
  });
}
