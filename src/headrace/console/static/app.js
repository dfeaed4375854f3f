/*
 * The frame: routes, navigation, sign-in, banners, themes, shortcuts.
 *
 * Routes are in the fragment of the address, `#/pipelines/orders/plan`, so that the server has
 * one page. A view has `title`, `render`, and, if it needs them, `enter`, `leave` and `keys`.
 */

import { configuration } from "./configuration.js";
import { drawnBy, h, patch, update } from "./dom.js";
import { events } from "./events.js";
import { flow, wires } from "./flow.js";
import { seconds } from "./format.js";
import { icon } from "./icons.js";
import { letterList } from "./letters.js";
import { onePipeline, pipelineList } from "./pipelines.js";
import { RpcError, signIn, signOut } from "./rpc.js";
import { sourceList } from "./sources.js";
import { pipelines, poll, pollNow, store } from "./store.js";
import { browser } from "./tables.js";
import { empty, loading, pill, toasts } from "./ui.js";

const NAVIGATION = [
  ["flow", "Flow", "flow", "f"],
  ["pipelines", "Pipelines", "pipeline", "p"],
  ["sources", "Sources", "source", "s"],
  ["tables", "Tables", "table", "t"],
  ["letters", "Dead letters", "letter", "d"],
  ["events", "Events", "event", "e"],
  ["configuration", "Configuration", "config", "c"],
];
const VIEWS = { flow, pipelines: pipelineList, sources: sourceList, tables: browser, letters: letterList, events, configuration };

let view = null;
let at = "";
let engine = 0;
let place = [];

function route() {
  place = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent).filter(Boolean);
  if (!VIEWS[place[0]]) place = ["flow"];
  const wanted = place[0] === "pipelines" && place[1] ? onePipeline : VIEWS[place[0]];
  const elsewhere = `${place[0]}/${place[1] ?? ""}`;
  const moved = elsewhere !== at;
  if (wanted !== view) view?.leave?.();
  view = wanted;
  view.enter?.(place.slice(1));
  if (moved && at) {
    scrollTo(0, 0);
    // A reader of the screen, and the tab key, go on at the new view.
    requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("main h1")?.focus({ preventScroll: true })));
  }
  at = elsewhere;
  requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector("nav [aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" })));
  update();
}

// --- the frame -------------------------------------------------------------------------------

function draw() {
  const root = document.querySelector("#app");
  if (store.connection === "signed-out") {
    patch(root, signInPage());
    document.title = "Sign in · Headrace";
    return;
  }
  if (store.status && store.status.pid !== engine) {
    // Another engine counts its events from 1.
    if (engine) events.begin({ anew: true });
    engine = store.status.pid;
  }
  const title = typeof view.title === "function" ? view.title() : view.title;
  patch(
    root,
    h("a", { class: "skip", href: "#main", onclick: skip }, "Skip to the content"),
    sidebar(),
    h(
      "div",
      { class: "content" },
      banner(),
      h(
        "main",
        { id: "main", tabindex: "-1", class: store.connection === "away" ? "stale" : null, "data-view": place[0] },
        view === onePipeline ? null : h("header", { class: "top" }, h("h1", { tabindex: "-1" }, title), h("div", { class: "tools" }, view.tools?.())),
        store.status || place[0] === "configuration" ? h("div", { class: "stack", key: at }, view.render()) : store.connection === "away" ? empty("bad", "The engine does not answer", store.trouble) : loading("the status"),
      ),
    ),
    toasts(),
  );
  document.title = `${title} · ${store.status?.service || "Headrace"}`;
  wires();
}

function skip(event) {
  event.preventDefault();
  document.querySelector("#main").focus();
}

function sidebar() {
  const letters = pipelines().reduce((sum, each) => sum + each.dead_letters, 0);
  const troubled = pipelines().filter((each) => each.state === "failed").length;
  const badges = { letters, pipelines: troubled };
  return h(
    "aside",
    { class: "sidebar" },
    h("a", { class: "brand", href: "#/flow" }, mark(), h("span", {}, "Headrace"), store.status?.service && h("small", {}, store.status.service)),
    h(
      "nav",
      { "aria-label": "Views" },
      NAVIGATION.map(([id, title, name]) =>
        h("a", { key: id, href: `#/${id}`, "aria-current": place[0] === id ? "page" : null }, icon(name), h("span", {}, title), badges[id] ? h("b", { class: "badge", "aria-label": id === "letters" ? `${letters} waiting` : `${troubled} failed` }, badges[id]) : null),
      ),
    ),
    h(
      "div",
      { class: "foot" },
      engineState(),
      h(
        "div",
        { class: "buttons" },
        h("button", { class: "plain", type: "button", onclick: turnTheme, "aria-label": `Theme: ${theme()}. Change it.`, title: `Theme: ${theme()} (t)` }, icon({ light: "sun", dark: "moon", system: "auto" }[theme()])),
        h("button", { class: "plain", type: "button", onclick: showHelp, "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts (?)" }, icon("help")),
        store.me && h("span", { class: "me", title: "Who you are to the engine, and your role" }, icon("user"), `${store.me.name || "you"} · ${store.me.role}`),
        store.me && store.me.name !== "local" && h("button", { class: "plain", type: "button", onclick: leave, "aria-label": "Sign out", title: "Sign out" }, icon("right")),
      ),
    ),
  );
}

const mark = () =>
  h("svg", { class: "mark", viewBox: "0 0 24 24", "aria-hidden": "true" }, h("rect", { width: 24, height: 24, rx: 6 }), h("path", { d: "M4 8.5c4 0 4 3 8 3s4-3 8-3M4 14.5c4 0 4 3 8 3s4-3 8-3" }));

function engineState() {
  const { status, connection } = store;
  if (connection !== "open") return h("div", { class: "engine" }, pill(connection === "away" ? "error" : "connecting", { text: connection === "away" ? "no answer" : "connecting" }));
  const state = status.phase !== "running" ? status.phase : status.ready ? "ready" : "not_ready";
  return h("div", { class: "engine" }, pill(state), h("small", {}, `up ${seconds(Math.floor(status.seconds))}`));
}

function banner() {
  const { status, connection } = store;
  if (connection === "away") {
    const left = Math.max(0, Math.ceil((store.retryAt - Date.now()) / 1000));
    return h("div", { class: "banner bad", role: "alert" }, icon("bad"), h("span", {}, h("b", {}, "The engine does not answer. "), store.at ? `What you see is from ${seconds((Date.now() - store.at) / 1000)} ago. ` : "", left ? `Trying again in ${left} s.` : "Trying again…"), h("button", { class: "button small", type: "button", onclick: pollNow }, icon("reload"), "Try now"));
  }
  if (status?.spark_down_seconds != null) return h("div", { class: "banner warn", role: "status" }, icon("warn"), `Spark has been down for ${seconds(status.spark_down_seconds)}. It is started again; changes are recorded meanwhile.`);
  if (status && status.phase !== "running") return h("div", { class: "banner busy", role: "status" }, icon("busy"), `The engine is ${status.phase}${status.step ? `: ${status.step}` : ""}.`);
  return null;
}

setInterval(() => store.connection === "away" && update(), 1000);

// --- sign-in ---------------------------------------------------------------------------------

let refused = "";
let signing = false;

function signInPage() {
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.token;
    signing = true;
    update();
    try {
      await signIn(field.value.trim());
      field.value = refused = "";
      store.connection = "connecting";
      await poll();
      events.begin();
      route();
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      refused = error.message;
      field.select();
    } finally {
      signing = false;
      update();
    }
  };
  return h(
    "main",
    { class: "signin", id: "main" },
    h(
      "form",
      { onsubmit: submit },
      h("div", { class: "brand" }, mark(), h("span", {}, "Headrace")),
      h("h1", {}, "Sign in"),
      h("p", { class: "muted" }, "This engine asks for a token. Tokens are named in its configuration, under ", h("code", {}, "server.tokens"), "."),
      h("label", { class: "field" }, h("span", {}, "Token"), h("input", { type: "password", name: "token", required: true, autocomplete: "current-password", "aria-invalid": refused ? "true" : null, "aria-describedby": refused ? "refused" : null })),
      refused && h("p", { class: "banner bad", id: "refused", role: "alert" }, icon("bad"), refused),
      h("button", { class: "button primary", type: "submit", disabled: signing }, signing ? "Signing in…" : "Sign in"),
    ),
  );
}

async function leave() {
  await signOut();
  store.me = store.status = null;
  poll();
}

// --- themes and shortcuts --------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const theme = () => document.documentElement.dataset.theme ?? "system";

function turnTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  localStorage.setItem("headrace.theme", next);
  update();
}

const SHORTCUTS = [
  ...NAVIGATION.map(([, title, , key]) => [`g ${key}`, title]),
  ["/", "Search in this view"],
  ["p", "Pause or resume the pipeline of this page"],
  ["t", "Change the theme"],
  ["?", "This help"],
  ["Esc", "Close what is open"],
];

function showHelp() {
  const node = document.querySelector("dialog#help");
  patch(
    node,
    h("form", { method: "dialog" }, h("h2", { id: "help-title" }, "Keyboard"), h("dl", { class: "keys" }, SHORTCUTS.map(([keys, does]) => [h("dt", {}, keys.split(" ").map((key) => h("kbd", {}, key))), h("dd", {}, does)])), h("footer", {}, h("button", { class: "button primary", type: "submit" }, "Close"))),
  );
  if (!node.open) node.showModal();
}

let begun = 0;

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (store.connection === "signed-out") return;
  const { key } = event;
  if (Date.now() - begun < 1500) {
    begun = 0;
    const found = NAVIGATION.find((each) => each[3] === key);
    if (found) return event.preventDefault(), void (location.hash = `#/${found[0]}`);
  }
  const known = { g: () => (begun = Date.now()), "?": showHelp, t: turnTheme, "/": () => document.querySelector("main [type=search]")?.focus(), ...view.keys };
  if (known[key]) event.preventDefault(), known[key]();
});

drawnBy(draw);
addEventListener("hashchange", route);
addEventListener("resize", wires);
route();
poll().then(() => store.connection === "open" && events.begin());


