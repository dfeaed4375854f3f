/*
 * Parts that several views have: states, tiles, tables, tabs, notices, and what asks the user.
 */

import { h, patch, update } from "./dom.js";
import { ago, words } from "./format.js";
import { icon } from "./icons.js";
import { call, RpcError } from "./rpc.js";
import { pollNow, refusedFor, store } from "./store.js";

// --- states ----------------------------------------------------------------------------------

const LOOKS = {
  ok: ["streaming", "complete", "watching", "connected", "live", "ready", "running", "applied"],
  busy: ["connecting", "reloading", "loading", "catching_up", "resetting", "starting", "opening"],
  warn: ["waiting", "not_ready", "silent", "reconnecting", "behind", "stopping"],
  bad: ["failed", "full", "error"],
  idle: ["paused", "stopped", "closed", "superseded"],
};
const ICONS = { ok: "check", busy: "busy", warn: "warn", bad: "bad", idle: "stop" };

/** How a state looks: ok, busy, warn, bad or idle. */
export function lookOf(state) {
  return Object.keys(LOOKS).find((look) => LOOKS[look].includes(state)) ?? "idle";
}

/** A state: an icon and a word; the color only repeats them. */
export function pill(state, { look = lookOf(state), text = words(state) } = {}) {
  const name = state === "paused" ? "pause" : ICONS[look];
  return h("span", { class: `pill ${look}` }, icon(name), h("span", {}, text));
}

// --- parts of a page -------------------------------------------------------------------------

export const link = (to, text, cls = "") => h("a", { href: `#/${to}`, class: cls || null }, text);

export const panel = (title, props, ...children) =>
  h(
    "section",
    { key: props.key, class: `panel ${props.cls ?? ""}`, "aria-label": props.label ?? title },
    title && h("header", {}, h("h2", {}, title), props.note && h("p", {}, props.note), h("div", { class: "tools" }, props.tools)),
    children,
  );

export const tile = (label, value, more, { look = "", unit = "" } = {}) =>
  h(
    "div",
    { class: `tile ${look}` },
    h("dt", {}, label),
    h("dd", {}, h("b", {}, value), unit && h("span", { class: "unit" }, unit), more && h("small", {}, more)),
  );

export const tiles = (...children) => h("dl", { class: "tiles" }, children);

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value ?? "–")]));

/** A table; each column is [title, cell of a row, class]. On a narrow page, rows become cards. */
export function table(label, columns, rows, { key, cls = "", row = () => ({}) } = {}) {
  return h(
    "div",
    { class: `scrolls ${cls}`, role: "region", "aria-label": label, tabindex: "0" },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, columns.map(([title, , kind = ""]) => h("th", { scope: "col", class: kind }, title)))),
      h(
        "tbody",
        {},
        rows.map((each) =>
          h(
            "tr",
            { key: key?.(each), ...row(each) },
            columns.map(([title, cell, kind = ""]) =>
              h("td", { class: kind, "data-label": typeof title === "string" ? title : "" }, cell(each)),
            ),
          ),
        ),
      ),
    ),
  );
}

export const empty = (name, title, text, ...more) =>
  h("div", { class: "empty" }, icon(name), h("h2", {}, title), h("p", {}, text), more);

export const loading = (what) =>
  h("div", { class: "loading", role: "status" }, h("span", { class: "bars", "aria-hidden": "true" }, h("i"), h("i"), h("i")), `Loading ${what}…`);

/** An error with what to do about it; also for those in a status. */
export function problem(error, { title = "", since = null, again = null } = {}) {
  return h(
    "div",
    { class: "problem", role: "alert" },
    icon("bad"),
    h(
      "div",
      {},
      h("h3", {}, title || error.message, since && h("small", {}, ` · ${ago(since)}`)),
      title && h("p", {}, error.message),
      factsLine(error.facts),
      error.remedy && h("p", { class: "remedy" }, h("b", {}, "What to do: "), error.remedy),
      error.code && h("code", {}, error.code),
      again && h("p", {}, h("button", { class: "button", type: "button", onclick: again }, icon("reload"), "Try again")),
    ),
  );
}

function factsLine(given) {
  const known = Object.entries(given ?? {}).filter(([, value]) => value !== null && typeof value !== "object");
  return known.length > 0 && h("p", { class: "muted" }, known.map(([name, value]) => `${words(name)} ${value}`).join(" · "));
}

// --- tabs ------------------------------------------------------------------------------------

/** Tabs that are links, with arrow keys between them; `tabs` is [[id, title, count]]. */
export function tabs(label, tabs, chosen, to) {
  const turn = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tabs.length, End: tabs.length }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex(([id]) => id === chosen);
    const next = Math.abs(step) === 1 ? (at + step + tabs.length) % tabs.length : step < 0 ? 0 : tabs.length - 1;
    location.hash = `#/${to(tabs[next][0])}`;
    const list = event.currentTarget;
    setTimeout(() => list.children[next].focus());
  };
  return h(
    "div",
    { class: "tabs", role: "tablist", "aria-label": label, onkeydown: turn },
    tabs.map(([id, title, number]) =>
      h(
        "a",
        {
          key: id,
          role: "tab",
          id: `tab-${id}`,
          href: `#/${to(id)}`,
          "aria-selected": String(id === chosen),
          "aria-controls": id === chosen ? "tab-panel" : null,
          tabindex: id === chosen ? "0" : "-1",
        },
        title,
        number ? h("span", { class: "badge" }, number) : null,
      ),
    ),
  );
}

export const tabPanel = (chosen, ...children) =>
  h("div", { id: "tab-panel", role: "tabpanel", "aria-labelledby": `tab-${chosen}`, class: "stack" }, children);

// --- what is said, and what is asked ---------------------------------------------------------

const said = [];
let number = 0;

/** Say something in a corner, for a few seconds; an error stays until it is closed. */
export function say(text, { look = "ok", detail = "" } = {}) {
  const note = { id: ++number, text, look, detail };
  said.push(note);
  if (said.length > 4) said.shift();
  if (look !== "bad") setTimeout(() => unsay(note), 6000);
  update();
}

function unsay(note) {
  const at = said.indexOf(note);
  if (at >= 0) said.splice(at, 1);
  update();
}

export const toasts = () =>
  h(
    "div",
    { class: "toasts", role: "status", "aria-live": "polite" },
    said.map((note) =>
      h(
        "div",
        { key: note.id, class: `toast ${note.look}` },
        icon(ICONS[note.look]),
        h("div", {}, h("p", {}, note.text), note.detail && h("p", { class: "muted" }, note.detail)),
        h("button", { class: "plain", type: "button", "aria-label": "Close this notice", onclick: () => unsay(note) }, icon("close")),
      ),
    ),
  );

export const sayError = (error) => say(error.message, { look: "bad", detail: error.remedy });

/**
 * Ask before something is done; resolves to whether to do it.
 *
 * With `typed`, the user must type that name first: for what destroys.
 */
export function confirmed({ title, text, does, typed = "", danger = false, body = null }) {
  const node = document.querySelector("dialog#question");
  const before = document.activeElement;
  return new Promise((resolve) => {
    let entered = "";
    const draw = () =>
      patch(
        node,
        h(
          "form",
          { method: "dialog", onsubmit: submit },
          h("h2", { id: "question-title" }, title),
          text.map((line) => h("p", {}, line)),
          body,
          typed &&
            h(
              "label",
              { class: "field" },
              h("span", {}, "Type ", h("code", {}, typed), " to confirm"),
              h("input", { name: "typed", autocomplete: "off", spellcheck: "false", value: entered, oninput: (event) => ((entered = event.target.value), draw()) }),
            ),
          h(
            "footer",
            {},
            h("button", { class: "button", type: "button", value: "cancel", onclick: () => node.close("cancel") }, "Cancel"),
            h("button", { class: `button ${danger ? "danger" : "primary"}`, type: "submit", disabled: typed !== entered }, does),
          ),
        ),
      );
    const submit = (event) => {
      event.preventDefault();
      if (typed === entered) node.close("yes");
    };
    node.onclose = () => {
      patch(node);
      before?.focus?.();
      resolve(node.returnValue === "yes");
    };
    node.returnValue = "";
    draw();
    node.showModal();
    (node.querySelector("input") ?? node.querySelector(danger ? "[value=cancel]" : "[type=submit]")).focus();
  });
}

const running = new Set();

/** A button that needs a role; without it, it says so instead. `run` may take a while. */
export function action(label, { id, role = "operate", name, kind = "", run, done }) {
  const refused = refusedFor(role);
  const busy = running.has(id);
  const away = store.connection !== "open";
  const why = refused || (away ? "The engine does not answer." : "");
  const click = async () => {
    if (why) return say(why, { look: "warn" });
    if (busy) return;
    await act(id, run, done);
  };
  return h(
    "button",
    {
      class: `button ${kind}`,
      type: "button",
      "data-action": id,
      "aria-disabled": why || busy ? "true" : null,
      "aria-busy": busy ? "true" : null,
      title: why || null,
      "aria-description": why || null,
      onclick: click,
    },
    icon(refused ? "lock" : name),
    h("span", {}, label),
  );
}

/** Run an action: say what came of it, and show what it changed. */
export async function act(id, run, done) {
  running.add(id);
  update();
  try {
    const answer = await run();
    if (answer !== undefined && done) say(typeof done === "function" ? done(answer) : done);
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    sayError(error);
  } finally {
    running.delete(id);
    pollNow();
    update();
  }
}

/** Pause or resume a pipeline. */
export function pauseOrResume(pipeline, { kind = "" } = {}) {
  const stopped = ["paused", "failed", "stopped"].includes(pipeline.state);
  const [label, verb, name] = stopped ? ["Resume", "Resume", "play"] : ["Pause", "Pause", "pause"];
  return action(label, {
    id: `pause:${pipeline.name}`,
    kind,
    name,
    run: () => call(verb, { pipeline: pipeline.name }),
    done: `${pipeline.name} ${stopped ? "resumed" : "is paused; nothing is lost meanwhile"}`,
  });
}
