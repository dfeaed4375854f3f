/*
 * Dead letters: the list, both images with their differences, edit, dry run, replay and purge.
 */

import { h, update } from "./dom.js";
import { ago, count, counted, position, time, value, words } from "./format.js";
import { icon } from "./icons.js";
import { call } from "./rpc.js";
import { pipelines, store } from "./store.js";
import { action, confirmed, empty, facts, loading, panel, pill, problem, say } from "./ui.js";

const PAGE = 100;

let pipeline = "";
let found = null;
let trouble = null;
let ended = false;
let chosen = "";
let skipped = 0;
/** The new values of the dead letter that is edited, as typed; null for SQL's null. */
let edits = null;
let outcomes = null;
let timer = 0;
let seen = "";

const idOf = (each) => `${each.pipeline}/${each.table}/${each.position}/${each.key.map(value).join()}`;
const of = (letter) => ({ pipeline: letter.pipeline, table: letter.table, position: letter.position, key: letter.key });
const waiting = () => pipelines().filter((each) => !pipeline || each.name === pipeline).map((each) => `${each.name}${each.dead_letters}${each.held_keys}`).join();

async function look() {
  const asked = pipeline;
  try {
    const answer = await call("DeadLetters", { ...(asked && { pipeline: asked }), ended, after: skipped, limit: PAGE });
    if (asked !== pipeline) return;
    [found, trouble] = [answer, null];
    if (!answer.dead_letters.some((each) => idOf(each) === chosen)) choose(answer.dead_letters[0]);
  } catch (error) {
    trouble = error;
  }
  update();
}

function choose(letter) {
  chosen = letter ? idOf(letter) : "";
  edits = outcomes = null;
  update();
}

export const letterList = {
  title: "Dead letters",
  enter(path) {
    const wanted = path[0] ?? "";
    if (wanted !== pipeline) [pipeline, found, chosen, skipped] = [wanted, null, "", 0];
    letterList.leave();
    // The status has the counts: only when they move, there is something new to list.
    timer = setInterval(() => store.connection === "open" && seen !== waiting() && ((seen = waiting()), look()), 500);
    seen = waiting();
    look();
  },
  leave: () => clearInterval(timer),
  render() {
    if (trouble) return problem(trouble, { again: look });
    if (!found) return loading("dead letters");
    const letters = found.dead_letters;
    const bar = toolbar(letters);
    if (!letters.length) return [bar, empty("check", "No dead letters", ended ? "No change has failed in the time that they are kept." : "Every change could be applied. Changes that fail wait here, with their rows, until they are replayed or purged.")];
    const letter = letters.find((each) => idOf(each) === chosen) ?? letters[0];
    return [bar, h("div", { class: "panes" }, list(letters, letter), detail(letter, letters))];
  },
};

function toolbar(letters) {
  const all = pipelines().filter((each) => each.dead_letters || each.name === pipeline);
  const pick = (event) => (location.hash = `#/letters/${encodeURIComponent(event.target.value)}`);
  const pinned = location.hash.startsWith("#/pipelines");
  return h(
    "div",
    { class: "toolbar" },
    !pinned && h("label", { class: "inline" }, "Pipeline", h("select", { "aria-label": "Pipeline", onchange: pick, value: pipeline }, h("option", { value: "" }, "All pipelines"), all.map((each) => h("option", { key: each.name, value: each.name, selected: each.name === pipeline }, `${each.name} (${each.dead_letters})`)))),
    h("label", { class: "inline" }, h("input", { type: "checkbox", checked: ended, onchange: (event) => ((ended = event.target.checked), (skipped = 0), look()) }), "Also those that ended"),
    h("p", { class: "muted" }, found.total > letters.length ? `${count(skipped + 1)}–${count(skipped + letters.length)} of ${count(found.total)}` : counted(found.total, "dead letter")),
    found.total > PAGE && h("div", { class: "tools" }, h("button", { class: "button small", type: "button", disabled: skipped === 0, onclick: () => ((skipped -= PAGE), look()) }, icon("left"), "Earlier"), h("button", { class: "button small", type: "button", disabled: skipped + PAGE >= found.total, onclick: () => ((skipped += PAGE), look()) }, "Later", icon("right"))),
    pipeline && letters.some((each) => !each.ended) && h("div", { class: "tools" }, replayAll(), purge({ pipeline }, `all dead letters of ${pipeline}`, pipeline)),
  );
}

function list(letters, letter) {
  return h(
    "ul",
    { class: "panel letters", "aria-label": "Dead letters" },
    letters.map((each) =>
      h(
        "li",
        { key: idOf(each) },
        h(
          "button",
          { type: "button", "aria-current": each === letter ? "true" : null, onclick: () => choose(each) },
          h("span", { class: "row" }, h("b", {}, each.table, h("code", {}, each.key.map(value).join(", "))), h("span", { class: "op" }, each.op)),
          h("span", { class: "row muted" }, h("span", { class: "code" }, each.end ? `ended: ${each.end}` : each.kind === "behind" ? "waits behind another" : each.code), h("span", {}, ago(each.parked))),
        ),
      ),
    ),
  );
}

// --- one dead letter -------------------------------------------------------------------------

function detail(letter, letters) {
  const behind = letters.filter((each) => each.kind === "behind" && !each.ended && each.pipeline === letter.pipeline && each.table === letter.table && value(each.key[0]) === value(letter.key[0]) && each.position > letter.position);
  const reason = letter.kind === "behind" ? "Waits behind a failed change of the same row" : letter.code;
  return h(
    "section",
    { class: "panel letter", key: idOf(letter), "aria-label": `Dead letter of ${letter.table}` },
    h("header", { class: "subject" }, h("h2", {}, `${letter.op} of ${letter.table} `, h("code", {}, letter.key.map(value).join(", "))), letter.ended ? pill("closed", { text: letter.end }) : pill("failed", { look: letter.kind === "behind" ? "idle" : "bad", text: letter.kind === "behind" ? "waits" : "failed" })),
    facts([
      ["Why", h("strong", {}, reason)],
      ...Object.entries(letter.facts).map(([name, text]) => [words(name), text]),
      ["Pipeline", letter.pipeline],
      ["Committed", letter.time ? time(letter.time) : "row of a copy"],
      ["Parked", `${time(letter.parked)} (${ago(letter.parked)})`],
      ["Position", h("code", { title: letter.position }, position(letter.position))],
      behind.length > 0 && ["Held behind it", counted(behind.length, "later change")],
      letter.note && ["Note", letter.note],
    ]),
    images(letter),
    outcomes && outcomeList(),
    !letter.ended && h("div", { class: "actions" }, edits ? editing(letter) : reading(letter)),
  );
}

function images(letter) {
  const names = letter.columns.length ? letter.columns.map((each) => each.name) : Object.keys({ ...letter.before, ...letter.after });
  const kinds = Object.fromEntries(letter.columns.map((each) => [each.name, each.type]));
  const both = letter.before && letter.after;
  const cell = (image, name) => (image == null ? h("span", { class: "muted" }, "–") : h("span", { class: image[name] === null ? "null" : null }, value(image[name])));
  return h(
    "div",
    { class: "scrolls", role: "region", tabindex: "0", "aria-label": "The row before and after the change" },
    h(
      "table",
      { class: "images" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Column"), h("th", { scope: "col" }, "Before"), h("th", { scope: "col" }, "After"), edits && h("th", { scope: "col" }, "New value"))),
      h(
        "tbody",
        {},
        names.map((name) => {
          const differs = both && JSON.stringify(letter.before[name]) !== JSON.stringify(letter.after[name]);
          return h(
            "tr",
            { key: name, class: differs ? "differs" : null },
            h("th", { scope: "row" }, name, h("small", {}, kinds[name])),
            h("td", {}, cell(letter.before, name)),
            h("td", {}, cell(letter.after, name), differs && h("span", { class: "mark" }, "changed")),
            edits && h("td", {}, field(letter, name)),
          );
        }),
      ),
    ),
  );
}

function field(letter, name) {
  if (letter.key_columns.includes(name)) return h("span", { class: "muted" }, "part of the key");
  const given = letter.after?.[name];
  const shown = name in edits ? edits[name] : given == null ? null : value(given);
  const type = (event) => ((edits[name] = event.target.value), (outcomes = null), update());
  const empty = (event) => ((edits[name] = event.target.checked ? null : ""), (outcomes = null), update());
  return h(
    "div",
    { class: "edit" },
    h("input", { "aria-label": `New value of ${name}`, name, value: shown ?? "", placeholder: shown === null ? "null" : "", disabled: shown === null, class: name in edits ? "edited" : null, spellcheck: "false", autocomplete: "off", oninput: type }),
    h("label", { class: "inline small" }, h("input", { type: "checkbox", checked: shown === null, "aria-label": `${name} is null`, onchange: empty }), "null"),
  );
}

const reading = (letter) => [
  letter.after && action("Edit values", { id: "edit", name: "config", run: () => ((edits = {}), (outcomes = null), undefined) }),
  dryRun(of(letter)),
  replay(of(letter), "primary"),
  h("span", { class: "grow" }),
  purge(of(letter), `the dead letter of ${letter.table} at ${position(letter.position)}`, letter.table),
];

function editing(letter) {
  const changed = Object.fromEntries(Object.entries(edits).filter(([name, text]) => text !== (letter.after[name] == null ? null : value(letter.after[name]))));
  const request = { ...of(letter), values: changed };
  if (!Object.keys(changed).length) return [h("p", { class: "muted" }, "Change a value, then try it."), h("span", { class: "grow" }), cancel()];
  return [dryRun(request), replay(request, "primary", "Apply edited"), h("span", { class: "grow" }), cancel()];
}

const cancel = () => h("button", { class: "button", type: "button", onclick: () => ((edits = outcomes = null), update()) }, "Cancel");

const dryRun = (request) =>
  action("Dry run", { id: "dry-run", name: "search", run: async () => void (outcomes = await call("ReplayDeadLetters", { ...request, dry_run: true }, { seconds: 90 })) });

const replay = (request, kind, label = "Replay") =>
  action(label, {
    id: "replay",
    name: "play",
    kind,
    run: async () => {
      const answer = await call("ReplayDeadLetters", request, { seconds: 90 });
      edits = outcomes = null;
      await look();
      const failed = answer.outcomes.filter((each) => each.outcome !== "applied");
      if (!failed.length) return answer;
      outcomes = answer;
      say(`${counted(failed.length, "change")} failed again`, { look: "warn", detail: failed[0].code });
      return undefined;
    },
    done: (answer) => `${counted(answer.outcomes.length, "change")} applied to the target`,
  });

function replayAll() {
  const request = { pipeline };
  return action("Replay all", {
    id: "replay-all",
    name: "play",
    run: async () => {
      const trial = await call("ReplayDeadLetters", { ...request, dry_run: true }, { seconds: 90 });
      const good = trial.outcomes.filter((each) => each.outcome === "applied").length;
      const text = [`${counted(good, "change")} of ${count(trial.outcomes.length)} would be applied to the target of ${pipeline}.`, good < trial.outcomes.length ? "The others would fail again, and stay dead letters." : "All would be applied."];
      if (!(await confirmed({ title: "Replay all dead letters?", text, does: "Replay" }))) return undefined;
      const answer = await call("ReplayDeadLetters", request, { seconds: 90 });
      await look();
      return answer;
    },
    done: (answer) => `${counted(answer.outcomes.filter((each) => each.outcome === "applied").length, "change")} applied, of ${answer.outcomes.length}`,
  });
}

const purge = (request, what, typed) =>
  action("Purge…", {
    id: "purge",
    role: "admin",
    name: "trash",
    kind: "quiet-danger",
    run: async () => {
      const plan = await call("PurgeDeadLetters", { ...request, dry_run: true });
      const all = plan.tables.map((each) => `${counted(each.dead_letters, "dead letter")} of ${counted(each.keys, "row")} in ${each.table}`).join(", ");
      const text = [`This gives up ${what}, for good: ${all || "nothing"}.`, "Changes that wait behind them are given up, too. Rows of the target may differ from the source until the table is copied again."];
      if (!(await confirmed({ title: "Purge dead letters?", text, typed, danger: true, does: "Purge for good" }))) return undefined;
      const answer = await call("PurgeDeadLetters", { ...request, note: `${store.me?.name || "someone"}, in the console` });
      await look();
      return answer;
    },
    done: "Purged; the next changes of these rows reach the target again",
  });

function outcomeList() {
  const would = !outcomes.done;
  return h(
    "div",
    { class: "outcomes", role: "status" },
    h("h3", {}, would ? "Dry run: nothing was changed" : "What became of it"),
    h("ul", {}, outcomes.outcomes.map((each) => {
      const good = each.outcome === "applied";
      return h("li", { class: good ? "ok" : "bad" }, icon(good ? "check" : "bad"), h("span", {}, `${each.table} ${position(each.position)}: `, h("b", {}, good ? (would ? "would be applied" : "applied") : would ? `would fail again: ${each.code}` : `${words(each.outcome)}: ${each.code}`)));
    })),
  );
}
