/*
 * Events, as they happen: of sources, pipelines and policies.
 */

import { h, update } from "./dom.js";
import { count, counted, ms, position, time, words } from "./format.js";
import { icon } from "./icons.js";
import { follow } from "./rpc.js";
import { empty, loading, pill } from "./ui.js";

const MOST = 500;
/** What happens with every batch, many times a second: shown on request. */
const FREQUENT = new Set(["changes_received", "changes_applied", "lag_updated", "ack_advanced", "baseline_rows_loaded"]);
const LOOKS = {
  bad: ["attempt_failed", "source_disconnected", "events_dropped"],
  warn: ["dead_letters_written", "policy_triggered", "rebaseline_triggered", "table_altered"],
  ok: ["source_connected", "baseline_completed", "changes_applied"],
};

let found = [];
let newest = 0;
let open = false;
let trouble = "";
let all = false;
let filter = "";
let ending = new AbortController();

export const events = {
  title: "Events",
  /** Follow from the start, whatever view is shown: the engine remembers none before. */
  begin({ anew = false } = {}) {
    if (anew) newest = 0;
    ending.abort();
    ending = new AbortController();
    follow("Events", () => ({ after: newest }), ending.signal, {
      message: take,
      state: (now, error) => ((open = now === "open"), (trouble = error?.message ?? ""), update()),
    });
  },
  tools: () => pill(open ? "live" : "reconnecting"),
  render() {
    const text = filter.toLowerCase();
    const shown = found.filter((each) => (all || !FREQUENT.has(each.event)) && (!text || each.text.includes(text)));
    return [
      h(
        "div",
        { class: "toolbar" },
        h("label", { class: "inline search" }, icon("search"), h("input", { type: "search", "aria-label": "Filter events", placeholder: "Filter events  /", value: filter, oninput: (event) => ((filter = event.target.value), update()) })),
        h("label", { class: "inline" }, h("input", { type: "checkbox", checked: all, onchange: (event) => ((all = event.target.checked), update()) }), "Every batch"),
        h("p", { class: "muted" }, `${count(shown.length)} of the last ${count(found.length)}`),
        found.length > 0 && h("div", { class: "tools" }, h("button", { class: "button small", type: "button", onclick: () => ((found = []), update()) }, "Clear")),
      ),
      !open && !found.length && !trouble
        ? loading("events")
        : shown.length
          ? h("ol", { class: "panel events", "aria-label": "Events, the newest first" }, shown.slice(0, 200).map(one))
          : empty("event", "Nothing has happened yet", trouble || (all ? "Events appear here as they happen." : "States, errors, copies and dead letters appear here. To see every batch, too, tick the box above.")),
    ];
  },
};

function take(each) {
  if (each.newest !== undefined && each.newest < newest) newest = 0;
  if (each.skipped) found.unshift({ event: "events_dropped", count: each.skipped, number: `skipped${each.skipped}${newest}`, text: "" });
  if (!each.number) return;
  newest = each.number;
  found.unshift({ ...each, text: JSON.stringify(each).toLowerCase() });
  // The frequent ones must not push the others out.
  const same = found.filter((other) => FREQUENT.has(other.event) === FREQUENT.has(each.event));
  if (same.length > MOST) found.splice(found.indexOf(same.at(-1)), 1);
}

function one(each) {
  const look = stateLook(each) ?? Object.keys(LOOKS).find((name) => LOOKS[name].includes(each.event)) ?? "idle";
  const subject = each.pipeline ?? each.source ?? "";
  const view = each.pipeline ? `#/pipelines/${encodeURIComponent(each.pipeline)}` : each.source ? "#/sources" : null;
  return h(
    "li",
    { key: each.number },
    h("time", {}, time(each.at, { millis: true })),
    h("span", { class: `dot ${look}` }, icon({ bad: "bad", warn: "warn", ok: "check" }[look] ?? "event")),
    h("span", { class: "what" }, h("b", {}, words(each.event)), " ", view && h("a", { href: view }, subject)),
    h("span", { class: "muted text" }, sentence(each)),
  );
}

const stateLook = ({ event, new: now }) => (event.endsWith("state_changed") ? { failed: "bad", error: "bad", live: "ok", streaming: "ok" }[now] ?? "idle" : null);

function sentence(each) {
  const parts = [];
  if (each.new) parts.push(each.old ? `${words(each.old)} → ${words(each.new)}` : words(String(each.new)));
  if (each.table) parts.push(each.table);
  for (const name of ["inserts", "updates", "deletes", "truncates", "rows"]) if (each[name]) parts.push(`${count(each[name])} ${name}`);
  if (each.count) parts.push(counted(each.count, each.event === "dead_letters_written" ? "dead letter" : "event"));
  if (each.error) parts.push(`${each.error.message}${each.attempt ? ` (attempt ${each.attempt})` : ""}`);
  if (each.reason) parts.push(each.reason);
  if (each.policy) parts.push(`policy ${each.policy}`);
  if (typeof each.seconds === "number") parts.push(ms(each.seconds * 1000));
  if (each.position) parts.push(`at ${position(each.position)}`);
  return parts.join(" · ");
}
