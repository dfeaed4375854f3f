/*
 * Sources: their states with reasons, positions, lag, the log and what keeps it, and notices.
 */

import { sparkline } from "./charts.js";
import { h, update } from "./dom.js";
import { ago, bytes, count, counted, position, rate, seconds, time, words } from "./format.js";
import { icon } from "./icons.js";
import { call } from "./rpc.js";
import { history, pipelines, rateOf, sources, store } from "./store.js";
import { action, confirmed, empty, facts, link, panel, pill, problem, table } from "./ui.js";

const logs = new Map();

async function look() {
  for (const each of sources()) {
    try {
      logs.set(each.name, await call("Log", { source: each.name }));
    } catch {
      logs.delete(each.name);
    }
  }
  update();
}

let timer = 0;

export const sourceList = {
  title: "Sources",
  enter() {
    look();
    timer = setInterval(() => store.connection === "open" && look(), 5000);
  },
  leave: () => clearInterval(timer),
  render: () => (sources().length ? sources().map(one) : empty("source", "No source", "This engine records nothing.")),
};

function one(source) {
  const log = logs.get(source.name);
  const mine = pipelines().filter((each) => each.source === source.name);
  const live = rateOf(`source:${source.name}`);
  return panel("", { key: source.name, label: `Source ${source.name}`, cls: "source" },
    h(
      "header",
      { class: "subject" },
      icon("source"),
      h("h2", {}, source.name),
      pill(source.state),
      h("p", { class: "muted" }, `${source.kind} · ${words(source.phase)} since ${time(source.since)}`),
      h("div", { class: "tools" }, actions(source, mine)),
    ),
    source.reason && h("p", { class: "reason" }, source.reason),
    source.error && problem(source.error, { since: source.error_since }),
    h(
      "div",
      { class: "split" },
      h(
        "div",
        {},
        h("p", { class: "big" }, h("b", {}, rate(live)), h("span", { class: "muted" }, " changes/s")),
        sparkline(history(`source:${source.name}`), "rate", { label: `Changes per second of source ${source.name}, last minute`, height: 44, width: 240 }),
      ),
      facts([
        ["Lag", source.lag_seconds == null ? "not known" : `${seconds(source.lag_seconds)}${source.lag_changes == null ? "" : `, ${counted(source.lag_changes, "change")}`}`],
        ["Position", h("span", { title: source.end }, position(source.end))],
        ["Acknowledged", source.acknowledged && h("span", { title: source.acknowledged }, position(source.acknowledged))],
        ["Its own position", source.source_position && h("code", {}, source.source_position)],
        ["Order", words(source.ordering)],
      ]),
      facts([
        ["Log", `${bytes(source.log_bytes)}, ${counted(source.flushes, "flush").replace("flushs", "flushes")}`],
        ["Recorded", counted(source.captured, "change")],
        ["Newest commit", ago(source.newest)],
        ["Kept at the source", source.room && `${bytes(source.room.used)}${source.room.limit ? ` of ${bytes(source.room.limit)}` : ""}, for ${source.room.pinned_by}`],
        ["Recorder", `process ${source.recorder_pid ?? "–"}, ${counted(source.restarts, "restart")}`],
      ]),
    ),
    source.copies.length > 0 && table(`Copies of ${source.name}`, [["Copy of", (each) => each.table], ["Rows", (each) => `${count(each.rows)}${each.expected ? ` of about ${count(each.expected)}` : ""}`, "number"], ["Rows per second", (each) => rate(each.rows_per_s), "number"], ["Left", (each) => each.waits || seconds(each.left_seconds)]], source.copies, { key: (each) => each.table }),
    log?.pins.length > 0 &&
      h("details", {}, h("summary", {}, `What keeps the log (${log.pins.length})`), table(`What keeps the log of ${source.name}`, [["Kept for", (each) => words(each.kind)], ["Whose", (each) => each.whose], ["From", (each) => h("code", { title: each.position }, position(each.position))]], log.pins)),
    Object.entries(source.left_out).map(([name, error]) => problem(error, { title: `Table ${name} is left out` })),
    source.notices.length > 0 && h("details", { open: true }, h("summary", {}, counted(source.notices.length, "notice")), h("ul", { class: "notices" }, source.notices.toReversed().map((each) => h("li", { key: each.number }, h("time", {}, time(each.time)), " ", each.message, h("span", { class: "muted" }, ` ${each.remedy ?? ""}`))))),
    mine.length > 0 && h("p", { class: "muted" }, "Read by ", mine.map((each, at) => [at ? ", " : "", link(`pipelines/${encodeURIComponent(each.name)}`, each.name)])),
  );
}

function actions(source, mine) {
  const of = { source: source.name };
  const held = mine.length > 0 && mine.every((each) => each.state === "paused");
  return [
    mine.length > 0 &&
      action(held ? "Resume pipelines" : "Pause pipelines", {
        id: `pause-source:${source.name}`,
        name: held ? "play" : "pause",
        run: () => call(held ? "Resume" : "Pause", of),
        done: `The pipelines of ${source.name} are ${held ? "resumed" : "paused; it is still recorded"}`,
      }),
    source.state === "failed" && action("Resume source", { id: `resume:${source.name}`, name: "play", kind: "primary", run: () => call("Resume", of), done: `${source.name} is read again` }),
    action("Copy all tables again", {
      id: `reload:${source.name}`,
      name: "reload",
      run: async () => {
        const text = [`Every table of ${source.name} is copied from the source again. Readers see the present rows, kept up to date, until the new ones replace them.`];
        return (await confirmed({ title: "Copy all tables again?", text, does: "Copy again" })) ? call("Reload", of) : undefined;
      },
      done: `The tables of ${source.name} are being copied`,
    }),
    action("Reset…", {
      id: `reset:${source.name}`,
      role: "admin",
      name: "trash",
      kind: "quiet-danger",
      run: async () => {
        const plan = await call("Reset", { ...of, dry_run: true });
        const text = [`What is recorded of ${source.name} is given up: ${counted(plan.tables.length, "table")} (${plan.tables.join(", ")}) are copied again for ${counted(plan.pipelines.length, "pipeline")}.`, "Changes in the log that were not applied are not applied; the new copy has their result."];
        return (await confirmed({ title: `Reset ${source.name}?`, text, typed: source.name, danger: true, does: "Reset the source" })) ? call("Reset", of) : undefined;
      },
      done: `${source.name} is being reset`,
    }),
  ];
}
