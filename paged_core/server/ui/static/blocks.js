import { $, ask, bindKey, complain, make, number } from "/ui/common.js";
import { DEVICE, Grid, HOST, isPublished, refsOf } from "/ui/grid.js";
import { Chronicle, short, showQueue } from "/ui/queues.js";

const INTERVAL_MS = 200;
const SOON_MS = 50;
const AFTER_ERROR_MS = 2000;
const RATE_WINDOW_MS = 3000;

const device = new Grid($("device"), DEVICE, 560);
const host = new Grid($("host"), HOST, 160);
const chronicle = new Chronicle();
const rates = []; // [time, tokens generated] of the last looks
let look = null; // what was last shown
let hovered = null; // block under the pointer
let pinned = null; // request whose blocks are marked
let pointer = [0, 0];
let paused = false;
let asking = false; // a look is on its way
let soon = false; // and another is wanted after it
let timer = 0;

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** One look, then the next in a while. Asked for while one is on its way, another follows soon: never two at once. */
async function poll() {
  if (asking) {
    soon = true;
    return;
  }
  clearTimeout(timer);
  asking = true;
  soon = false;
  let wait = INTERVAL_MS;
  try {
    if (!document.hidden) await refresh();
    complain(null);
  } catch (error) {
    complain(error);
    wait = AFTER_ERROR_MS;
  }
  asking = false;
  if (soon || !paused) timer = setTimeout(poll, soon ? SOON_MS : wait);
}

async function refresh() {
  const query = new URLSearchParams();
  if (hovered !== null) query.set("block", hovered);
  if (pinned !== null) query.set("request", pinned);
  const asked = hovered;
  show(await (await ask(`/ui/data/pool?${query}`)).json());
  if (asked === hovered) showTip();
}

function show(next) {
  look = next;
  device.update(bytesOf(look.blocks));
  host.update(bytesOf(look.host));
  $("host").hidden = host.bytes.length === 0;
  device.mark(look.held, hovered);
  showLegend();
  for (const queue of ["running", "preempted", "waiting"]) {
    const count = Math.max(look.counts[queue], look[queue].length);
    showQueue(queue, look[queue], count, pinned);
  }
  chronicle.take(look);
  showTotals();
}

function showLegend() {
  const counts = { free: 0, cached: 0, private: 0, shared: 0, published: 0 };
  for (const byte of device.bytes) {
    counts[DEVICE[byte].replace(/\d+$/, "")]++;
    if (isPublished(byte)) counts.published++;
  }
  for (const [name, count] of Object.entries(counts)) $(`n-${name}`).textContent = number(count);
  $("n-swapped").textContent = number(host.bytes.reduce((sum, byte) => sum + (byte ? 1 : 0), 0));
  $("inexact").hidden = look.exact;
  const { total, host_total: hostTotal } = look.pool;
  $("device-note").textContent = `${number(total)} blocks of ${look.block_size} tokens`;
  $("host-note").textContent = hostTotal ? `${number(hostTotal)} blocks` : "none";
  $("facts").textContent = `${look.model} · ${look.plugins.alloc} · ${look.plugins.sched}`;
}

function showTotals() {
  const { pool } = look;
  const rows = [
    ["blocks in use", `${number(pool.total - pool.free)} (${percent(pool.total - pool.free, pool.total)})`],
    ["saved by sharing", `${number(pool.saved)} blocks`],
    ["unused slots in last blocks", number(pool.tail_waste_slots)],
    ["prompt tokens from cache", percent(pool.prefix_hits, pool.prefix_queries)],
    ["copies on write", number(pool.num_copies)],
    ["cached blocks evicted", number(pool.num_evictions)],
    ["preemptions", Object.entries(look.preemptions).map(([mode, count]) => `${number(count)} ${mode}`).join(", ")],
    ["output tokens a second", rate()],
    ["step", number(look.step)],
  ];
  $("totals").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]));
}

const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)} %` : "none yet");

function rate() {
  const now = performance.now();
  rates.push([now, look.generated]);
  while (rates.length > 2 && now - rates[0][0] > RATE_WINDOW_MS) rates.shift();
  const [time, tokens] = rates[0];
  return now > time ? ((1000 * (look.generated - tokens)) / (now - time)).toFixed(1) : "0.0";
}

/** What is known of the block under the pointer. */
function showTip() {
  const tip = $("tip");
  tip.hidden = hovered === null || hovered >= device.bytes.length;
  if (tip.hidden) return;
  const byte = device.bytes[hovered];
  const lines = [make("strong", { text: `block ${number(hovered)}: ${words(byte)}` })];
  for (const { request, branch, depth, num_tokens: filled } of look.holders.slice(0, 8)) {
    const from = depth * look.block_size;
    const tokens = `tokens ${number(from)} to ${number(from + filled - 1)}, prefix depth ${number(depth)}`;
    lines.push(make("div", {}, make("code", { text: short(request) }), ` branch ${branch}: ${tokens}`));
  }
  if (look.holders.length > 8) lines.push(make("div", { text: `and ${look.holders.length - 8} more` }));
  if (refsOf(byte) && !look.holders.length) lines.push(make("div", { text: "held by what ends with the step, or not written yet" }));
  tip.replaceChildren(...lines);
  const [x, y] = pointer;
  tip.style.left = `${Math.max(4, Math.min(x + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 16 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 10 : y + 16}px`;
}

function words(byte) {
  const refs = refsOf(byte);
  const found = isPublished(byte) ? ", can be hit in the prefix cache" : "";
  if (!refs) return isPublished(byte) ? "cached, free to take" : "free";
  return (refs === 1 ? "private" : `shared, ${refs}${refs === 127 ? " or more" : ""} references`) + found;
}

function hover(event) {
  const box = device.cells.getBoundingClientRect();
  pointer = [event.clientX, event.clientY];
  const block = device.at(event.clientX - box.left, event.clientY - box.top);
  if (block === hovered) return;
  hovered = block;
  $("tip").hidden = true; // until its holders are known
  poll(); // while paused too: the map then moves on by one look
}

$("device").addEventListener("pointermove", hover);
$("device").addEventListener("pointerleave", () => {
  hovered = null;
  $("tip").hidden = true;
  if (look) device.mark(look.held, null);
});
document.querySelector("aside").addEventListener("click", (event) => {
  const request = event.target.closest("[data-request]")?.dataset.request;
  if (request === undefined) return;
  pinned = request === pinned ? null : request;
  poll();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Go on" : "Pause";
  if (!paused) poll();
});
for (const [target, event] of [[window, "resize"], [matchMedia("(prefers-color-scheme: dark)"), "change"]]) {
  target.addEventListener(event, () => {
    device.redraw();
    host.redraw();
    if (look) device.mark(look.held, hovered);
  });
}
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) poll();
});
bindKey($("key"), poll);
poll();
