/*
 * The effective configuration: every value with its origin; secrets are masked by the engine.
 */

import { h, update } from "./dom.js";
import { counted } from "./format.js";
import { icon } from "./icons.js";
import { call } from "./rpc.js";
import { empty, loading, panel, problem } from "./ui.js";

const MASK = /^\*+$/;

let found = null;
let trouble = null;
let filter = "";
let defaults = false;

async function look() {
  try {
    [found, trouble] = [await call("Configuration"), null];
  } catch (error) {
    trouble = error;
  }
  update();
}

export const configuration = {
  title: "Configuration",
  enter: look,
  render() {
    if (trouble?.kind === "unimplemented") return empty("config", "No configuration file", "This engine was built by a Python program: what it runs is in that program.");
    if (trouble) return problem(trouble, { again: look });
    if (!found) return loading("the configuration");
    const text = filter.toLowerCase();
    const shown = found.settings.filter((each) => (defaults || each.from !== "default") && (!text || `${each.key} ${JSON.stringify(each.value)}`.toLowerCase().includes(text)));
    const groups = Map.groupBy(shown, (each) => groupOf(each.key));
    return [
      h(
        "div",
        { class: "toolbar" },
        h("label", { class: "inline search" }, icon("search"), h("input", { type: "search", "aria-label": "Filter settings", placeholder: "Filter settings  /", value: filter, oninput: (event) => ((filter = event.target.value), update()) })),
        h("label", { class: "inline" }, h("input", { type: "checkbox", checked: defaults, onchange: (event) => ((defaults = event.target.checked), update()) }), "Also defaults"),
        h("p", { class: "muted" }, counted(shown.length, "setting"), " · ", h("code", {}, found.config)),
      ),
      shown.length === 0 && empty("search", "No setting", "None has this text in its name or value."),
      h("div", { class: "groups" }, [...groups].map(([group, settings]) => panel(group, { key: group, cls: "settings" }, h("dl", {}, settings.map((each) => [h("dt", { key: each.key }, each.key.slice(group === "General" ? 0 : group.length + 1)), h("dd", { key: `${each.key}=` }, valueOf(each), h("small", { class: "muted", title: each.from }, origin(each.from)))]))))),
    ];
  },
};

function groupOf(key) {
  const parts = key.split(/\.(?![^"]*"(?:[^"]*"[^"]*")*[^"]*$)/);
  return parts.length > 2 && ["sources", "pipelines"].includes(parts[0]) ? `${parts[0]}.${parts[1]}` : parts.length > 1 ? parts[0] : "General";
}

function valueOf({ value }) {
  if (typeof value === "string" && MASK.test(value)) return h("span", { class: "masked" }, icon("lock"), "masked");
  return h("code", {}, typeof value === "string" ? value : JSON.stringify(value));
}

/** `/long/path/headrace.conf:3:8` as `headrace.conf:3`. */
const origin = (from) => from.replace(/^.*\/(?=[^/]*$)/, "").replace(/:(\d+):\d+$/, ":$1");
