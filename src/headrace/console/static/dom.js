/*
 * Draws: `h` describes an element, `patch` makes the page so.
 *
 * A description is drawn again whenever something changes, and only what differs is touched, so
 * focus, selection, scrolling and running transitions stay. Text is always text, never markup.
 */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "open", "indeterminate"]);
const drawn = new WeakMap();

/** Describe an element; children may be nested lists, and what is null or false is left out. */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children) };
}

function flat(children) {
  return children.flat(Infinity).filter((each) => each != null && each !== false && each !== true);
}

/** Make the children of an element those that are described. */
export function patch(parent, ...children) {
  const old = [...parent.childNodes];
  const keyed = new Map();
  const free = [];
  for (const node of old) {
    const key = drawn.get(node)?.props?.key;
    if (key != null) keyed.set(key, node);
    else free.push(node);
  }
  const kept = new Set();
  let next = parent.firstChild;
  for (const wanted of flat(children)) {
    let node;
    if (typeof wanted !== "object") {
      node = free[0]?.nodeType === Node.TEXT_NODE ? free.shift() : document.createTextNode("");
      if (node.data !== String(wanted)) node.data = String(wanted);
    } else {
      node = found(wanted, keyed, free) ?? created(wanted, parent);
      refresh(node, wanted);
    }
    kept.add(node);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  for (const node of old) if (!kept.has(node)) node.remove();
}

function found({ tag, props }, keyed, free) {
  if (props.key != null) {
    const node = keyed.get(props.key);
    return node?.localName === tag ? node : null;
  }
  const at = free.findIndex((node) => node.localName === tag);
  return at < 0 ? null : free.splice(at, 1)[0];
}

function created({ tag }, parent) {
  const svg = tag === "svg" || (parent.namespaceURI === SVG && parent.localName !== "foreignObject");
  return svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
}

function refresh(node, wanted) {
  const before = drawn.get(node)?.props ?? {};
  const { props } = wanted;
  drawn.set(node, wanted);
  for (const name of Object.keys(before)) if (!(name in props)) set(node, name, null);
  if (!props.opaque) patch(node, wanted.children);
  for (const [name, value] of Object.entries(props)) {
    // What the user can change is compared with the page, the rest with what was drawn last.
    if (PROPERTIES.has(name) ? node[name] !== value : before[name] !== value) {
      set(node, name, value, before[name]);
    }
  }
}

function set(node, name, value, before) {
  if (name === "key" || name === "opaque") return;
  if (name === "ref") value?.(node);
  else if (name === "style") {
    // By the object model: the policy of the page allows no style attributes.
    for (const each of Object.keys(before ?? {})) {
      if (!(each in (value ?? {}))) node.style.removeProperty(each);
    }
    for (const [each, to] of Object.entries(value ?? {})) node.style.setProperty(each, to);
  } else if (name.startsWith("on") || PROPERTIES.has(name)) node[name] = value;
  else if (value == null || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}

let asked = 0;
let draw = () => {};

/** Say what draws the page. */
export function drawnBy(call) {
  draw = call;
}

/** Draw the page again, soon; any number of calls before that are one. */
export function update() {
  if (!asked) asked = requestAnimationFrame(() => ((asked = 0), draw()));
}
