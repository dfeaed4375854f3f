/*
 * The table browser: rows by key, by lookup, by index, or all; and their changes as they come.
 */

import { h, update } from "./dom.js";
import { count, counted, position, time, value } from "./format.js";
import { icon } from "./icons.js";
import { call, follow } from "./rpc.js";
import { pipelines, store } from "./store.js";
import { empty, loading, panel, pill, problem } from "./ui.js";

const LIST = "/headrace.v1.QueryService/ListRows";
const LOADED = 500;
const MOST = 2000;
const PAGE = 50;
const SHOWN = 40;

let pipeline = "";
let name = "";
let known = null;
let trouble = null;
let rows = null;
/** Asks for the rows after those that are loaded; empty when there are none. */
let token = "";
let total = 0;
let where = null;
let by = "all";
let given = [];
let filter = "";
let sort = { column: "", down: false };
let page = 0;
let live = true;
let link_ = "connecting";
let changes = [];
let number = 0;
let ending = new AbortController();
let sweep = 0;

const readable = () => pipelines().filter((each) => each.target === "indexed-memory" || each.target.includes("fan"));
const table = () => known?.tables.find((each) => each.table === name) ?? known?.tables[0];
const keyOf = (row) => JSON.stringify(table().key.map((each) => row[each]));
const byKey = (given) => new Map(given.map((row) => [keyOf(row), row]));

export const browser = {
  title: "Tables",
  enter(path) {
    const wanted = path[0] ?? "";
    if (wanted === pipeline && (path[1] ?? "") === name && known) return follow_();
    [pipeline, name, known, rows, trouble, changes] = [wanted, path[1] ?? "", null, null, null, []];
    [by, given, filter, sort, page] = ["all", [], "", { column: "", down: false }, 0];
    ending.abort();
    if (pipeline) open();
  },
  leave: () => ending.abort(),
  tools: () => known && store.status && h("button", { class: "button", type: "button", onclick: toggle }, icon(live ? "pause" : "play"), live ? "Stop following" : "Follow changes"),
  render() {
    if (!pipeline) return choice();
    return [picker(), trouble ? problem(trouble, { again: open }) : !known ? loading("the table") : !known.readable ? empty("table", "These rows are not here", `The target of ${pipeline} stores them elsewhere; read them there.`) : !table() ? empty("table", "No table yet", "The pipeline has not opened its target yet.") : h("div", { class: "browser" }, found(), feed())];
  },
};

function choice() {
  const all = pipelines();
  if (!all.length) return empty("table", "No table", "This engine has no pipeline yet.");
  return panel("Choose a table", { note: "Rows of tables in memory can be read here, and their changes followed" },
    h("ul", { class: "choice" }, all.flatMap((each) => each.tables.map((of) => {
      const inside = [icon("table"), h("b", {}, of.table), h("span", { class: "muted" }, `${each.name} → ${each.target}`), h("span", { class: "number" }, counted(of.rows, "row"))];
      return h("li", { key: `${each.name}/${of.table}` }, readable().includes(each) ? h("a", { href: `#/tables/${encodeURIComponent(each.name)}/${encodeURIComponent(of.table)}` }, inside) : h("div", { class: "off" }, inside));
    }))));
}

async function open() {
  trouble = null;
  const asked = pipeline;
  try {
    const answer = await call("Tables", { pipeline });
    if (asked !== pipeline) return;
    known = answer;
    if (table()) name = table().table;
    if (known.readable && table()) live ? follow_() : await ask();
  } catch (error) {
    trouble = error;
  }
  update();
}

/** Read the rows that were asked for. */
async function ask() {
  const of = { pipeline, table: name };
  trouble = null;
  try {
    if (by === "all") {
      token = "";
      const loaded = await list();
      rows = byKey(loaded);
    } else {
      const values = fieldsOf().map((each, at) => (given[at] === "" || given[at] === undefined ? null : given[at]));
      const how = by === "key" ? { key: values } : by === "lookup" ? { lookup: values } : { index: by, values, limit: MOST };
      const answer = await call("Query", { ...of, ...how });
      [rows, where] = [byKey(answer.rows), answer.position];
    }
  } catch (error) {
    trouble = error;
  }
  page = 0;
  update();
}

/** Read the next rows. The order is the table's own, and the same for every page. */
async function list() {
  const answer = await call(LIST, { pipeline, table: name, pageSize: LOADED, pageToken: token, form: "ROW_FORM_JSON" });
  [token, total, where] = [answer.nextPageToken, Number(answer.totalCount), answer.position];
  const text = new TextDecoder().decode(Uint8Array.from(atob(answer.json), (each) => each.charCodeAt(0)));
  return text ? JSON.parse(text) : [];
}

async function next(last) {
  try {
    if (page === last && token) for (const [key, row] of byKey(await list())) rows.set(key, row);
    page += 1;
  } catch (error) {
    trouble = error;
  }
  update();
}

const fieldsOf = () => ({ all: [], key: table().key, lookup: table().lookup })[by] ?? table().indexes[by];

function picker() {
  const pick = (event) => (location.hash = `#/tables/${event.target.value}`);
  const options = readable().flatMap((each) => each.tables.map((of) => [`${encodeURIComponent(each.name)}/${encodeURIComponent(of.table)}`, `${each.name} / ${of.table}`]));
  const now = `${encodeURIComponent(pipeline)}/${encodeURIComponent(name)}`;
  const of = known?.readable && table();
  const choose = (event) => ((by = event.target.value), (given = []), by === "all" ? ask() : update());
  const submit = (event) => (event.preventDefault(), ask());
  return h(
    "form",
    { class: "toolbar", onsubmit: submit },
    h("label", { class: "inline" }, "Table", h("select", { "aria-label": "Table", onchange: pick, value: now }, options.map(([id, text]) => h("option", { key: id, value: id, selected: id === now }, text)))),
    of && h("label", { class: "inline" }, "Rows", h("select", { name: "by", "aria-label": "Rows", onchange: choose, value: by }, h("option", { value: "all" }, "all"), of.key.length > 0 && h("option", { value: "key" }, "by key"), of.lookup.length > 0 && h("option", { value: "lookup" }, "by lookup"), Object.keys(of.indexes).map((each) => h("option", { key: each, value: each }, `by index ${each}`)))),
    of && fieldsOf().map((each, at) => h("label", { class: "inline", key: each }, each, h("input", { name: each, value: given[at] ?? "", required: true, spellcheck: "false", autocomplete: "off", oninput: (event) => (given[at] = event.target.value) }))),
    of && by !== "all" && h("button", { class: "button primary", type: "submit" }, icon("key"), "Find"),
    of && by === "all" && h("label", { class: "inline search" }, icon("search"), h("input", { type: "search", "aria-label": "Filter these rows", placeholder: "Filter rows  /", value: filter, oninput: (event) => ((filter = event.target.value), (page = 0), update()) })),
  );
}

function found() {
  if (!rows) return loading("rows");
  const of = table();
  const shown = ordered();
  const last = Math.max(0, Math.ceil(shown.length / PAGE) - 1);
  page = Math.min(page, last);
  const numeric = (type) => /^(u?int|float|decimal|numeric)/.test(type);
  const more = by === "all" && token;
  return h(
    "section",
    { class: "panel flush rows", "aria-label": `Rows of ${name}` },
    rows.size === 0
      ? empty("search", "No row", by === "all" ? "The table is empty." : "No row has this value now.")
      : h(
          "div",
          { class: "scrolls tall", role: "region", tabindex: "0", "aria-label": `Rows of ${name}, table` },
          h(
            "table",
            { class: "data" },
            h("thead", {}, h("tr", {}, of.columns.map((each) => h("th", { key: each.name, scope: "col", class: numeric(each.type) ? "number" : "", "aria-sort": sort.column === each.name ? (sort.down ? "descending" : "ascending") : null }, h("button", { type: "button", onclick: () => turn(each.name), title: `Sort by ${each.name}` }, of.key.includes(each.name) && icon("key", { label: "key" }), each.name, sort.column === each.name && h("span", { "aria-hidden": "true" }, sort.down ? " ↓" : " ↑")), h("small", {}, each.type))))),
            h("tbody", {}, shown.slice(page * PAGE, (page + 1) * PAGE).map((row) => h("tr", { key: keyOf(row), class: fresh(row) }, of.columns.map((each) => h("td", { class: numeric(each.type) ? "number" : "" }, h("span", { class: row[each.name] === null ? "null" : null }, value(row[each.name]))))))),
          ),
        ),
    h(
      "footer",
      {},
      h("p", { class: "muted", role: "status" }, more ? `${count(rows.size)} of ${count(total)} rows loaded${filter || sort.column ? `; ${filter ? `${count(shown.length)} match` : "sorted"} among these` : ""}` : `${counted(shown.length, "row")}${filter ? ` of ${count(rows.size)}` : ""}`, where && h("span", { title: where }, ` · as of ${position(where)}`)),
      (last > 0 || more) && h("nav", { class: "pages", "aria-label": "Pages of rows" }, h("button", { class: "button small", type: "button", disabled: page === 0, onclick: () => ((page -= 1), update()) }, icon("left"), "Before"), h("span", {}, `${page + 1} / ${more ? Math.ceil(total / PAGE) : last + 1}`), h("button", { class: "button small", type: "button", disabled: page === last && !more, onclick: () => next(last) }, "Next", icon("right"))),
    ),
  );
}

function ordered() {
  const text = filter.toLowerCase();
  const shown = [...rows.values()].filter((row) => !text || Object.values(row).some((each) => value(each).toLowerCase().includes(text)));
  if (!sort.column) return shown;
  const compare = new Intl.Collator(undefined, { numeric: true }).compare;
  const sign = sort.down ? -1 : 1;
  return shown.toSorted((a, b) => sign * compare(value(a[sort.column]), value(b[sort.column])));
}

function turn(column) {
  sort = sort.column !== column ? { column, down: false } : sort.down ? { column: "", down: false } : { column, down: true };
  update();
}

const touched = new Map();
const fresh = (row) => (Date.now() - (touched.get(keyOf(row)) ?? 0) < 1600 ? "fresh" : null);

// --- changes as they come --------------------------------------------------------------------

function toggle() {
  live = !live;
  if (live) follow_();
  else ending.abort(), update();
}

function follow_() {
  ending.abort();
  if (!live) return;
  ending = new AbortController();
  link_ = "connecting";
  const state = (now, error) => ((link_ = now), now === "refused" && (trouble = error), now === "broken" && !rows && ask(), update());
  follow("Watch", () => ({ pipeline, table: name }), ending.signal, { message: take, state });
}

function take(each) {
  if (each.columns) {
    // The rows are read once their changes are followed, each time: nothing falls in between.
    if (table()) table().columns = each.columns;
    ask();
  }
  if (!each.op) return;
  changes.unshift({ ...each, number: ++number, at: Date.now() / 1000 });
  changes.length = Math.min(changes.length, SHOWN);
  const row = each.after;
  const id = JSON.stringify(each.key);
  touched.set(id, Date.now());
  sweep ||= setTimeout(fade, 1700);
  if (rows && each.op === "truncate") rows.clear();
  else if (rows && !row) rows.delete(id);
  else if (rows && (rows.has(id) || (by === "all" && !token))) rows.set(id, row);
  where = each.position;
  update();
}

/** Forget which rows were marked a while ago. */
function fade() {
  const now = Date.now();
  for (const [id, at] of touched) if (now - at > 1600) touched.delete(id);
  sweep = touched.size ? setTimeout(fade, 500) : 0;
  update();
}

function feed() {
  const look = !live ? ["paused", { text: "not followed" }] : link_ === "open" ? ["live", {}] : link_ === "refused" ? ["failed", {}] : link_ === "broken" ? ["reconnecting", {}] : ["live", { text: "listening" }];
  return panel("Changes", { cls: "feed", tools: pill(...look) },
    changes.length === 0 ? h("p", { class: "muted" }, live ? "Changes of this table appear here as they are applied." : "Paused: changes are not followed.") : h("ol", {}, changes.map((each) => h("li", { key: each.number, class: each.op }, h("p", {}, h("time", {}, time(each.at, { millis: true })), h("b", { class: "op" }, each.op), h("code", {}, each.key.map(value).join(", "))), difference(each)))));
}

function difference({ before, after }) {
  if (!before || !after) return null;
  const names = Object.keys(after).filter((each) => JSON.stringify(before[each]) !== JSON.stringify(after[each]));
  return h("ul", {}, names.map((each) => h("li", { key: each }, h("span", { class: "muted" }, each), " ", h("del", {}, value(before[each])), " → ", h("ins", {}, value(after[each])))));
}

