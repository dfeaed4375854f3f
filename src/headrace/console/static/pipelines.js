/*
 * All pipelines, and one of them: positions, lag, batches, errors with remedies, plan, actions.
 */

import { batchChart, hopBar, sparkline } from "./charts.js";
import { h, update } from "./dom.js";
import { ago, count, counted, ms, position, rate, seconds, time } from "./format.js";
import { icon } from "./icons.js";
import { letterList } from "./letters.js";
import { call } from "./rpc.js";
import { history, pipelineNamed, pipelines, rateOf, store } from "./store.js";
import { action, confirmed, empty, facts, link, loading, panel, pauseOrResume, pill, problem, table, tabPanel, tabs, tile, tiles } from "./ui.js";

const to = (each) => `pipelines/${encodeURIComponent(each.name)}`;

export const pipelineList = {
  title: "Pipelines",
  render() {
    const all = pipelines();
    if (!all.length) return empty("pipeline", "No pipeline", store.status?.phase === "starting" ? "The engine is still starting." : "This engine only records its sources.");
    const columns = [
      ["Pipeline", (each) => [link(to(each), each.name, "strong"), each.reason && h("small", { class: "reason" }, each.reason)]],
      ["State", (each) => pill(each.state)],
      ["From → to", (each) => h("span", { class: "muted" }, `${each.source} → ${each.target}`), "wide"],
      ["Changes/s", (each) => h("span", { class: "sparked" }, sparkline(history(`pipeline:${each.name}`), "rate", { label: `Changes per second of ${each.name}`, width: 80, height: 20 }), h("b", {}, rate(rateOf(`pipeline:${each.name}`)))), "number"],
      ["Latency", (each) => (each.hops.total ? h("span", {}, ms(each.hops.total.p50_ms), " ", h("small", { class: "muted" }, `p95 ${ms(each.hops.total.p95_ms)}`)) : "–"), "number"],
      ["Lag", (each) => seconds(each.lag_seconds), "number"],
      ["Rows", (each) => count(each.rows), "number"],
      ["Dead letters", (each) => (each.dead_letters ? h("a", { class: "warned", href: `#/letters/${encodeURIComponent(each.name)}` }, icon("warn"), count(each.dead_letters)) : "0"), "number"],
      ["Last change", (each) => h("span", { title: time(each.last_change) }, ago(each.last_change)), "wide"],
      ["", (each) => pauseOrResume(each, { kind: "small" }), "end"],
    ];
    return panel("", { label: "Pipelines", cls: "flush" }, table("Pipelines", columns, all, { key: (each) => each.name, cls: "cards" }));
  },
};

// --- one pipeline ----------------------------------------------------------------------------

const TABS = [["overview", "Overview"], ["tables", "Tables"], ["letters", "Dead letters"], ["plan", "Plan"]];

let name = "";
let tab = "";
let batches = null;
let plan = null;
let timer = 0;

async function lookAtBatches() {
  if (store.connection !== "open" || document.hidden) return;
  const asked = name;
  const found = await call("Batches", { pipeline: asked, limit: 160 }).catch(() => null);
  if (asked === name && found) (batches = found.batches), update();
}

async function lookAtPlan() {
  const asked = name;
  plan = null;
  update();
  const found = await call("Explain", { pipeline: asked }).catch((error) => ({ error }));
  if (asked === name) (plan = found), update();
}

export const onePipeline = {
  title: () => name,
  enter(path) {
    const changed = path[0] !== name;
    name = path[0];
    tab = path[1] ?? "overview";
    if (changed) batches = null;
    clearInterval(timer);
    timer = setInterval(lookAtBatches, 1000);
    lookAtBatches();
    if (tab === "plan") lookAtPlan();
    if (tab === "letters") letterList.enter([name]);
  },
  leave: () => clearInterval(timer),
  keys: { p: () => document.querySelector("[data-action^='pause:']")?.click() },
  render() {
    const each = pipelineNamed(name);
    if (!each) return empty("pipeline", `There is no pipeline ${name}`, "It may have been removed, or the engine is still starting.", link("pipelines", "All pipelines", "button"));
    return [
      h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, link("pipelines", "Pipelines"), icon("right"), h("span", { "aria-current": "page" }, each.name)),
      h(
        "header",
        { class: "subject page" },
        h("h1", { tabindex: "-1" }, each.name),
        pill(each.state),
        h("p", { class: "muted" }, link("sources", each.source), " → ", each.target, each.started ? ` · started ${ago(each.started)}` : ""),
        h("div", { class: "tools" }, pauseOrResume(each, { kind: "primary" }), reload(each)),
      ),
      each.reason && !each.error && h("p", { class: "banner warn", role: "status" }, icon("warn"), each.reason),
      each.error && problem(each.error, { since: each.error_since }),
      each.notices.map((notice) => h("p", { class: "banner warn", role: "status" }, icon("warn"), h("span", {}, notice.message, ". ", notice.remedy))),
      Object.entries(each.left_out).map(([table, error]) => problem(error, { title: `Table ${table} is left out` })),
      tabs(`Parts of ${each.name}`, TABS.map(([id, title]) => [id, title, id === "letters" ? each.dead_letters : 0]), tab, (id) => `${to(each)}/${id}`),
      tabPanel(tab, { overview, tables, letters: () => letterList.render(), plan: planOf }[tab]?.(each) ?? overview(each)),
    ];
  },
};

const reload = (each) =>
  action("Copy again", {
    id: `reload:${each.name}`,
    name: "reload",
    run: async () => {
      const text = [`The tables of ${each.name} are copied from ${each.source} again. Readers see the present rows, kept up to date, until the new ones replace them.`];
      return (await confirmed({ title: `Copy the tables of ${each.name} again?`, text, does: "Copy again" })) ? call("Reload", { pipeline: each.name }) : undefined;
    },
    done: (answer) => `${counted(answer.tables.length, "table")} of ${each.name} will be copied again`,
  });

function overview(each) {
  const total = each.hops.total;
  return [
    tiles(
      tile("Changes/s", rate(rateOf(`pipeline:${each.name}`)), `${count(each.changes)} since the start`),
      tile("Latency, median", total ? ms(total.p50_ms) : "–", total ? `95 % within ${ms(total.p95_ms)}` : "no batch yet"),
      tile("Lag", seconds(each.lag_seconds), each.applying ? `a batch of ${count(each.applying.changes)} for ${seconds(each.applying.seconds)}` : "oldest change not applied"),
      tile("Rows", count(each.rows), counted(each.tables.length, "table")),
      tile("Dead letters", count(each.dead_letters), each.dead_letters ? link(`${to(each)}/letters`, `${counted(each.held_keys, "row")} held`) : "every row was applied", { look: each.dead_letters ? "warn" : "" }),
    ),
    panel("Batch times", { note: "From the commit at the source to the target, batch by batch" }, batches == null ? loading("batches") : batches.length ? batchChart(batches) : empty("clock", "No batch yet", "Batches appear here as changes are applied.")),
    h(
      "div",
      { class: "halves" },
      panel("Where the time goes", { note: "Median and 95th percentile of the last batches" }, hopBar(each.hops, { legend: false }), hopTable(each)),
      panel("Position", {}, facts([
        ["Applied up to", h("code", { title: each.position }, position(each.position))],
        ["Last change", each.last_change ? `${time(each.last_change)} (${ago(each.last_change)})` : "none yet"],
        ["Batches", `${count(each.batches)}, of which ${count(each.direct)} without a Spark job`],
        ["Released", each.releases ? counted(each.releases, "time") : "never"],
        ["Counted since", time(each.counted_since)],
      ]), counts(each.counts)),
    ),
  ];
}

function hopTable(each) {
  const rows = [["captured", "read", "commit → engine"], ["flushed", "log", "engine → change log"], ["job", "compute", "filters, transforms"], ["applied", "apply", "written to the target"], ["total", "in all", "commit → readers"]];
  return table("Latency by hop", [["Hop", ([id, label]) => h("span", { class: "hopname" }, id !== "total" && h("i", { class: id, "aria-hidden": "true" }), label)], ["What", (row) => h("span", { class: "muted" }, row[2]), "wide"], ["Median", ([id]) => ms(each.hops[id]?.p50_ms), "number"], ["p95", ([id]) => ms(each.hops[id]?.p95_ms), "number"]], rows, { key: ([id]) => id, cls: "bare", row: ([id]) => ({ class: id === "total" ? "sum" : null }) });
}

const counts = (of) =>
  h("ul", { class: "counts" }, [["inserts", of.inserts], ["updates", of.updates], ["deletes", of.deletes], ["copied rows", of.baseline_rows], ["failed attempts", of.errors]].map(([label, number]) => h("li", {}, h("b", {}, count(number)), ` ${label}`)));

function tables(each) {
  const columns = [
    ["Table", (table) => [each.target === "indexed-memory" ? link(`tables/${encodeURIComponent(each.name)}/${encodeURIComponent(table.table)}`, table.table, "strong") : table.table, table.reason && h("small", { class: "reason" }, table.reason)]],
    ["State", (table) => pill(table.state)],
    ["Rows", (table) => count(table.rows), "number"],
    ["Inserts", (table) => count(table.counts.inserts), "number"],
    ["Updates", (table) => count(table.counts.updates), "number"],
    ["Deletes", (table) => count(table.counts.deletes), "number"],
    ["Position", (table) => h("code", { title: table.position }, position(table.position))],
    ["Last change", (table) => ago(table.last_change)],
    ["Copy", (table) => (table.copy ? `${count(table.copy.rows)} rows, ${rate(table.copy.rows_per_s)}/s` : h("span", { class: "muted" }, `baseline ${table.baseline}`))],
  ];
  return panel("", { label: "Tables", cls: "flush" }, table(`Tables of ${each.name}`, columns, each.tables, { key: (table) => table.table, cls: "cards" }));
}

function planOf(each) {
  if (!plan) return loading("the plan");
  if (plan.error) return problem(plan.error, { title: "There is no plan to show", again: lookAtPlan });
  return [
    tiles(tile("Computed", plan.way === "direct" ? "directly" : "by a Spark job", plan.jobs_only ? "always" : "small batches directly, without a job"), tile("Last job", ms(plan.last_job_ms), `${counted(plan.jobs, "job")}, ${counted(plan.tasks, "task")}`), tile("Rows in", count(plan.rows_in), `${count(plan.rows_out)} out`)),
    panel("Plan", { note: `How the last batch of ${each.name} was computed`, tools: h("button", { class: "button small", type: "button", onclick: lookAtPlan }, icon("reload"), "Look again") }, h("pre", { class: "plan", tabindex: "0", "aria-label": "Plan" }, plan.plan || "The plan is there after the first batch.")),
  ];
}
