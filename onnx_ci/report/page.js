"use strict";

const byId = (id) => document.getElementById(id);
const all = (selector) => [...document.querySelectorAll(selector)];

const search = byId("search");
const boxes = all(".filter input[type=checkbox]");
const lists = all(".cells");
const table = document.querySelector(".grid");
const groups = all(".grid tbody");
const rows = all(".grid tbody tr:not(.group)").map((row) => ({
  row,
  places: [...row.querySelectorAll("a")].map((link) => ({ place: link.parentElement, id: link.hash.slice(1) })),
}));
const cells = all("details.cell").map((element) => ({
  element,
  id: element.lastElementChild.id,
  statuses: element.dataset.status.split(" "),
  text: element.firstElementChild.textContent.toLowerCase(),
}));

/* The address holds the filter and the current place: #q=lstm&status=failed,error&at=cell-lstm-opset9-cpu, or the place alone,
   which is then an address that also works without JavaScript. */

function readAddress() {
  const hash = location.hash.slice(1);
  const fields = new URLSearchParams(hash.includes("=") ? hash : { at: hash });
  return { words: fields.get("q") ?? "", statuses: (fields.get("status") ?? "").split(","), at: fields.get("at") };
}

function addressOf(at) {
  const fields = new URLSearchParams();
  const checked = boxes.filter((box) => box.checked).map((box) => box.value);
  if (search.value) fields.set("q", search.value);
  if (checked.length) fields.set("status", checked.join(","));
  if (at && !fields.size) return "#" + at;
  if (at) fields.set("at", at);
  return "#" + fields.toString().replaceAll("%2C", ",");
}

/* A cell matches if its line contains every word, and if one of its statuses is checked or none is. */

function filter(wanted) {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const checked = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  const found = new Set();
  for (const { element, id, statuses, text } of cells) {
    const matches = (!checked.size || statuses.some((each) => checked.has(each))) && words.every((word) => text.includes(word));
    if (matches) found.add(id);
    element.hidden = !matches && id !== wanted;
  }
  for (const { row, places } of rows) {
    let some = false;
    for (const { place, id } of places) {
      place.classList.toggle("out", !found.has(id));
      some ||= found.has(id);
    }
    row.hidden = !some;
  }
  for (const group of groups) group.hidden = !group.querySelector("tr:not(.group, [hidden])");
  table?.classList.toggle("filtered", found.size < cells.length);
  for (const list of lists) {
    list.querySelector(".none").hidden = list.querySelector("details.cell:not([hidden])") !== null;
  }
  const total = cells.length;
  byId("shown").textContent = found.size === total ? `all ${total} cells` : `${found.size} of ${total} cells`;
  const inUse = words.length > 0 || checked.size > 0;
  byId("clear").disabled = !inUse;
  document.querySelector(".filter").classList.toggle("in-use", inUse);
}

function follow() {
  const { words, statuses, at } = readAddress();
  search.value = words;
  for (const box of boxes) box.checked = statuses.includes(box.value);
  filter(at);
  document.querySelector(".target")?.classList.remove("target");
  const target = at && byId(at);
  if (!target) return;
  target.classList.add("target"); // the address of a filter is the target of nothing
  const cell = target.closest("details.cell");
  if (cell) cell.open = true;
  (cell ?? target).scrollIntoView();
  (cell?.firstElementChild ?? target.querySelector("h2") ?? target).focus({ preventScroll: true });
}

let waiting;

function changed() {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    history.replaceState(null, "", addressOf());
    filter();
  }, 60);
}

/* The details of passed cells are compressed in the page, and built when a cell is opened. */

let unpacked;

async function unpack() {
  const bytes = Uint8Array.from(atob(byId("bodies").textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

async function build(cell) {
  const place = cell.lastElementChild;
  if (place.hasChildNodes()) return;
  try {
    unpacked ??= unpack();
    place.innerHTML = (await unpacked)[place.id];
  } catch {
    place.textContent = "This browser cannot unpack the details; the JSON report has them.";
  }
}

async function copy(button) {
  const code = button.parentElement.querySelector("code");
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Press Ctrl+C";
  byId("announcement").textContent = done ? "The command is copied." : "The command is selected.";
  setTimeout(() => {
    button.textContent = "Copy";
    byId("announcement").textContent = "";
  }, 2000);
}

/* Nothing can be opened on paper, so printing opens the failures and the list of cells that did not run. */

let opened = [];

addEventListener("beforeprint", () => {
  const closed = all("#not-run details:not([open]), #failures .cell:not([open])");
  opened = closed.filter((each) => each.lastElementChild.hasChildNodes());
  for (const each of opened) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of opened) each.open = false;
});

document.addEventListener("toggle", (event) => {
  if (event.target.matches("details.cell[open]")) build(event.target);
}, true);

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && !link.hash.includes("=") && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault(); // the filter stays in the address
    const address = addressOf(link.hash.slice(1));
    if (address === location.hash) follow();
    else location.hash = address;
  } else if (event.target.matches(".copy")) {
    copy(event.target);
  } else if (event.target.matches("#clear")) {
    search.value = "";
    for (const box of boxes) box.checked = false;
    changed();
    search.focus();
  }
});

/* The filter stays visible, so the target of a link must scroll to below it, however many lines it takes up. */

function leaveRoom() {
  const bar = document.querySelector(".filter");
  const covered = getComputedStyle(bar).position === "sticky" ? bar.offsetHeight : 0;
  document.documentElement.style.scrollPaddingTop = `${covered + 16}px`;
}

search.addEventListener("input", changed);
for (const box of boxes) box.addEventListener("change", changed);
addEventListener("hashchange", follow);
addEventListener("resize", leaveRoom);
document.documentElement.classList.add("scripted");
leaveRoom();
follow();
